//! Agents: the enrolled agents and their current state.

pub(crate) mod drain_remove_and_tag;
pub mod issued_tokens;
mod list_and_show;
pub mod new_enrolments;
pub(crate) mod refusals;
pub(crate) mod sessions;

pub use drain_remove_and_tag::{lock_tags, set_tags};
pub use issued_tokens::{CredentialHolder, by_credential};
pub use list_and_show::{
    Agent, AgentOutline, AgentPlace, NewestSession, SessionState, by_name, list, newest_session, outlines, places,
    show, with_ids,
};
