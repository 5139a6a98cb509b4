//! The Landfall agent measures round trips and crawls sites.
//!
//! `net` decides which requests may be sent to which addresses. `probe` measures round trips,
//! `crawl` crawls sites, `warc` stores fetched pages, and `disk` stores the state that must survive
//! a restart. `session` communicates with the scheduler and starts measurements and crawls.
//! `metrics` counts events for Prometheus. `run` starts all of these, and the beacon, at
//! which other agents measure their round trip to this agent. `cli` reads the command line.
//! `machine` reads the machine's clocks and disks.

pub mod cli;
pub mod config;
pub mod crawl;
mod disk;
mod machine;
mod metrics;
pub mod net;
pub mod probe;
mod run;
mod session;
#[cfg(test)]
mod testing;
pub mod warc;

/// The version, followed by the commit if it was passed to the build: `0.1.0+f2acb2d8`.
/// `ops/package.sh` passes the commit. The build does not read it from git, because every commit
/// would then cause a rebuild.
pub const VERSION: &str = match option_env!("LANDFALL_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
/// The version with the commit and its date, for display.
pub const LONG_VERSION: &str = match option_env!("LANDFALL_LONG_VERSION") {
    Some(version) => version,
    None => concat!(env!("CARGO_PKG_VERSION"), " (built by hand: the commit was not recorded)"),
};
