//! The strategies, one file each: each chooses one agent for one task.

pub(super) mod anycast;
pub(super) mod balanced;
pub(super) mod by_name;
pub(super) mod by_place;
pub(super) mod confirmed;
pub(super) mod earliest;
pub(super) mod next;
