//! Log lines to standard error. `LANDFALL_LOG` chooses them, or `RUST_LOG` (default: `info` and above); standard output is for what was asked.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Postgres' notices are about its own commands ("relation exists, skipping"): nothing to tell a person.
const DEFAULT: &str = "info,sqlx::postgres::notice=warn";

/// Starts logging. A filter that cannot be read is reported and replaced by the default.
pub fn start() {
    let asked = |variable| std::env::var(variable).ok().filter(|text| !text.is_empty()).map(|text| (variable, text));
    let (filter, refused) = match asked("LANDFALL_LOG").or_else(|| asked("RUST_LOG")) {
        Some((variable, text)) => match EnvFilter::try_new(&text) {
            Ok(filter) => (filter, None),
            Err(error) => (EnvFilter::new(DEFAULT), Some(format!("{variable}='{text}' is no filter ({error})"))),
        },
        None => (EnvFilter::new(DEFAULT), None),
    };
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
    if let (Ok(()), Some(refused)) = (started, refused) {
        tracing::warn!("{refused}: the default is used");
    }
}
