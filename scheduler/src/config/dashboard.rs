//! The section `[dashboard]`: who may read the pages and the metrics.

use serde::Deserialize;

/// Settings of the pages for browsers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DashboardConfig {
    /// Whether everybody who reaches the scheduler may read the pages without signing in. Only an
    /// operator may change something.
    pub public: bool,
    /// Whether everybody may read the metrics even if the scheduler listens on more than loopback.
    pub public_metrics: bool,
}
