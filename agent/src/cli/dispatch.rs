//! Starts a suitable tokio runtime, runs the command on it, and returns the exit code.

use std::process::ExitCode;

use clap::Parser as _;
use tokio::runtime::Builder;

use super::{Cli, Command, command, completions_and_man, crawl, doctor, enrol, exit, probe, run};
use crate::cli::log::start_log;

/// Number of worker threads of the tokio runtime. Two are enough, because an agent mostly waits for
/// the network. The number is small because thirty agents may share one machine.
const WORKERS: usize = 2;

/// Runs the command on a suitable tokio runtime, and returns the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut builder = match cli.command {
        // `crawl` rarely has two tokio tasks to run at the same time, so a second thread costs more
        // than it gains.
        Command::Crawl(_) => Builder::new_current_thread(),
        Command::Run(_) | Command::Enrol(_) | Command::Doctor(_) | Command::Probe(_) => Builder::new_multi_thread(),
        Command::Completions(_) | Command::Man(_) => Builder::new_current_thread(),
    };
    let runtime = builder.worker_threads(WORKERS).enable_all().build();
    exit::report(runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let result = runtime.block_on(dispatch(cli));
        runtime.shutdown_background();
        result
    }))
}

async fn dispatch(cli: Cli) -> anyhow::Result<()> {
    start_log(&cli.log)?;
    match cli.command {
        Command::Run(args) => run::run(args).await,
        Command::Enrol(args) => enrol::enrol_agent(args).await,
        Command::Doctor(args) => doctor::run(args).await,
        Command::Probe(args) => probe::run(args).await,
        Command::Crawl(args) => crawl::run(args).await,
        Command::Completions(args) => {
            completions_and_man::print_completions(&args, command());
            Ok(())
        }
        Command::Man(args) => completions_and_man::write_pages(&args, command()),
    }
}
