//! The command line: `run`, `enrol`, `doctor`, `probe` and `crawl`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use landfall_proto::log::JsonLines;
use tokio::runtime::Builder;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::LONG_VERSION;
use crate::cli::doctor::examine;

mod crawl;
pub(crate) mod doctor;
mod enrol;
mod exit;
mod policy;
mod probe;
mod progress;
mod request;
mod run;

/// Number of worker threads of the tokio runtime. Two are enough, because an agent mostly waits for
/// the network. The number is small because thirty agents may share one machine.
const WORKERS: usize = 2;

/// The Landfall agent: measures and crawls web sites for a Landfall scheduler.
#[derive(Debug, Parser)]
#[command(name = "landfall-agent", version = LONG_VERSION, propagate_version = true, after_help = exit::TABLE)]
struct Cli {
    /// What to log: a level (error, warn, info, debug or trace), or a tracing filter.
    #[arg(long, env = "LANDFALL_LOG", default_value = "info", global = true)]
    log: String,
    /// The format of log lines on standard error: for people, or one JSON object per line.
    #[arg(long, env = "LANDFALL_LOG_FORMAT", value_name = "FORMAT", default_value = "text", global = true)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
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
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write a manual page for each command into a folder.
    #[command(hide = true)]
    Man {
        /// The folder.
        folder: PathBuf,
    },
}

pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command on a suitable tokio runtime, and returns the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut builder = match cli.command {
        // `crawl` rarely has two tokio tasks to run at the same time, so a second thread costs more
        // than it gains.
        Command::Crawl(_) => Builder::new_current_thread(),
        Command::Run(_) | Command::Enrol(_) | Command::Doctor(_) | Command::Probe(_) => Builder::new_multi_thread(),
        Command::Completions { .. } | Command::Man { .. } => Builder::new_current_thread(),
    };
    let runtime = builder.worker_threads(WORKERS).enable_all().build();
    exit::report(runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let result = runtime.block_on(cli.run());
        runtime.shutdown_background();
        result
    }))
}

impl Cli {
    async fn run(self) -> anyhow::Result<()> {
        start_log(&self.log, self.log_format)?;
        match self.command {
            Command::Run(args) => run::run(args).await,
            Command::Enrol(args) => enrol::enrol_agent(args).await,
            Command::Doctor(args) => doctor(args).await,
            Command::Probe(args) => probe::run(args).await,
            Command::Crawl(args) => crawl::run(args).await,
            Command::Completions { shell } => {
                clap_complete::generate(shell, &mut command(), "landfall-agent", &mut std::io::stdout());
                Ok(())
            }
            Command::Man { folder } => write_manual(&folder),
        }
    }
}

/// Writes a manual page for each command into a folder.
fn write_manual(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command(), folder))
        .with_context(|| format!("write the manual into {}", folder.display()))
}

/// Writes the log lines that pass the filter to standard error.
fn start_log(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let targets = filter.parse::<Targets>();
    let targets = targets.map_err(|error| exit::usage(format!("--log: '{filter}' is not a log filter: {error}")))?;
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(console::colors_enabled_stderr())
        .with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(targets);
    match format {
        LogFormat::Text => registry.with(lines).init(),
        LogFormat::Json => registry.with(lines.event_format(JsonLines::default())).init(),
    }
    Ok(())
}

async fn doctor(args: run::RunArgs) -> anyhow::Result<()> {
    let results = examine(&args.configuration()?).await;
    let text: String = results.iter().map(ToString::to_string).collect();
    std::io::stdout().write_all(text.as_bytes()).context("print the results")?;
    let wrong = results.iter().filter(|result| result.is_wrong()).count();
    match wrong {
        0 => Ok(()),
        wrong => Err(exit::exit_error(exit::Code::NotDone, format!("{wrong} of {} checks failed", results.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_of_the_manual() {
        let folder = tempfile::tempdir().unwrap();
        write_manual(folder.path()).unwrap();
        for command in command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let page = folder.path().join(format!("landfall-agent-{}.1", command.get_name()));
            assert!(page.is_file(), "{}", page.display());
        }
        assert!(folder.path().join("landfall-agent.1").is_file());
    }
}
