//! What all agents together may ask of those that serve sites.

use serde::Deserialize;

use super::{ConfigError, counted};

/// What all agents together may ask of one address.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolitenessConfig {
    /// Sites at one address that are crawled at once at most, over all agents, 1 to 1000. Fewer where few sites are known to be there:
    /// the square root of their number. Each is crawled at its own rate, so that eight of a request a second are what one busy person
    /// asks of a server.
    pub crawls_at_address: u32,
}

impl Default for PolitenessConfig {
    fn default() -> Self {
        Self { crawls_at_address: 8 }
    }
}

impl PolitenessConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        counted("politeness.crawls_at_address", self.crawls_at_address, &(1..=1000))
    }
}
