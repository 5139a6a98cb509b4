//! The Landfall scheduler, and the operator's commands.
//!
//! `model`, `naming`, `gnp`, `constraints`, `explain`, `strategy`, `seed`, `site_list`, `throughput` and `capacity` are the pure core: they know no tokio, sqlx, tonic, clock or environment.
//! `store` is the only place that knows SQL; `grpc` and `tasks` meet in it and through [`wake::Wakes`].

use std::sync::Arc;

use sqlx::PgPool;

pub mod app;
mod capacity;
pub mod cli;
pub mod config;
pub mod gnp;
pub mod grpc;
pub mod jobs;
pub mod model;
pub mod simulate;
pub mod store;
pub mod strategy;
mod telemetry;
mod throughput;
pub mod wake;

pub use app::run::run;

/// The version, and the commit where the build was told it: `0.1.0+f2acb2d8`. `ops/package.sh` tells; a build that looked at git by
/// itself would be made anew for every commit.
pub const VERSION: &str = match option_env!("LANDFALL_VERSION") {
    Some(told) => told,
    None => env!("CARGO_PKG_VERSION"),
};
/// The same and the commit's date, for people.
pub const LONG_VERSION: &str = match option_env!("LANDFALL_LONG_VERSION") {
    Some(told) => told,
    None => concat!(env!("CARGO_PKG_VERSION"), " (built by hand: the commit was not recorded)"),
};

/// What every service and every background task of one scheduler shares. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Scheduler {
    pub pool: PgPool,
    /// The signals between services and tasks.
    pub wakes: Arc<wake::Wakes>,
    /// The newest embedding and its refined map.
    pub maps: Arc<jobs::locate::refined::Maps>,
    /// Positions by address, where the operator has a file of them.
    pub geoip: Option<Arc<app::geoip::GeoIp>>,
    /// The configuration, validated.
    pub config: Arc<config::Config>,
}

impl Scheduler {
    /// One that has just begun, and knows no positions by address.
    pub fn new(pool: PgPool, config: config::Config) -> Self {
        Self { pool, wakes: Arc::default(), maps: Arc::default(), geoip: None, config: Arc::new(config) }
    }
}
