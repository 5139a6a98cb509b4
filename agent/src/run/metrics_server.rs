//! The server at which Prometheus reads the agent's metrics.

use anyhow::Context as _;

use super::listener::Listener;
use crate::config::Config;
use crate::metrics;

/// Binds the address of the configuration; `None` if there is none.
pub(super) async fn bind(config: &Config) -> anyhow::Result<Option<Listener>> {
    let Some(listen) = config.metrics else { return Ok(None) };
    let bound = Listener::bind(listen, metrics::reply).await;
    Ok(Some(bound.with_context(|| format!("listen for metrics at {listen}; set metrics to a free address"))?))
}
