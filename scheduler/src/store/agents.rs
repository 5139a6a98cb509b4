//! Agents: the enrolled agents and their current state.

mod credentials;
pub(crate) mod drains;
pub mod enrolments;
mod list_and_show;
mod names;
mod places;
pub(crate) mod refusals;
pub(crate) mod removal;
pub(crate) mod sessions;
mod tags;

pub use credentials::{CredentialHolder, by_credential};
pub use list_and_show::{Agent, list, show};
pub use names::{by_name, names};
pub use places::{AgentPlace, AgentPosition, places, positions};
pub use tags::{lock_tags, set_tags};
