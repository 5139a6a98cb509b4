//! The Landfall scheduler, and the operator's commands.
//!
//! `model`, `gnp`, `strategy`, `simulate` (but for the files it reads), `throughput` and `capacity`
//! are the pure core, without tokio, sqlx, tonic, clock or environment. `store` alone contains SQL; `grpc` and `jobs` meet
//! there and through [`wake::Wakes`].

use std::sync::Arc;

use sqlx::PgPool;

pub mod app;
mod capacity;
pub mod cli;
pub mod config;
pub mod gnp;
pub mod grpc;
mod jobs;
pub mod model;
pub mod simulate;
pub mod store;
pub mod strategy;
mod telemetry;
mod throughput;
mod wake;

pub use app::run::run;

/// The version, with the commit if the build was given it: `0.1.0+f2acb2d8`. `ops/package.sh`
/// passes it; a build that read git itself would be repeated for every commit.
pub const VERSION: &str = match option_env!("LANDFALL_VERSION") {
    Some(told) => told,
    None => env!("CARGO_PKG_VERSION"),
};
/// The version with the commit and its date, for people.
pub const LONG_VERSION: &str = match option_env!("LANDFALL_LONG_VERSION") {
    Some(told) => told,
    None => concat!(env!("CARGO_PKG_VERSION"), " (built by hand: the commit was not recorded)"),
};

/// What every service and every job of one scheduler shares. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Scheduler {
    pub pool: PgPool,
    /// The signals between services and jobs.
    pub wakes: Arc<wake::Wakes>,
    /// The newest embedding and its refined map.
    pub maps: Arc<jobs::locate::refined::MapCache>,
    /// Positions by address, if the operator has a file of them.
    pub geoip: Option<Arc<app::geoip::GeoIp>>,
    /// The validated configuration.
    pub config: Arc<config::Config>,
}

impl Scheduler {
    /// A scheduler that has just started, without positions by address.
    pub fn new(pool: PgPool, config: config::Config) -> Self {
        Self { pool, wakes: Arc::default(), maps: Arc::default(), geoip: None, config: Arc::new(config) }
    }
}
