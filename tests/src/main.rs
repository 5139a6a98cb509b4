//! The `lab` binary: the demo, the trials of the weighted mean, and a private Postgres for tests.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use landfall_agent::probe::weighted_mean::trial;
use landfall_lab::balance::{BalanceArgs, balance};
use landfall_lab::bench::crawl::measured::measured;
use landfall_lab::bench::crawl::site::{Served, serve};
use landfall_lab::bench::crowd::{CrowdArgs, crowd};
use landfall_lab::bench::{BenchArgs, bench};
use landfall_lab::chaos::prepare::have_private_mounts;
use landfall_lab::chaos::rejudge::{JudgeArgs, rejudge};
use landfall_lab::chaos::{ChaosArgs, chaos};
use landfall_lab::demo::{DemoArgs, demo};
use landfall_lab::paper::{PaperArgs, paper};
use landfall_lab::sweep::{SweepArgs, sweep};
use landfall_lab::with_postgres::with_postgres;

/// The emulated network in which Landfall is proved.
#[derive(Debug, Parser)]
#[command(name = "lab", version)]
struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Crawl an emulated web with real agents, measure it and check it
    Demo(DemoArgs),
    /// Break everything that can break while a batch is crawled, and judge what was lost or done twice
    Chaos(ChaosArgs),
    /// Judge the record of a run again
    Judge(JudgeArgs),
    /// Show how well the weighted mean recovers distances, beside other estimators
    Trials {
        /// Draws the samples
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many trials
        #[arg(long, default_value_t = 10_000)]
        count: u32,
    },
    /// Measure what has a target, and print each figure beside it
    Bench(BenchArgs),
    /// Crawl a batch with agents of unequal rates, and compare its time with the least possible
    Balance(BalanceArgs),
    /// Redo the paper's experiments with real agents, print and plot them beside its numbers
    Paper(PaperArgs),
    /// Simulate the paper's experiment over the full product of its factors
    Sweep(SweepArgs),
    /// Serve sites that benchmarks crawl, until the standard input ends
    #[command(hide = true)]
    BenchSite(Served),
    /// Crawl those sites all at once, until killed
    #[command(hide = true)]
    BenchCrowd(CrowdArgs),
    /// Run a command, and print what it cost as JSON
    #[command(hide = true)]
    Measured {
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Run a command with DATABASE_URL set to a private Postgres
    WithPostgres {
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let lab = Lab::parse();
    if matches!(lab.command, Command::Chaos(_)) {
        have_private_mounts();
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
            Command::Chaos(args) => chaos(args).await.map(|()| ExitCode::SUCCESS),
            Command::Judge(args) => rejudge(&args),
            Command::Trials { seed, count } => {
                print!("{}", trial::trials(seed, count));
                println!("stopping once samples agree, in {count} trials");
                trial::stopping_trials(seed, count).iter().for_each(|line| println!("{line}"));
                Ok(ExitCode::SUCCESS)
            }
            Command::Bench(args) => bench(&args).map(|()| ExitCode::SUCCESS),
            Command::Balance(args) => balance(args).await.map(|()| ExitCode::SUCCESS),
            Command::Paper(args) => paper(args).await.map(|()| ExitCode::SUCCESS),
            Command::Sweep(args) => sweep(&args).map(|()| ExitCode::SUCCESS),
            Command::BenchSite(served) => serve(served).await.map(|()| ExitCode::SUCCESS),
            Command::BenchCrowd(args) => crowd(args).await.map(|()| ExitCode::SUCCESS),
            Command::Measured { command } => {
                println!("{}", serde_json::to_string(&measured(&command).await?)?);
                Ok(ExitCode::SUCCESS)
            }
            Command::WithPostgres { command } => with_postgres(&command).await,
        }
    });
    ended.unwrap_or_else(|error| {
        eprintln!("error: {}", landfall_scheduler::exit::sentence(&error));
        ExitCode::FAILURE
    })
}
