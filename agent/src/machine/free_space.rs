//! Reads the free space of disks. Decides when a disk counts as full, and when it may be used
//! again. Does not block if the disk hangs.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

/// Crawling resumes when this many times the minimum is free. If crawling resumed at the minimum
/// itself, the removal of one or two acknowledged outcomes would free enough space to resume for a
/// moment.
const RESUME_AT: u64 = 2;

/// Time limit for reading the free space. A disk that takes longer counts as unusable.
const HANGS: Duration = Duration::from_secs(10);

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
    pub(crate) fn of(folder: &Path) -> io::Result<Self> {
        let system = nix::sys::statvfs::statvfs(folder)?;
        let bytes = |blocks: u64| blocks.saturating_mul(system.fragment_size());
        Ok(Self { free: bytes(system.blocks_available()), size: bytes(system.blocks()) })
    }
}

/// Reads the free bytes on a folder's disk, on a thread for blocking tasks.
#[derive(Debug)]
struct FreeSpaceCheck {
    folder: PathBuf,
    free: io::Result<u64>,
    pending: Option<(Instant, JoinHandle<io::Result<u64>>)>,
}

impl FreeSpaceCheck {
    fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), free: free_bytes(folder), pending: None }
    }

    fn begin(&mut self) {
        let folder = &self.folder;
        self.pending.get_or_insert_with(|| {
            let folder = folder.clone();
            (Instant::now(), tokio::task::spawn_blocking(move || free_bytes(&folder)))
        });
    }

    async fn ended(&mut self) {
        let Some((_, check)) = &mut self.pending else { return std::future::pending().await };
        self.free = check.await.map_err(io::Error::other).flatten();
        self.pending = None;
    }

    /// The result of the last read, or why there is no valid result.
    fn free(&self) -> Result<u64, String> {
        match &self.pending {
            Some((began, _)) if began.elapsed() >= HANGS => Err(format!("no answer for {HANGS:?}")),
            _ => self.free.as_ref().copied().map_err(ToString::to_string),
        }
    }
}

/// Decides whether one disk is full.
#[derive(Debug)]
pub(crate) struct FreeSpaceLimit {
    least: u64,
    full: bool,
}

impl FreeSpaceLimit {
    /// Makes a limit: with fewer than `least` free bytes, the disk counts as full.
    pub(crate) const fn new(least: u64) -> Self {
        Self { least, full: false }
    }

    /// Takes the number of free bytes on the disk of `folder`, or why it could not be read. Returns
    /// why the disk should not be used; `None` if it has enough free space.
    pub(crate) fn unusable(&mut self, folder: &Path, free: Result<u64, impl Display>) -> Option<String> {
        let folder = folder.display();
        match free {
            Err(error) => Some(format!("cannot read the free space at {folder}: {error}")),
            Ok(free) => self.full(free).map(|full| format!("disk full: {folder} has {full}")),
        }
    }

    /// Takes the current number of free bytes. Returns a message with the free space if the disk
    /// counts as full.
    fn full(&mut self, free: u64) -> Option<String> {
        let resume = self.least.saturating_mul(RESUME_AT);
        self.full = free < if self.full { resume } else { self.least };
        let mib = |bytes: u64| bytes >> 20;
        self.full.then(|| format!("{} MiB free, crawling resumes at {} MiB", mib(free), mib(resume)))
    }
}

/// A disk on which a folder needs free space. While the disk has too little, the agent takes no
/// lease.
#[derive(Debug)]
pub(crate) struct LimitedDisk {
    check: FreeSpaceCheck,
    limit: FreeSpaceLimit,
}

impl LimitedDisk {
    pub(crate) fn at(folder: &Path, least: u64) -> Self {
        Self { check: FreeSpaceCheck::at(folder), limit: FreeSpaceLimit::new(least) }
    }

    /// Starts to read the free space, unless a read is already in progress.
    pub(crate) fn begin(&mut self) {
        self.check.begin();
    }

    /// Waits for the end of the current read. If no read is in progress, waits forever.
    /// Cancel-safe.
    pub(crate) async fn ended(&mut self) {
        self.check.ended().await;
    }

    /// Like [`LimitedDisk::ended`], but waits forever if `disk` is `None`.
    pub(crate) async fn one_ended(disk: Option<&mut Self>) {
        match disk {
            Some(disk) => disk.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Why the agent should take no lease, according to the last read; `None` if it may take
    /// leases.
    pub(crate) fn paused(&mut self) -> Option<String> {
        self.limit.unusable(&self.check.folder, self.check.free())
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

    #[test]
    fn a_full_disk_stays_full_until_twice_the_limit_is_free() {
        let mut limit = FreeSpaceLimit::new(64 << 20);
        let seen: Vec<bool> =
            [65, 64, 63, 64, 65, 127, 128, 127, 64, 63].map(|mib| limit.full(mib << 20).is_some()).to_vec();
        assert_eq!(seen, [false, false, true, true, true, true, false, false, false, true]);
        assert_eq!(limit.full(1 << 20).as_deref(), Some("1 MiB free, crawling resumes at 128 MiB"));
    }

    #[test]
    fn a_limit_of_zero_never_reports_a_full_disk() {
        assert_eq!(FreeSpaceLimit::new(0).full(0), None);
        assert!(FreeSpaceLimit::new(u64::MAX).full(u64::MAX - 1).is_some(), "and the greatest does not overflow");
    }

    #[tokio::test]
    async fn a_disk_that_hangs_is_reported_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let mut check = FreeSpaceCheck::at(folder.path());
        let (answer, hangs) = std::sync::mpsc::channel();
        let began = Instant::now().checked_sub(HANGS).unwrap();
        check.pending = Some((began, tokio::task::spawn_blocking(move || hangs.recv().map_err(io::Error::other))));
        check.begin();
        assert_eq!(check.free(), Err("no answer for 10s".to_owned()));
        answer.send(7).unwrap();
        check.ended().await;
        assert_eq!(check.free(), Ok(7));
        check.begin();
        check.ended().await;
        assert!(check.free().unwrap() > 7);
    }

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
