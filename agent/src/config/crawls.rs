//! The section `[crawls]` of `agent.toml`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The folder of running crawls: their queues, and the state to resume after a restart.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrawlsConfig {
    /// The path of the folder, which is created if missing. Agents must not share the folder. A
    /// crawl needs a few hundred bytes for every path that it has seen.
    pub folder: PathBuf,
}

impl Default for CrawlsConfig {
    fn default() -> Self {
        Self { folder: PathBuf::from("crawls") }
    }
}
