//! Writes the log to standard error: which lines (`--log`), and in which format (`--log-format`).

use clap::{Args, ValueEnum};
use landfall_proto::log::JsonLines;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use super::exit;

// A doc comment here would replace the description of the program in its help.
#[derive(Debug, Args)]
pub(super) struct LogArgs {
    /// What to log: a level (error, warn, info, debug or trace), or a tracing filter.
    #[arg(long, env = "LANDFALL_LOG", default_value = "info", global = true)]
    log: String,
    /// The format of log lines on standard error: for people, or one JSON object per line.
    #[arg(long, env = "LANDFALL_LOG_FORMAT", value_name = "FORMAT", default_value = "text", global = true)]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Writes the log lines that pass the filter to standard error.
pub(super) fn start_log(args: &LogArgs) -> anyhow::Result<()> {
    let LogArgs { log: filter, log_format } = args;
    let targets = filter.parse::<Targets>();
    let targets = targets.map_err(|error| exit::usage(format!("--log: '{filter}' is not a log filter: {error}")))?;
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(console::colors_enabled_stderr())
        .with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(targets);
    match log_format {
        LogFormat::Text => registry.with(lines).init(),
        LogFormat::Json => registry.with(lines.event_format(JsonLines::default())).init(),
    }
    Ok(())
}
