//! The rules that choose an agent for a task: the strategies, the choice for anycast sites, and the
//! next candidate of a stored choice.

pub(super) mod anycast;
pub(super) mod balanced;
pub(super) mod by_name;
pub(super) mod by_place;
pub(super) mod choice;
pub(super) mod confirmed;
pub(super) mod earliest_finish;
mod free_slots;
pub(super) mod next_candidate;
pub(super) mod random;
pub(super) mod top_k;
