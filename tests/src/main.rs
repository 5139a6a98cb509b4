//! The `lab` binary: lists its commands, logs to standard error, runs the command that the command
//! line names, and turns its result into an exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use landfall_lab::cluster::postgres::{WithPostgresArgs, with_postgres};
use landfall_lab::demo::{DemoArgs, demo};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;
#[cfg(feature = "experiments")]
use {
    landfall_lab::chaos::fault_tools::have_private_mounts,
    landfall_lab::chaos::report_and_rejudge::{JudgeArgs, rejudge},
    landfall_lab::chaos::{ChaosArgs, chaos},
    landfall_lab::dropped::{DroppedArgs, dropped},
    landfall_lab::experiments::bench::bench_site::{ServedSites, serve},
    landfall_lab::experiments::bench::crawl::{MeasuredArgs, print_cost},
    landfall_lab::experiments::bench::crowd::{CrowdArgs, crowd},
    landfall_lab::experiments::bench::{BenchArgs, bench},
    landfall_lab::experiments::paper::{PaperArgs, paper},
    landfall_lab::experiments::sweep::{SweepArgs, sweep},
};

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
    Experiment(Experiment),
    /// Run a command with DATABASE_URL set to a private Postgres
    WithPostgres(WithPostgresArgs),
}

// The commands that `make demo` does not build: benchmarks, fault injection, and the paper's
// experiments. This is no documentation comment, because clap would show it as that of `lab`.
#[cfg(feature = "experiments")]
#[derive(Debug, Subcommand)]
enum Experiment {
    /// Inject faults of every kind while a batch is crawled, and report what was lost or done twice
    Chaos(ChaosArgs),
    /// Judge a recorded run again
    Judge(JudgeArgs),
    /// Run the benchmarks, and print each figure with its target
    Bench(BenchArgs),
    /// Drop calls of every kind at random moments, and check that acknowledged writes are stored
    Dropped(DroppedArgs),
    /// Repeat the paper's experiments with real agents, and print and plot the results beside the
    /// paper's
    Paper(PaperArgs),
    /// Simulate the paper's experiment with every combination of its factors
    Sweep(SweepArgs),
    /// Serve the benchmarks' sites until standard input ends
    #[command(hide = true)]
    BenchSite(ServedSites),
    /// Crawl those sites concurrently, until killed
    #[command(hide = true)]
    BenchCrowd(CrowdArgs),
    /// Run a command, and print its cost as JSON
    #[command(hide = true)]
    Measured(MeasuredArgs),
}

#[cfg(feature = "experiments")]
impl Experiment {
    /// Makes the preparations that require a process with a single thread.
    fn prepare(&self) {
        if matches!(self, Self::Chaos(_)) {
            have_private_mounts();
        }
    }

    async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Chaos(args) => chaos(args).await?,
            Self::Judge(args) => return rejudge(&args),
            Self::Bench(args) => bench(&args)?,
            Self::Dropped(args) => dropped(args).await?,
            Self::Paper(args) => paper(args).await?,
            Self::Sweep(args) => sweep(&args)?,
            Self::BenchSite(served) => serve(served).await?,
            Self::BenchCrowd(args) => crowd(args).await?,
            Self::Measured(args) => print_cost(&args).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Runs the command and returns its exit code.
fn main() -> ExitCode {
    start_logging();
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

/// Starts logging to standard error, from the level that `RUST_LOG` names, or else from the level
/// warn. An invalid filter is reported and replaced by the default.
fn start_logging() {
    let text = std::env::var("RUST_LOG").unwrap_or_default();
    let default = Targets::new().with_default(Level::WARN);
    let (filter, refused) = match text.parse::<Targets>() {
        Ok(filter) if !text.is_empty() => (filter, None),
        Ok(_) => (default, None),
        Err(error) => (default, Some(error)),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).init();
    if let Some(error) = refused {
        tracing::warn!("RUST_LOG='{text}' is not a valid log filter ({error}): the default filter is used");
    }
}
