//! Log lines to standard error. `RUST_LOG` chooses them (default: `info` and above); standard output is for what was asked.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Postgres' notices are about its own commands ("relation exists, skipping"): nothing to tell a person.
const DEFAULT: &str = "info,sqlx::postgres::notice=warn";

/// Starts logging. A filter that cannot be read is reported and replaced by the default.
pub fn start() {
    let (filter, refused) = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => match EnvFilter::try_new(&text) {
            Ok(filter) => (filter, None),
            Err(error) => (EnvFilter::new(DEFAULT), Some(format!("'{text}': {error}"))),
        },
        _ => (EnvFilter::new(DEFAULT), None),
    };
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
    if let (Ok(()), Some(refused)) = (started, refused) {
        tracing::warn!("RUST_LOG is not a filter, the default is used: {refused}");
    }
}
