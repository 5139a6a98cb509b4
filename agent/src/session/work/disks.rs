//! Decides from the agent's disks whether the agent takes leases, and why it takes none. Chooses
//! the disk whose free space heartbeats report.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::crawl::ExternalCrawler;
use crate::disk::outbox::Outbox;
use crate::machine::free_space::{DiskSpace, LimitedDisk};
use crate::warc::Store;

/// The disks of the outbox, of the store, and of the external crawler's output.
#[derive(Debug)]
pub(super) struct AgentDisks {
    /// Why the agent takes no lease, according to the last check of the disks; `None` if it takes
    /// leases.
    paused: Option<String>,
    /// The disk of the external crawler's output.
    output: Option<LimitedDisk>,
    /// The fullest of the disks. Heartbeats report it.
    fullest: FullestDisk,
}

impl AgentDisks {
    pub(super) fn of(outbox: &Outbox, store: Option<&Store>, external: Option<&ExternalCrawler>) -> Self {
        let stores = store.into_iter().map(Store::folder).chain(external.map(ExternalCrawler::folder));
        let folders: Vec<_> = stores.chain([outbox.folder()]).map(Path::to_owned).collect();
        Self { paused: None, output: external.map(ExternalCrawler::disk), fullest: FullestDisk::of(folders) }
    }

    /// Why the agent takes no lease, in one sentence; `None` if it takes leases.
    pub(super) fn paused(&self) -> Option<&str> {
        self.paused.as_deref()
    }

    /// The free space of the fullest disk; `None` if no disk could be read.
    pub(super) fn fullest(&self) -> Option<DiskSpace> {
        self.fullest.newest()
    }

    /// Starts to check the free space, without waiting for the disks. Returns `true` if the results
    /// so far change whether the agent takes leases.
    pub(super) fn check(&mut self, outbox: &mut Outbox, store: Option<&Store>) -> bool {
        outbox.check_space();
        self.output.iter_mut().for_each(LimitedDisk::begin);
        self.fullest.begin();
        self.note_space(outbox, store)
    }

    /// Waits for the end of the current check of the external crawler's disk. If no check is
    /// running, waits forever. Cancel-safe.
    pub(super) async fn output_checked(&mut self) {
        LimitedDisk::one_ended(self.output.as_mut()).await;
    }

    /// Updates whether the agent takes leases. Returns `true` if that changes.
    pub(super) fn note_space(&mut self, outbox: &mut Outbox, store: Option<&Store>) -> bool {
        let output = || self.output.as_mut().and_then(LimitedDisk::paused);
        let paused = outbox.paused().or_else(output).or_else(|| store.and_then(Store::paused));
        let changed = paused.is_some() != self.paused.is_some();
        match &paused {
            Some(reason) if changed => tracing::warn!(reason, "crawling pauses"),
            None if changed => tracing::info!("crawling resumes"),
            _ => {}
        }
        self.paused = paused;
        changed
    }
}

/// Finds the fullest of the file systems of several folders, on a thread for blocking tasks.
#[derive(Debug, Clone)]
struct FullestDisk {
    folders: Arc<[PathBuf]>,
    newest: Arc<Mutex<Option<DiskSpace>>>,
    reading: Arc<AtomicBool>,
}

impl FullestDisk {
    fn of(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let folders: Arc<[PathBuf]> = folders.into_iter().collect();
        let newest = Arc::new(Mutex::new(fullest(&folders)));
        Self { folders, newest, reading: Arc::default() }
    }

    /// Starts to read the free space, unless a read is already in progress.
    fn begin(&self) {
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
    fn newest(&self) -> Option<DiskSpace> {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fullest(folders: &[PathBuf]) -> Option<DiskSpace> {
    let spaces = folders.iter().filter_map(|folder| DiskSpace::of(folder).ok());
    spaces.reduce(|fullest, space| if is_fuller(space, fullest) { space } else { fullest })
}

/// Whether a file system has a smaller fraction of free space than another.
fn is_fuller(disk: DiskSpace, other: DiskSpace) -> bool {
    let cross = |one: DiskSpace, other: DiskSpace| u128::from(one.free) * u128::from(other.size);
    cross(disk, other) < cross(other, disk)
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
        assert!(is_fuller(full, roomy) && !is_fuller(roomy, full));
    }
}
