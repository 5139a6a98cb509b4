//! Ends the program with an exit code and, after an error, one sentence on standard error; prints
//! results, and quotes words for the commands in them.
//!
//! `landfall --help` prints [`CODES`], the meanings of the exit codes. `on_signal` and
//! [`unless_interrupted`] stop long commands at a signal.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code of a command. Scripts may rely on the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Done = 0,
    /// The command failed, but may succeed later.
    NotDone = 1,
    /// The request is invalid. clap uses the same code.
    Usage = 2,
    SitesFailed = 3,
    TimedOut = 4,
    Attention = 5,
    /// Ctrl-C or SIGTERM interrupted the command. The code is 128 + SIGINT, as in shells.
    Interrupted = 130,
}

pub const CODES: [(Code, &str); 7] = [
    (Code::Done, "everything requested was done"),
    (Code::NotDone, "the command failed, or doctor found a fault; standard error gives the reason"),
    (Code::Usage, "the command is invalid as typed, and cannot succeed"),
    (Code::SitesFailed, "the command succeeded, but sites failed (sites watch, sites submit --watch, batches wait)"),
    (Code::TimedOut, "the time limit (--timeout) passed before the command was done"),
    (Code::Attention, "something needs attention (status --check)"),
    (Code::Interrupted, "interrupted by Ctrl-C"),
];

/// [`CODES`] as text for the help.
pub fn table() -> String {
    let line = |(code, meaning): &(Code, &str)| format!("\n  {:>3}  {meaning}", *code as u8);
    format!("Exit codes:{}", CODES.iter().map(line).collect::<String>())
}

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ExitError {
    code: Code,
    message: String,
}

/// An `anyhow` error that ends the program with the given code.
pub fn ended(code: Code, message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(ExitError { code, message: message.into() })
}

pub fn usage(message: impl Into<String>) -> anyhow::Error {
    ended(Code::Usage, message)
}

/// Runs the work. If Ctrl-C interrupts it, returns an error with the text of `left`, which
/// describes the state that the interrupted work leaves. If that text is empty, the program ends
/// without a message.
pub async fn unless_interrupted<T>(
    work: impl Future<Output = anyhow::Result<T>>,
    left: impl FnOnce() -> String,
) -> anyhow::Result<T> {
    tokio::select! {
        // The branches are polled in order, so that the signal is already awaited when the work
        // begins.
        biased;
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.context("listen for Ctrl-C")?;
            Err(ended(Code::Interrupted, left()))
        }
        done = work => done,
    }
}

/// Prints the error, if there is one. Returns the exit code.
pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if reader_is_gone(&error) {
        return ExitCode::SUCCESS;
    }
    let ended = error.chain().find_map(|cause| cause.downcast_ref::<ExitError>());
    let code = ended.map_or(Code::NotDone, |ended| ended.code);
    let message = sentence(&error);
    let line = match code {
        Code::Interrupted if message.is_empty() => return ExitCode::from(code as u8),
        Code::Interrupted => message,
        _ => format!("{} {message}", console::style("error:").red().bold().for_stderr()),
    };
    // If standard error is closed, nobody can read the message.
    drop(writeln!(std::io::stderr(), "{line}"));
    ExitCode::from(code as u8)
}

/// The chain of causes as one line, without causes that the preceding cause already quotes. Control
/// characters are removed, because a cause may quote a text from the network.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string().trim().replace('\n', " ");
        if !text.is_empty() && !parts.last().is_some_and(|parent| parent.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ").replace(char::is_control, " ")
}

/// Whether the reader of standard output has closed the pipe, as `landfall report … | head` does.
fn reader_is_gone(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe))
        && error.chain().any(<dyn std::error::Error>::is::<ReaderGone>)
}

/// Marks a failed write to standard output, to distinguish it from an error of a socket.
#[derive(Debug, thiserror::Error)]
#[error("write to standard output")]
pub struct ReaderGone(#[source] pub std::io::Error);

/// Writes to standard output. If the pipe is closed, the command ends without a message (see
/// [`report`]).
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(written)
}

/// The error for a failed write to standard output.
pub fn written(error: std::io::Error) -> anyhow::Error {
    anyhow::Error::new(ReaderGone(error))
}

/// Returns a cancellation token that is cancelled at the first SIGINT or SIGTERM. The second signal
/// ends the process and its private Postgres at once.
pub(crate) fn on_signal() -> anyhow::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let shutdown = CancellationToken::new();
    let cancelled = shutdown.clone();
    tokio::spawn(async move {
        for drained in [true, false] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if drained {
                tracing::info!("stopping; a second signal stops at once");
                cancelled.cancel();
            } else {
                tracing::warn!("stopped at the second signal, before everything was drained");
                std::process::exit(i32::from(Code::Interrupted as u8));
            }
        }
    });
    Ok(shutdown)
}

/// Quotes a word for a shell if needed.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=@%+,[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_one_line_without_echoes() {
        let error = Err::<(), _>(anyhow::anyhow!("connection refused\nby peer"))
            .context("connect: connection refused by peer")
            .context("ask the scheduler")
            .unwrap_err();
        assert_eq!(sentence(&error), "ask the scheduler: connect: connection refused by peer");
        assert_eq!(sentence(&anyhow::anyhow!("\u{1b}[2Jgone\u{9b}31m")), " [2Jgone 31m");
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("/var/lib/landfall"), "/var/lib/landfall");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
        assert_eq!(quoted(""), "''");
    }
}
