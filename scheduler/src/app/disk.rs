//! The space of the disk on which the scheduler keeps its data.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::status::DiskSpace;

/// Time limit for reading the free space: a network file system may hang.
const PATIENCE: Duration = Duration::from_secs(1);

/// The space of a folder's file system; `None` if it cannot be read.
pub fn space(folder: &Path) -> Option<DiskSpace> {
    let system = nix::sys::statvfs::statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(system.fragment_size());
    Some(DiskSpace { free: bytes(system.blocks_available()), size: bytes(system.blocks()) })
}

/// The same, without blocking the runtime; `None` also if it cannot be read in time.
pub async fn space_in_time(folder: PathBuf) -> Option<DiskSpace> {
    let read = tokio::task::spawn_blocking(move || space(&folder));
    tokio::time::timeout(PATIENCE, read).await.ok()?.ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_space_of_a_folder_is_that_of_its_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let space = space_in_time(folder.path().to_owned()).await.unwrap();
        assert!(space.free > 0 && space.free <= space.size, "{space:?}");
        assert_eq!(space_in_time("/nonexistent".into()).await, None);
    }
}
