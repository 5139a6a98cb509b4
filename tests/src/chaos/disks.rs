//! Small tmpfs disks that the lab can fill: for a database, and for the agents' outboxes. An outbox
//! keeps outcomes until a scheduler has acknowledged them.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Size of an outbox's disk, in bytes. The disk has room for thousands of outcomes.
pub const OUTBOX_BYTES: usize = 4 << 20;
/// The agents' setting `min_free_bytes`. If less space is free, an agent accepts no lease.
pub const MIN_FREE_BYTES: usize = 512 << 10;
const BALLAST: &str = "ballast";

#[derive(Debug)]
pub struct SmallDisks {
    folders: Vec<PathBuf>,
}

impl SmallDisks {
    /// Mounts a disk of `bytes` bytes at each folder. Mounting needs root.
    pub fn mount(folders: Vec<PathBuf>, bytes: usize) -> anyhow::Result<Self> {
        let mut disks = Self { folders: Vec::new() };
        for folder in folders {
            std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
            let size = format!("size={bytes}");
            run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs"], &folder)?;
            disks.folders.push(folder);
        }
        Ok(disks)
    }

    pub fn fill(&self, index: usize) -> anyhow::Result<()> {
        let file = self.folders[index].join(BALLAST);
        let mut ballast = File::create(&file).with_context(|| format!("make {}", file.display()))?;
        let block = [0_u8; 4096];
        loop {
            match ballast.write(&block) {
                Ok(_) => {}
                Err(full) if full.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).with_context(|| format!("write {}", file.display())),
            }
        }
    }

    pub fn free(&self, index: usize) -> anyhow::Result<()> {
        let file = self.folders[index].join(BALLAST);
        std::fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))
    }
}

impl Drop for SmallDisks {
    fn drop(&mut self) {
        for folder in &self.folders {
            // Unmount lazily, because an agent that is ending may still have a file open.
            if let Err(error) = run("umount", &["--lazy"], folder) {
                tracing::warn!(%error, "a small disk stays mounted");
            }
        }
    }
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> anyhow::Result<()> {
    let output =
        Command::new(program).args(arguments).arg(folder).output().with_context(|| format!("run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", folder.display(), said.trim());
    Ok(())
}
