//! Whether there is room on a disk, without flapping.

use std::io;
use std::path::Path;

/// Free space at which crawling goes on is so many times that at which it pauses: an outcome or two that are acknowledged
/// must not start it again for a moment.
const RESUME_AT: u64 = 2;

/// The room on one disk.
#[derive(Debug)]
pub(crate) struct Room {
    /// Free bytes below which it is full.
    least: u64,
    full: bool,
}

impl Room {
    /// A disk that is full with fewer than `least` bytes free.
    pub(crate) const fn new(least: u64) -> Self {
        Self { least, full: false }
    }

    /// Looks at the free bytes; how full the disk is, in words, from when it is full until it is clearly not.
    pub(crate) fn full(&mut self, free: u64) -> Option<String> {
        let resume = self.least.saturating_mul(RESUME_AT);
        self.full = free < if self.full { resume } else { self.least };
        let mib = |bytes: u64| bytes >> 20;
        self.full.then(|| format!("{} MiB free, crawling resumes at {} MiB", mib(free), mib(resume)))
    }
}

/// Bytes that an ordinary user may still write to the file system of a folder.
///
/// # Errors
/// When the folder cannot be looked at.
pub(crate) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let system = nix::sys::statvfs::statvfs(folder)?;
    Ok(system.blocks_available().saturating_mul(system.fragment_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_until_there_is_twice_the_room_that_made_it_so() {
        let mut room = Room::new(64 << 20);
        let seen: Vec<bool> =
            [65, 64, 63, 64, 65, 127, 128, 127, 64, 63].map(|mib| room.full(mib << 20).is_some()).to_vec();
        assert_eq!(seen, [false, false, true, true, true, true, false, false, false, true]);
        assert_eq!(room.full(1 << 20).as_deref(), Some("1 MiB free, crawling resumes at 128 MiB"));
    }

    #[test]
    fn without_a_least_no_disk_is_ever_full() {
        assert_eq!(Room::new(0).full(0), None);
        assert!(Room::new(u64::MAX).full(u64::MAX - 1).is_some(), "and the greatest does not overflow");
    }
}
