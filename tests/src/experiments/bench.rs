//! Benchmarks: each figure beside its target, one line each.
//!
//! A section is one module of `bench`, named in `SECTIONS`. Machines are noisy: a section that times compares ratios of
//! at least five interleaved runs in one process and prints medians.

use std::path::Path;
use std::time::Instant;

use anyhow::bail;
use clap::{Args, Subcommand};
use landfall_scheduler::model::stats;
use landfall_scheduler::simulate::Matrix;

use crate::experiments::sweep::DATA;

mod accuracy;
pub mod crawl;
pub mod crowd;
mod decide;
mod leases;
mod million;
mod plan;
mod refined;
mod speed;
mod trust;
mod tun;
mod waiting;
mod warc;

/// What may be typed after `lab bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// Only these sections [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    #[command(subcommand)]
    long: Option<LongSection>,
}

/// What takes so long that it only runs when it is asked for.
#[derive(Debug, Subcommand)]
enum LongSection {
    /// Watch what tasks cost that merely wait; half an hour and more
    Waiting(waiting::WaitingArgs),
}

/// One figure beside its target.
#[derive(Debug, Clone)]
pub struct Line {
    /// What was measured, in which unit.
    pub what: String,
    /// The figure, as printed.
    pub figure: String,
    /// The target, as printed; empty when there is none.
    pub target: String,
    /// Whether it is met; `None` when there is no target.
    pub met: Option<bool>,
}

impl Line {
    /// A figure that must be at most the target, where there is one.
    pub fn at_most(what: impl Into<String>, figure: f64, target: impl Into<Option<f64>>) -> Self {
        let target = target.into();
        Self {
            what: what.into(),
            figure: format!("{figure:.4}"),
            target: target.map_or_else(String::new, |target| format!("<= {target}")),
            met: target.map(|target| figure <= target),
        }
    }

    /// A figure that must be at least the target, where there is one.
    pub fn at_least(what: impl Into<String>, figure: f64, target: impl Into<Option<f64>>) -> Self {
        let target = target.into();
        Self {
            what: what.into(),
            figure: format!("{figure:.4}"),
            target: target.map_or_else(String::new, |target| format!(">= {target}")),
            met: target.map(|target| figure >= target),
        }
    }

    /// A figure without a target.
    pub fn plain(what: impl Into<String>, figure: impl Into<String>) -> Self {
        Self { what: what.into(), figure: figure.into(), target: String::new(), met: None }
    }

    /// In place of figures on a matrix that is absent.
    fn skipped(matrix: &str) -> Self {
        Self::plain(format!("skipped: the measured matrix {matrix} is absent"), "")
    }
}

/// The measured matrices, beside the repository.
const PLANETLAB: &str = "planetlab490";
const SEATTLE: &str = "seattle99";

/// Reads one of them; `None` where it is absent.
fn matrix(name: &str) -> anyhow::Result<Option<Matrix>> {
    let file = Path::new(DATA).join(format!("{name}.matrix.csv.gz"));
    Ok(if file.exists() { Some(Matrix::read(&file)?) } else { None })
}

/// The middle one, or the greater of the two; not a number where there is none.
fn median(values: Vec<f64>) -> f64 {
    stats::median(values).unwrap_or(f64::NAN)
}

/// Runs a section that needs the runtime on which the command already runs.
fn block<T>(measure: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(measure))
}

/// A section: its name, and what runs it.
type Section = (&'static str, fn() -> anyhow::Result<Vec<Line>>);

/// Every section, in the order in which they run.
const SECTIONS: &[Section] = &[
    ("accuracy", accuracy::run),
    ("backup", || block(leases::backup::run())),
    ("crawl", || block(crawl::run())),
    ("crowd", || block(crowd::run())),
    ("decide", decide::run),
    ("leases", || block(leases::run())),
    ("million", || block(million::run())),
    ("plan", || block(plan::run())),
    ("refined", refined::run),
    ("speed", speed::run),
    ("submits", || block(leases::submits::run())),
    ("trust", trust::run),
    ("tun", tun::run),
    ("warc", || block(warc::run())),
];

/// Runs the sections and prints their lines. A missed target is printed, and is no error.
pub fn bench(args: &BenchArgs) -> anyhow::Result<()> {
    if let Some(LongSection::Waiting(args)) = &args.long {
        return print("waiting", || block(waiting::run(args)));
    }
    if let Some(unknown) = args.only.iter().find(|only| !SECTIONS.iter().any(|(name, _)| name == only)) {
        let names: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
        bail!("--only: there is no section '{unknown}'; there are {}", names.join(", "));
    }
    for (name, run) in SECTIONS {
        if !args.only.is_empty() && !args.only.iter().any(|only| only == name) {
            continue;
        }
        print(name, run)?;
    }
    Ok(())
}

/// Runs one section and prints its lines.
fn print(name: &str, run: impl FnOnce() -> anyhow::Result<Vec<Line>>) -> anyhow::Result<()> {
    let started = Instant::now();
    let lines = run()?;
    println!("\n{name} ({:.1} s)", started.elapsed().as_secs_f64());
    for line in lines {
        let verdict = line.met.map_or("", |met| if met { "ok" } else { "MISSED" });
        println!("  {:<72} {:>12} {:>12} {verdict}", line.what, line.figure, line.target);
    }
    Ok(())
}
