//! How the binary ends: one sentence on standard error and a code; never a backtrace for what a person can mend.
//!
//! 0: done. 1: it could not be done. 2: what was asked makes no sense as asked (also clap's code).

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// What was asked makes no sense as asked: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A usage error as `anyhow` carries it.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(message.into()))
}

/// Reports how the command ended.
pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if reader_is_gone(&error) {
        return ExitCode::SUCCESS;
    }
    // Nobody is left to tell when standard error is closed.
    drop(writeln!(std::io::stderr(), "error: {}", sentence(&error)));
    if error.chain().any(<dyn std::error::Error>::is::<Usage>) { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// The chain of causes as one line; a cause that its parent already quotes is not said twice.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string().trim().replace('\n', " ");
        if !text.is_empty() && !parts.last().is_some_and(|said| said.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

/// `landfall report … | head` closes the pipe: the reader has what it wants.
fn reader_is_gone(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe))
        && error.chain().any(<dyn std::error::Error>::is::<ReaderGone>)
}

/// Marks an error of writing to standard output, as opposed to a socket's.
#[derive(Debug, thiserror::Error)]
#[error("write to standard output")]
pub struct ReaderGone(#[source] pub std::io::Error);

/// Writes to standard output.
///
/// # Errors
/// When it cannot be written; a closed pipe ends the command quietly, see [`report`].
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| anyhow::Error::new(ReaderGone(error)))
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_chain_is_one_line_without_echoes() {
        let error = Err::<(), _>(anyhow::anyhow!("connection refused\nby peer"))
            .context("connect: connection refused by peer")
            .context("ask the scheduler")
            .unwrap_err();
        assert_eq!(sentence(&error), "ask the scheduler: connect: connection refused by peer");
    }
}
