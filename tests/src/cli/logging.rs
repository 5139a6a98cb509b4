//! Logs to standard error, from the level that `RUST_LOG` names, or else from the level warn.

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Starts logging. An invalid filter is reported and replaced by the default.
pub(super) fn init() {
    let text = std::env::var("RUST_LOG").unwrap_or_default();
    let default = Targets::new().with_default(Level::WARN);
    let (filter, refused) = match text.parse::<Targets>() {
        Ok(filter) if !text.is_empty() => (filter, None),
        Ok(_) => (default, None),
        Err(error) => (default, Some(error)),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).init();
    if let Some(error) = refused {
        tracing::warn!("RUST_LOG='{text}' is not a valid log filter ({error}): the default filter is used");
    }
}
