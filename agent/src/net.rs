//! Where an agent may connect, and how names become addresses.

pub(crate) mod aged;
pub mod context;
pub mod dns;
pub mod guard;
pub mod origin;
pub mod user_agent;
