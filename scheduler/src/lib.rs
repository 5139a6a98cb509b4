//! The Landfall scheduler, and the operator's commands.
//!
//! The modules `model`, `gnp`, `strategy`, `simulate` (except where it reads files), `plot`,
//! `status`, `throughput` and `capacity` are the pure core. These modules use no tokio, sqlx,
//! tonic, clock or environment. Only `store` contains SQL. `grpc` and `jobs` exchange data through
//! the store, and wake each other through `wake::Wakes`.

use std::sync::Arc;

pub mod app;
mod capacity;
pub mod cli;
pub mod config;
pub mod gnp;
pub mod grpc;
mod jobs;
pub mod machine;
pub mod model;
pub mod plot;
pub mod simulate;
mod status;
pub mod store;
pub mod strategy;
mod telemetry;
mod throughput;
mod wake;
mod web;

pub use app::run::run;

/// The version, followed by the commit if it was passed to the build: `0.1.0+f2acb2d8`.
/// `ops/package.sh` passes the commit. The build does not read it from git, so a new commit alone
/// causes no rebuild.
pub const VERSION: &str = match option_env!("LANDFALL_VERSION") {
    Some(told) => told,
    None => env!("CARGO_PKG_VERSION"),
};
/// The version with the commit and its date, for display.
pub const LONG_VERSION: &str = match option_env!("LANDFALL_LONG_VERSION") {
    Some(told) => told,
    None => concat!(env!("CARGO_PKG_VERSION"), " (built by hand: the commit was not recorded)"),
};

/// State that all services and jobs of one scheduler share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Scheduler {
    /// The connections of agents' sessions and jobs.
    pub db: store::Db,
    /// The connections of operators' calls and pages, so that these never starve the agents.
    pub operators: store::Db,
    /// The connection that tells whether the scheduler is ready.
    pub readiness: store::Db,
    /// The servers of the database, for connections outside the pool.
    pub servers: store::servers::Servers,
    /// The places for submissions, which bound the memory that they take.
    pub submissions: grpc::submission_places::SubmissionPlaces,
    pub wakes: Arc<wake::Wakes>,
    pub maps: Arc<jobs::refined_map::MapCache>,
    /// Positions of IP addresses; `None` unless the operator configured a file of them.
    pub geoip: Option<Arc<jobs::geoip::GeoIp>>,
    pub config: Arc<config::Config>,
    /// The disk of the data directory, whose space the scheduler reports; `None` in tests.
    pub disk: Option<machine::disk::DiskWatch>,
    /// The answers that operators' calls and pages share.
    pub answers: Arc<grpc::answers::SharedAnswers>,
    /// The limits of what strangers may take of this scheduler.
    pub port: Arc<grpc::port::Port>,
}

impl Scheduler {
    /// A scheduler that has just started, without positions of IP addresses.
    pub fn new(db: store::Db, servers: store::servers::Servers, config: config::Config) -> Self {
        Self {
            servers,
            operators: db.clone(),
            readiness: db.clone(),
            db,
            submissions: grpc::submission_places::SubmissionPlaces::default(),
            wakes: Arc::default(),
            maps: Arc::new(jobs::refined_map::MapCache::new(config.map)),
            geoip: None,
            port: Arc::new(grpc::port::Port::new(config.port.clone())),
            config: Arc::new(config),
            disk: None,
            answers: Arc::default(),
        }
    }
}
