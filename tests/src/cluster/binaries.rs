//! Finds the binaries under test.

use std::path::PathBuf;

use anyhow::{Context, bail};

/// The binaries under test, which are in the folder of the lab's binary.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// The binary of the scheduler, which also has the operator's commands.
    pub landfall: PathBuf,
    pub agent: PathBuf,
}

impl Binaries {
    pub fn find() -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("find the lab's own executable")?;
        // Test executables are one folder deeper, in `deps`.
        let folders = own.ancestors().skip(1).take(2);
        for folder in folders {
            let found = Self { landfall: folder.join("landfall"), agent: folder.join("landfall-agent") };
            if found.landfall.exists() && found.agent.exists() {
                return Ok(found);
            }
        }
        bail!("landfall and landfall-agent are not beside {}: run cargo build --workspace first", own.display())
    }
}
