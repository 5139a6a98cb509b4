//! The Landfall agent: prober and crawler.
//!
//! `guard`, `dns`, `origin` and `user_agent` decide what may be sent where; `probe` measures; `session` talks to the
//! scheduler and starts the rest.

pub mod context;
pub mod dns;
pub mod guard;
pub mod origin;
pub mod probe;
#[cfg(test)]
mod test_server;
pub mod user_agent;
