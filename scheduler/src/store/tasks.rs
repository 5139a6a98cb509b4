//! Tasks in the states before an agent is chosen: submitted, measuring, located.
//!
//! Every transition stores its time. The modules `assignments`, `leases` and `outcomes` change
//! tasks in later states.

pub(crate) mod confirmations;
pub(crate) mod holds;
pub(crate) mod measuring_and_rounds;
pub(crate) mod unmet_and_wait_causes;
