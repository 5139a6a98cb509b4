//! How a command ends: on Ctrl-C or SIGTERM, or with one sentence on standard error and one of the
//! exit codes that `landfall-agent --help` lists.

use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit codes, the same as those of `landfall`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    NotDone = 1,
    /// The command line is invalid. clap uses the same code.
    Usage = 2,
    /// The given site does not respond, or refuses the requests.
    SiteFailed = 3,
    /// Another machine was enrolled under this agent's name, so this agent must not be restarted.
    Replaced = 5,
    /// Ctrl-C or SIGTERM interrupted the command. As in shells, the code is 128 + SIGINT.
    Interrupted = 130,
}

/// The exit codes as listed in the help text.
pub const TABLE: &str = "\
Exit codes:
    0  success; a stopped agent has handed its leases back
    1  failure; standard error gives the reason
    2  the command line, or a file that it names, is invalid
    3  the site does not answer, or refuses the request (probe, crawl)
    5  another machine was enrolled in this agent's place (run)
  130  interrupted by Ctrl-C";

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ExitError {
    code: Code,
    message: String,
}

/// Makes an `anyhow` error that ends the command with this exit code.
pub fn exit_error(code: Code, message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(ExitError { code, message: message.into() })
}

pub fn usage(message: impl Into<String>) -> anyhow::Error {
    exit_error(Code::Usage, message)
}

pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    // A cause may quote text from the network. Control characters in it could change the terminal.
    let message = format!("{error:#}").replace(char::is_control, " ");
    eprintln!("{} {message}", console::style("error:").red().bold().for_stderr());
    let ended = error.chain().find_map(|cause| cause.downcast_ref::<ExitError>());
    ExitCode::from(ended.map_or(Code::NotDone, |ended| ended.code) as u8)
}

/// On the first signal the agent returns its leases and stops; on the second it exits immediately.
pub(super) fn stop_on_signals(stop: &CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let stop = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if stop.is_cancelled() {
                std::process::exit(i32::from(Code::Interrupted as u8));
            }
            stop.cancel();
        }
    });
    Ok(())
}
