//! The section `[outbox]` of `agent.toml`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The outbox, which keeps outcomes until the scheduler has acknowledged them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutboxConfig {
    /// The path of the folder, which is created if missing. Agents must not share the folder.
    pub folder: PathBuf,
    /// Free bytes on the disk below which no crawl starts. Crawls start again when twice as many
    /// bytes are free. 0 disables the check. An outcome takes a few hundred bytes; the default
    /// leaves enough space for the operating system.
    pub min_free_bytes: u64,
}

impl Default for OutboxConfig {
    fn default() -> Self {
        Self { folder: PathBuf::from("outbox"), min_free_bytes: 64 << 20 }
    }
}
