//! How the agent's binary ends: one sentence on standard error, and an exit code from the table
//! that `landfall --help` prints.

use std::process::ExitCode;

/// The exit codes of a command, the same as `landfall`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    NotDone = 1,
    /// The invocation is invalid (also clap's code).
    Usage = 2,
    /// The given site does not respond, or refuses.
    SiteFailed = 3,
    /// Another machine was enrolled in this agent's place: the agent must not be restarted.
    Replaced = 5,
    /// Ctrl-C or SIGTERM interrupted it: 128 + SIGINT, as in shells.
    Interrupted = 130,
}

/// The codes as shown in help.
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

/// An error with this code, for `anyhow`.
pub fn exit_error(code: Code, message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(ExitError { code, message: message.into() })
}

pub fn usage(message: impl Into<String>) -> anyhow::Error {
    exit_error(Code::Usage, message)
}

pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("error: {}", format!("{error:#}").replace('\n', " "));
    let ended = error.chain().find_map(|cause| cause.downcast_ref::<ExitError>());
    ExitCode::from(ended.map_or(Code::NotDone, |ended| ended.code) as u8)
}
