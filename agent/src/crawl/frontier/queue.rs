//! The queue of a crawl: the log, and the paths that have been read ahead from the log.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::log::{FrontierLog, LogFrame, LogOffset, LogRange, LogReader, QueuedPath};
use super::log_points::bytes;
use crate::crawl::html::site_path::SitePath;
use crate::disk::folder::blocking;

/// A path and its link depth from the start page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::crawl) struct QueueEntry {
    pub(in crate::crawl) path: SitePath,
    pub(in crate::crawl) depth: u32,
}

/// Returns paths in the order in which the frames of the log added them.
#[derive(Debug)]
pub(super) struct Queue {
    log: FrontierLog,
    /// The paths that have already been read from the log, and the position of the first frame not
    /// read yet.
    front: VecDeque<QueuedPath>,
    unread: LogOffset,
    /// Number of paths still to skip at the front, because they were visited before the queue was
    /// opened.
    skip: u64,
}

impl Queue {
    /// Opens the queue of a log. The first `visited` paths of the queue are skipped.
    pub(super) const fn new(log: FrontierLog, start: LogOffset, visited: u64) -> Self {
        Self { log, front: VecDeque::new(), unread: start, skip: visited }
    }

    /// The next path, with its length in bytes. An invalid path has no entry.
    pub(super) async fn next(&mut self) -> io::Result<Option<(u64, Option<QueueEntry>)>> {
        loop {
            if let Some(QueuedPath { path, depth }) = self.front.pop_front() {
                // An invalid path can only come from a file that another program wrote.
                let entry = SitePath::stored(&path).map(|path| QueueEntry { path, depth });
                return Ok(Some((bytes(&path), entry)));
            }
            let read = if self.log.is_written(self.unread) {
                let (reader, at) = (self.log.reader(), self.unread);
                blocking(move || reader.read_ahead(at)).await?
            } else {
                self.log.in_memory(self.unread).map(|(frame, next)| (frame.queued, next))
            };
            let Some((queued, next)) = read else { return Ok(None) };
            self.unread = next;
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(queued.len());
            self.skip -= u64::try_from(skipped).expect("no more than there are to skip");
            self.front.extend(queued.into_iter().skip(skipped));
        }
    }

    pub(super) fn push(&mut self, frame: &LogFrame) -> LogRange {
        self.log.push(frame)
    }

    /// Whether the unwritten frames should be written before the crawl continues.
    pub(super) fn is_due(&self) -> bool {
        self.log.is_due()
    }

    /// Writes the unwritten frames. May be called again after an error or a cancellation.
    pub(super) async fn write(&mut self) -> io::Result<()> {
        let (file, at, bytes) = self.log.to_write();
        let length = bytes.len();
        if length > 0 {
            blocking(move || file.write_all_at(&bytes, at)).await?;
        }
        self.log.wrote(length);
        Ok(())
    }

    /// Syncs the written frames to the disk, so that they survive a crash of the machine.
    pub(super) async fn sync(&mut self) -> io::Result<()> {
        let Some((file, to)) = self.log.to_sync() else { return Ok(()) };
        blocking(move || file.sync_data()).await?;
        self.log.was_synced(to);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn is_synced(&self) -> bool {
        self.log.to_write().2.is_empty() && self.log.to_sync().is_none()
    }

    pub(super) fn reader(&self) -> LogReader {
        self.log.reader()
    }
}
