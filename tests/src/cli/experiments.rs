//! The commands that `make demo` does not build: benchmarks, fault injection, and the paper's
//! experiments.

use std::process::ExitCode;

use clap::Subcommand;

use crate::chaos::fault_tools::have_private_mounts;
use crate::chaos::report_and_rejudge::{JudgeArgs, rejudge};
use crate::chaos::{ChaosArgs, chaos};
use crate::experiments::bench::crawl::measured::{MeasuredArgs, print_cost};
use crate::experiments::bench::crawl::site::{ServedSites, serve};
use crate::experiments::bench::crowd::{CrowdArgs, crowd};
use crate::experiments::bench::{BenchArgs, bench};
use crate::experiments::estimator_trials::{TrialsArgs, estimator_trials};
use crate::experiments::paper::{PaperArgs, paper};
use crate::experiments::sweep::{SweepArgs, sweep};

#[derive(Debug, Subcommand)]
pub(super) enum Experiment {
    /// Inject faults of every kind while a batch is crawled, and report what was lost or done twice
    Chaos(ChaosArgs),
    /// Judge a recorded run again
    Judge(JudgeArgs),
    /// Compare the weighted mean with other estimators of distance
    Trials(TrialsArgs),
    /// Run the benchmarks, and print each figure with its target
    Bench(BenchArgs),
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

impl Experiment {
    /// Makes the preparations that require a process with a single thread.
    pub(super) fn prepare(&self) {
        if matches!(self, Self::Chaos(_)) {
            have_private_mounts();
        }
    }

    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Chaos(args) => chaos(args).await?,
            Self::Judge(args) => return rejudge(&args),
            Self::Trials(args) => estimator_trials(args),
            Self::Bench(args) => bench(&args)?,
            Self::Paper(args) => paper(args).await?,
            Self::Sweep(args) => sweep(&args)?,
            Self::BenchSite(served) => serve(served).await?,
            Self::BenchCrowd(args) => crowd(args).await?,
            Self::Measured(args) => print_cost(&args).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
