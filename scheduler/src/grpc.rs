//! The server: gRPC services, limits, TLS and shutdown. The dashboard's pages have the same port.
//!
//! Handlers are thin: they convert a request to domain values, make one call into the store, and
//! convert its result to a message. Proto types never leave this module.

mod agent_session;
pub(crate) mod answers;
pub(crate) mod auth;
mod errors;
mod listener;
pub(crate) mod operator;
pub mod port;
mod responses;
mod server;
pub mod submission_places;

pub use listener::listen;
pub(crate) use operator::services::OperatorServices;
pub use operator::settings::Identity;
pub(crate) use server::serve;
