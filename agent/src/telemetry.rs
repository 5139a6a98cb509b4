//! Sets up tracing: lines on stderr, filtered by `--log` (default `info`).

use std::io::IsTerminal;

use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::prelude::*;

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("read the log filter '{filter}'")]
pub struct BadFilter {
    filter: String,
    #[source]
    source: ParseError,
}

/// Starts writing log lines.
pub fn start(filter: &str) -> Result<(), BadFilter> {
    let targets: Targets = filter.parse().map_err(|source| BadFilter { filter: filter.to_owned(), source })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    tracing_subscriber::registry().with(targets).with(lines).init();
    Ok(())
}
