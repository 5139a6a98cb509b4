//! Reads the free space of disks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of bytes that an unprivileged user can still write to a folder's file system.
pub(crate) fn free_bytes(folder: &Path) -> io::Result<u64> {
    Ok(DiskSpace::of(folder)?.free)
}

/// A file system's space in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    pub(crate) free: u64,
    pub(crate) size: u64,
}

impl DiskSpace {
    fn of(folder: &Path) -> io::Result<Self> {
        let system = nix::sys::statvfs::statvfs(folder)?;
        let bytes = |blocks: u64| blocks.saturating_mul(system.fragment_size());
        Ok(Self { free: bytes(system.blocks_available()), size: bytes(system.blocks()) })
    }

    /// Whether this file system has a smaller fraction of free space than `other`.
    fn is_fuller_than(self, other: Self) -> bool {
        let cross = |one: Self, other: Self| u128::from(one.free) * u128::from(other.size);
        cross(self, other) < cross(other, self)
    }
}

/// Finds the fullest of the file systems of several folders, on a thread for blocking tasks.
#[derive(Debug, Clone)]
pub(crate) struct FullestDisk {
    folders: Arc<[PathBuf]>,
    newest: Arc<Mutex<Option<DiskSpace>>>,
    reading: Arc<AtomicBool>,
}

impl FullestDisk {
    pub(crate) fn of(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let folders: Arc<[PathBuf]> = folders.into_iter().collect();
        let newest = Arc::new(Mutex::new(fullest(&folders)));
        Self { folders, newest, reading: Arc::default() }
    }

    /// Starts to read the free space, unless a read is already in progress.
    pub(crate) fn begin(&self) {
        if self.reading.swap(true, Ordering::AcqRel) {
            return;
        }
        let disk = self.clone();
        tokio::task::spawn_blocking(move || {
            *disk.newest.lock().unwrap_or_else(PoisonError::into_inner) = fullest(&disk.folders);
            disk.reading.store(false, Ordering::Release);
        });
    }

    /// The result of the last read; `None` if no folder could be read.
    pub(crate) fn newest(&self) -> Option<DiskSpace> {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fullest(folders: &[PathBuf]) -> Option<DiskSpace> {
    let spaces = folders.iter().filter_map(|folder| DiskSpace::of(folder).ok());
    spaces.reduce(|fullest, space| if space.is_fuller_than(fullest) { space } else { fullest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_fullest_disk_is_reported_and_unreadable_folders_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FullestDisk::of([folder.path().to_owned(), "/nonexistent".into()]);
        let space = disk.newest().unwrap();
        assert!(space.size > 0 && space.free <= space.size, "{space:?}");
        assert_eq!(FullestDisk::of(["/nonexistent".into()]).newest(), None);
        let (full, roomy) = (DiskSpace { free: 5, size: 100 }, DiskSpace { free: 1, size: 10 });
        assert!(full.is_fuller_than(roomy) && !roomy.is_fuller_than(full));
    }
}
