//! Disks that the lab can fill. Mounting them needs root.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use nix::sys::statvfs::statvfs;

const BALLAST: &str = "ballast";
/// Free bytes of a disk that the ballast takes. A full disk takes hardly more memory than its files.
const SLACK: u64 = 1 << 20;
/// How often a disk is shrunk again, because others write to it meanwhile.
const ATTEMPTS: u32 = 10;

#[derive(Debug)]
pub struct SmallDisks {
    folders: Vec<PathBuf>,
    bytes: u64,
}

impl SmallDisks {
    /// Mounts a disk of `bytes` bytes at each folder.
    pub fn mount(folders: Vec<PathBuf>, bytes: u64) -> anyhow::Result<Self> {
        let mut disks = Self { folders: Vec::new(), bytes };
        for folder in folders {
            std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
            let size = format!("size={bytes},mode=755");
            run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs"], &folder)?;
            disks.folders.push(folder);
        }
        Ok(disks)
    }

    /// Shrinks the disk to what is used of it, and fills the rest.
    pub fn fill(&self, index: usize) -> anyhow::Result<()> {
        let folder = &self.folders[index];
        let shrink = || {
            let found = statvfs(folder).with_context(|| format!("look at {}", folder.display()))?;
            let used = (found.blocks() - found.blocks_free()) * found.fragment_size();
            self.resize(index, self.bytes.min(used + SLACK))
        };
        let mut shrunk = shrink();
        for _ in 1..ATTEMPTS {
            if shrunk.is_ok() {
                break;
            }
            shrunk = shrink();
        }
        shrunk?;
        let file = folder.join(BALLAST);
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
        self.resize(index, self.bytes)?;
        let file = self.folders[index].join(BALLAST);
        std::fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))
    }

    fn resize(&self, index: usize, bytes: u64) -> anyhow::Result<()> {
        run("mount", &["-o", &format!("remount,size={bytes}")], &self.folders[index])
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
