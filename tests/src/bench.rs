//! Benchmarks: each figure beside its target, one line each.
//!
//! A section is one module of `bench`, named in `SECTIONS`. Machines are noisy: a section that times compares ratios of
//! at least five interleaved runs in one process and prints medians.

use std::time::Instant;

use anyhow::bail;
use clap::{Args, Subcommand};

mod accuracy;
mod anycast;
pub mod crawl;
pub mod crowd;
mod decide;
mod dedupe;
mod dns;
mod drift;
mod economy;
mod leases;
mod loads;
mod million;
mod plain;
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
    long: Option<Long>,
}

/// What takes so long that it only runs when it is asked for.
#[derive(Debug, Subcommand)]
enum Long {
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
    /// A figure that must be at most `target`.
    pub fn at_most(what: impl Into<String>, figure: f64, target: f64) -> Self {
        Self {
            what: what.into(),
            figure: format!("{figure:.4}"),
            target: format!("<= {target}"),
            met: Some(figure <= target),
        }
    }

    /// A figure that must be at least `target`.
    pub fn at_least(what: impl Into<String>, figure: f64, target: f64) -> Self {
        Self {
            what: what.into(),
            figure: format!("{figure:.4}"),
            target: format!(">= {target}"),
            met: Some(figure >= target),
        }
    }

    /// A figure without a target.
    pub fn plain(what: impl Into<String>, figure: impl Into<String>) -> Self {
        Self { what: what.into(), figure: figure.into(), target: String::new(), met: None }
    }
}

/// A section: its name, and what runs it.
type Section = (&'static str, fn() -> anyhow::Result<Vec<Line>>);

/// Every section, in the order in which they run.
const SECTIONS: &[Section] = &[
    ("accuracy", accuracy::run),
    ("anycast", anycast::run),
    ("backup", leases::backup::run),
    ("crawl", crawl::run),
    ("crowd", crowd::run),
    ("decide", decide::run),
    ("dedupe", dedupe::run),
    ("dns", dns::run),
    ("drift", drift::run),
    ("economy", economy::run),
    ("leases", leases::run),
    ("loads", loads::run),
    ("million", million::run),
    ("plain", plain::run),
    ("plan", plan::run),
    ("refined", refined::run),
    ("speed", speed::run),
    ("submits", leases::submits::run),
    ("trust", trust::run),
    ("tun", tun::run),
    ("warc", warc::run),
];

/// Runs the sections and prints their lines.
///
/// # Errors
/// When a name is unknown or a section fails; a missed target is printed, not an error.
pub fn bench(args: &BenchArgs) -> anyhow::Result<()> {
    if let Some(Long::Waiting(args)) = &args.long {
        return print("waiting", || waiting::run(args));
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
