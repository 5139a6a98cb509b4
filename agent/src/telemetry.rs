//! Sets up tracing: lines on stderr, filtered by `--log` (default `info`).

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("read the log filter '{filter}'")]
pub struct BadFilter {
    filter: String,
    #[source]
    source: tracing_subscriber::filter::ParseError,
}

/// Starts writing log lines.
pub fn start(filter: &str) -> Result<(), BadFilter> {
    let parsed = EnvFilter::try_new(filter).map_err(|source| BadFilter { filter: filter.to_owned(), source })?;
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_target(false)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}
