//! The server: gRPC services, limits, TLS and shutdown. The dashboard's pages have the same port.
//!
//! Handlers are thin: they convert a request to domain values, make one call into the store, and
//! convert its result to a message. Proto types never leave this module.

mod agent_session;
pub(crate) mod auth;
pub(crate) mod capacity_plan;
mod errors;
mod first_bytes;
mod gate;
mod identity;
pub(crate) mod landmark_choice;
pub(crate) mod operator;
mod operator_token;
mod plan_request;
mod server;
pub mod tls_handshakes;
pub(crate) mod wrong_tokens;

pub use identity::Identity;
pub(crate) use server::{Desks, serve};
