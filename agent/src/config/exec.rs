//! The section `[exec]` of `agent.toml`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::program;
use super::store::default_min_free;

/// The command that crawls sites in place of the agent's own crawler.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecConfig {
    /// The program and its arguments. No shell interprets them.
    pub command: Vec<String>,
    /// The path of the folder for the command's output. The folder is created if missing. Agents
    /// must not share the folder.
    #[serde(default = "default_exec_folder")]
    pub folder: PathBuf,
    /// Milliseconds from SIGTERM until the command is killed, 0 to 30000. If this time exceeds the
    /// scheduler's `lease.grace` (5 s), the command may still crawl a site that another agent has
    /// leased. The maximum is below the `TimeoutStopSec` of the agent's systemd unit.
    #[serde(default = "default_grace")]
    pub grace_ms: u64,
    /// Maximum number of finished leases whose output is kept, 0 to 1000000; the oldest output is
    /// removed first. The default leaves time to move output away, and limits the use of the disk.
    #[serde(default = "default_keep")]
    pub keep: u32,
    /// Free bytes on the folder's disk below which the agent takes no lease, until twice as many
    /// bytes are free. 0 disables the check. Running crawls continue, and their output is not
    /// limited.
    #[serde(default = "default_min_free")]
    pub min_free_bytes: u64,
}

impl ExecConfig {
    /// Permitted values of `grace_ms`.
    pub const GRACE_MS: std::ops::RangeInclusive<u64> = 0..=30_000;
    /// Permitted values of `keep`.
    pub const KEEP: std::ops::RangeInclusive<u32> = 0..=1_000_000;

    pub fn of(command: Vec<String>) -> Self {
        Self {
            command,
            folder: default_exec_folder(),
            grace_ms: default_grace(),
            keep: default_keep(),
            min_free_bytes: default_min_free(),
        }
    }

    /// Makes relative paths absolute.
    pub(super) fn start_at(&mut self, folder: &Path) {
        self.folder = folder.join(&self.folder);
        program::make_absolute(&mut self.command, folder);
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |key, reason: String| Err(ConfigError::Invalid { key, reason });
        if self.command.first().is_none_or(|program| program.trim().is_empty()) {
            return invalid("exec.command", "must name a program".to_owned());
        }
        if self.command.iter().any(|word| word.contains('\0')) {
            return invalid("exec.command", "a word contains a NUL character".to_owned());
        }
        if !Self::GRACE_MS.contains(&self.grace_ms) {
            return invalid("exec.grace_ms", format!("{} is not in 0 to {}", self.grace_ms, Self::GRACE_MS.end()));
        }
        if !Self::KEEP.contains(&self.keep) {
            return invalid("exec.keep", format!("{} is not in 0 to {}", self.keep, Self::KEEP.end()));
        }
        Ok(())
    }
}

fn default_exec_folder() -> PathBuf {
    PathBuf::from("exec")
}

const fn default_grace() -> u64 {
    3000
}

const fn default_keep() -> u32 {
    1000
}
