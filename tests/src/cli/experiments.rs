//! The commands that `make demo` does not build: benchmarks, faults, and the paper's experiments.

use std::process::ExitCode;

use clap::Subcommand;
use landfall_agent::probe::weighted_mean::trial;

use crate::chaos::prepare::have_private_mounts;
use crate::chaos::rejudge::{JudgeArgs, rejudge};
use crate::chaos::{ChaosArgs, chaos};
use crate::experiments::balance::{BalanceArgs, balance};
use crate::experiments::bench::crawl::measured::measured;
use crate::experiments::bench::crawl::site::{ServedSites, serve};
use crate::experiments::bench::crowd::{CrowdArgs, crowd};
use crate::experiments::bench::{BenchArgs, bench};
use crate::experiments::paper::{PaperArgs, paper};
use crate::experiments::sweep::{SweepArgs, sweep};

#[derive(Debug, Subcommand)]
pub(super) enum Experiment {
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
    BenchSite(ServedSites),
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
}

impl Experiment {
    /// What must be done while the process has one thread.
    pub(super) fn prepare(&self) {
        if matches!(self, Self::Chaos(_)) {
            have_private_mounts();
        }
    }

    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Chaos(args) => chaos(args).await?,
            Self::Judge(args) => return rejudge(&args),
            Self::Trials { seed, count } => {
                print!("{}", trial::trials(seed, count));
                println!("stopping once samples agree, in {count} trials");
                trial::stopping_trials(seed, count).iter().for_each(|line| println!("{line}"));
            }
            Self::Bench(args) => bench(&args)?,
            Self::Balance(args) => balance(args).await?,
            Self::Paper(args) => paper(args).await?,
            Self::Sweep(args) => sweep(&args)?,
            Self::BenchSite(served) => serve(served).await?,
            Self::BenchCrowd(args) => crowd(args).await?,
            Self::Measured { command } => println!("{}", serde_json::to_string(&measured(&command).await?)?),
        }
        Ok(ExitCode::SUCCESS)
    }
}
