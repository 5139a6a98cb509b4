//! The Landfall agent measures round trips and crawls sites.
//!
//! `net` decides which requests may be sent to which addresses. `probe` measures round trips,
//! `crawl` crawls sites, `warc` stores fetched pages, and `disk` stores the state that must survive
//! a restart. `session` communicates with the scheduler and starts measurements and crawls.
//! `beacon` answers the requests by which other agents measure their round trip to this agent.
//! `metrics` counts events for Prometheus. `listener` is the HTTP server of both `beacon` and
//! `metrics`. `run` starts all of them, and `cli` reads the command line.

mod beacon;
pub mod cli;
mod clock;
pub mod config;
pub mod crawl;
mod disk;
mod listener;
mod metrics;
pub mod net;
pub mod probe;
mod run;
mod session;
#[cfg(test)]
mod testing;
mod version;
pub mod warc;
