//! Runs the command that the command line of `lab` names, and turns its result into an exit code.

use std::process::ExitCode;

use clap::Parser;

use super::logging;
use crate::cli::{Command, Lab};
use crate::cluster::postgres::with_postgres;
use crate::demo::demo;

/// Runs the command and returns its exit code.
pub fn main() -> ExitCode {
    logging::init();
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
            Command::WithPostgres(args) => with_postgres(&args).await,
        }
    });
    ended.unwrap_or_else(|error| {
        eprintln!("error: {}", landfall_scheduler::app::exit::sentence(&error));
        ExitCode::FAILURE
    })
}
