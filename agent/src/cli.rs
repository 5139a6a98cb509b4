//! The command line: `run`, `enrol`, `doctor`, `probe` and `crawl`.

pub use dispatch::main;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::LONG_VERSION;

mod completions_and_man;
mod crawl;
mod dispatch;
mod doctor;
mod enrol;
mod exit;
mod log;
mod policy;
mod probe;
mod request;
mod run;

/// The Landfall agent: measures and crawls web sites for a Landfall scheduler.
#[derive(Debug, Parser)]
#[command(name = "landfall-agent", version = LONG_VERSION, propagate_version = true, after_help = exit::TABLE)]
struct Cli {
    #[command(flatten)]
    log: log::LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent: measure and crawl for the scheduler with which it is enrolled.
    Run(run::RunArgs),
    /// Exchange a one-time token for a credential.
    Enrol(enrol::EnrolArgs),
    /// Check everything that the agent needs: scheduler, credential, clock, beacon, name server,
    /// disks. The exit code is 1 if a check fails.
    Doctor(run::RunArgs),
    /// Measure the round trip to a URL, and print a line for each sample.
    Probe(probe::ProbeArgs),
    /// Crawl one site, and print the outcome.
    Crawl(crawl::CrawlArgs),
    /// Print completions for a shell. The Debian package installs those for bash, zsh and fish.
    Completions(completions_and_man::CompletionsArgs),
    /// Write a manual page for each command into a folder.
    #[command(hide = true)]
    Man(completions_and_man::ManArgs),
}

pub fn command() -> clap::Command {
    Cli::command()
}
