//! Which addresses an agent may connect to, and how names resolve to addresses.

pub(crate) mod aged;
pub mod context;
pub mod dns;
pub mod guard;
pub mod origin;
pub mod user_agent;
