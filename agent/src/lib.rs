//! The Landfall agent: prober and crawler.
//!
//! `guard`, `dns`, `origin` and `user_agent` decide what may be sent where; `probe` measures; `crawl` crawls;
//! `session` talks to the scheduler and starts the rest.

pub mod backoff;
pub mod beacon;
pub mod clock;
pub mod config;
pub mod context;
pub mod crawl;
pub mod dns;
pub mod enrol;
pub mod guard;
pub mod origin;
pub mod outbox;
pub mod probe;
pub mod telemetry;
#[cfg(test)]
mod test_server;
pub mod user_agent;
