//! The command line of `lab`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::cluster::with_postgres::with_postgres;
use crate::demo::{DemoArgs, demo};

#[cfg(feature = "experiments")]
mod experiments;

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
    WithPostgres {
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

/// Runs the command and returns its exit code.
pub fn main() -> ExitCode {
    let filter = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(tracing::Level::WARN));
    tracing_subscriber::registry()
        .with(filter)
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr))
        .init();
    let lab = Lab::parse();
    #[cfg(feature = "experiments")]
    if let Command::Experiment(experiment) = &lab.command {
        experiment.prepare();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(async {
        match lab.command {
            Command::Demo(args) => demo(args).await.map(|()| ExitCode::SUCCESS),
            #[cfg(feature = "experiments")]
            Command::Experiment(experiment) => experiment.run().await,
            Command::WithPostgres { command } => with_postgres(&command).await,
        }
    });
    ended.unwrap_or_else(|error| {
        eprintln!("error: {}", landfall_scheduler::app::exit::sentence(&error));
        ExitCode::FAILURE
    })
}
