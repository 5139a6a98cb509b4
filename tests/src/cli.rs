//! Lists the commands of `lab`.

use clap::{Parser, Subcommand};

use crate::cluster::postgres::WithPostgresArgs;
use crate::demo::DemoArgs;

pub use self::dispatch::main;

mod dispatch;
#[cfg(feature = "experiments")]
mod experiments;
mod logging;

/// The emulated network in which Landfall is tested.
#[derive(Debug, Parser)]
#[command(name = "lab", version)]
struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Crawl an emulated web with real agents, and measure and check the crawl
    Demo(DemoArgs),
    #[cfg(feature = "experiments")]
    #[command(flatten)]
    Experiment(experiments::Experiment),
    /// Run a command with DATABASE_URL set to a private Postgres
    WithPostgres(WithPostgresArgs),
}
