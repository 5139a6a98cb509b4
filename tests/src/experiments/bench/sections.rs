//! `lab bench`: its arguments, and its sections in the order in which they run.

use std::time::Instant;

use anyhow::bail;
use clap::{Args, Subcommand};

use super::line::Line;
use super::{
    accuracy, crawl, crowd, decide, leases_backup_traces, million, plan_and_report, speed_and_refined, status, submits,
    trust, waiting, warc,
};

/// Arguments of `lab bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// Only these sections [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    #[command(subcommand)]
    long: Option<LongSection>,
}

/// Benchmarks that take long and run only on request.
#[derive(Debug, Subcommand)]
enum LongSection {
    /// Measure the cost of waiting tasks; takes half an hour or more
    Waiting(waiting::WaitingArgs),
}

/// Runs an async section on the current tokio runtime.
fn block<T>(measure: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(measure))
}

/// The name of a section, and the function that runs it.
type Section = (&'static str, fn() -> anyhow::Result<Vec<Line>>);

/// Sections in the order in which they run. `waiting` runs only as a subcommand.
const SECTIONS: &[Section] = &[
    ("accuracy", accuracy::run),
    ("backup", || block(leases_backup_traces::backup())),
    ("crawl", || block(crawl::run())),
    ("crowd", || block(crowd::run())),
    ("decide", decide::run),
    ("leases", || block(leases_backup_traces::leases())),
    ("million", || block(million::run())),
    ("plan", || block(plan_and_report::plan())),
    ("refined", speed_and_refined::refined),
    ("report", || block(plan_and_report::report())),
    ("speed", speed_and_refined::speed),
    ("status", || block(status::run())),
    ("submits", || block(submits::run())),
    ("traces", || block(leases_backup_traces::traces())),
    ("trust", trust::run),
    ("warc", || block(warc::run())),
];

/// Runs the sections and prints their lines. A missed target is not an error.
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
