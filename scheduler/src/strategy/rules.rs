//! The rules that choose one agent for one task: the strategies, the choice for anycast sites, and
//! the next candidate of a stored choice.

pub(super) mod anycast;
pub(super) mod balanced;
pub(super) mod by_name;
pub(super) mod by_place;
pub(super) mod confirmed;
pub(super) mod earliest;
pub(super) mod next;
