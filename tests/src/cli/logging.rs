//! Logs to standard error, from the level that `RUST_LOG` names, or else from the level warn.

use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

pub(super) fn init() {
    let filter = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(tracing::Level::WARN));
    tracing_subscriber::registry()
        .with(filter)
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr))
        .init();
}
