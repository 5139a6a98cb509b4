//! The free and total space of the disk that holds the scheduler's data.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::status::DiskSpace;

/// The space of a folder's file system; `None` if it cannot be read.
pub fn space(folder: &Path) -> Option<DiskSpace> {
    let system = nix::sys::statvfs::statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(system.fragment_size());
    Some(DiskSpace { free: bytes(system.blocks_available()), size: bytes(system.blocks()) })
}

/// Reads the space of a folder's file system on a thread that is allowed to block, because a
/// network file system may hang. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DiskWatch {
    folder: Arc<Path>,
    newest: Arc<Mutex<Option<DiskSpace>>>,
    reading: Arc<AtomicBool>,
}

impl DiskWatch {
    pub fn of(folder: PathBuf) -> Self {
        let newest = Arc::new(Mutex::new(space(&folder)));
        Self { folder: folder.into(), newest, reading: Arc::default() }
    }

    /// The space at the last reading. Starts the next reading, unless one is in progress.
    pub fn look(&self) -> Option<DiskSpace> {
        if !self.reading.swap(true, Ordering::AcqRel) {
            let disk = self.clone();
            tokio::task::spawn_blocking(move || {
                *disk.newest.lock().unwrap_or_else(PoisonError::into_inner) = space(&disk.folder);
                disk.reading.store(false, Ordering::Release);
            });
        }
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_space_of_a_folder_is_that_of_its_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let space = DiskWatch::of(folder.path().to_owned()).look().unwrap();
        assert!(space.free > 0 && space.free <= space.size, "{space:?}");
        assert_eq!(DiskWatch::of("/nonexistent".into()).look(), None);
    }

    #[tokio::test]
    async fn a_disk_that_hangs_is_read_by_one_thread_only() {
        let folder = tempfile::tempdir().unwrap();
        let disk = DiskWatch::of(folder.path().to_owned());
        disk.reading.store(true, Ordering::Release);
        *disk.newest.lock().unwrap() = None;
        assert_eq!((disk.look(), Arc::strong_count(&disk.newest)), (None, 1), "no thread was started");
    }
}
