//! Fitting: computes an embedding from the mesh. The new embedding replaces the previous one in a
//! single transaction.
//!
//! A fit is made if there is a reason (see `new_map`). Unless an operator requested the fit, it
//! first waits, for at most `PATIENCE`, until every connected agent has tried to measure the
//! landmarks' beacons. A fit is discarded if another embedding has been stored since the fit began.

mod drift;
pub mod landmarks;
mod new_map;
pub mod trust;

pub use new_map::Fit;
