//! A checkpoint contains the state of its crawl at one point of the frontier's log, between two
//! frames (records). This module records the points that a checkpoint may need and, for each point,
//! the position from which to read the log. Points and positions are updated with every frame, so
//! that making a checkpoint reads little more of the log than fits into the checkpoint.
//!
//! This module is pure. A checkpoint contains the state at the newest point at which the queue
//! fits. Whether a queue fits is known only when the checkpoint is made, because the queue's paths
//! are compressed only then. So this module keeps one point for every size class of queues: the
//! newest point at which the queue was not larger than the class permits.

use super::known_paths::{FINGERPRINT, MAX_BEYOND};
use super::log::{CrawlTotals, LogFrame, LogOffset, LogRange};

/// Maximum bytes of the paths in the largest size class. Paths usually compress to a tenth of their
/// size.
const RAW_QUEUE_BYTES: u64 = 8 << 20;
/// Maximum number of queued paths in a checkpoint. Without this limit, reading a small checkpoint
/// could take much memory. Each path takes about 50 bytes of memory. An empty path takes only two
/// bytes in the checkpoint, and many such paths compress to a thousandth of that size. Real queues
/// hardly ever reach the limit: a checkpoint with that many paths has room for only one and a half
/// bytes per path, and real paths need more.
pub(super) const MAX_QUEUED: u64 = 1 << 19;
/// Maximum number of fingerprints in a checkpoint. This many fingerprints would fill a checkpoint
/// completely.
const MOST_KNOWN: u64 = 1 << 16;
/// Maximum bytes of the fingerprints of paths beyond the depth limit in a checkpoint.
const MOST_BEYOND_SENT: usize = MAX_BEYOND / 10 * FINGERPRINT;
/// The number of size classes of queues. Each class permits half as many bytes as the previous one.
/// The last class is the empty queue.
pub(super) const SIZES: usize = 25;
const _: () = assert!(most(SIZES - 2) == 1 && most(SIZES - 1) == 0);
/// After this many queued paths, the position in the log is recorded again.
const MARK_EVERY: u64 = 4096;

/// A point of a crawl: the position between two frames of the log, and what the crawl had done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LogPoint {
    pub(super) end: LogOffset,
    /// Number of queued paths that were visited before this point.
    pub(super) visited: u64,
    pub(super) totals: CrawlTotals,
}

/// The position of a frame in the log, and the number of its first path, counted in queue order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogMark {
    pub(super) offset: LogOffset,
    pub(super) number: u64,
}

#[derive(Debug, Clone)]
pub(super) struct LogPoints {
    newest: [LogPoint; SIZES],
    marks: Vec<LogMark>,
    /// Number of paths queued so far, how many of them were visited, and the total bytes of the
    /// paths that were not visited.
    queued: u64,
    visited: u64,
    bytes: u64,
    /// Fingerprints of the first paths beyond the depth limit, and whether there were more.
    pub(super) beyond: Vec<u8>,
    pub(super) more_beyond: bool,
    /// The size class of the last checkpoint's queue.
    pub(super) size: usize,
}

impl LogPoints {
    /// The state before the first frame, which will begin at `start`.
    pub(super) fn new(start: LogOffset) -> Self {
        Self {
            newest: [LogPoint { end: start, ..LogPoint::default() }; SIZES],
            marks: vec![LogMark { offset: start, number: 0 }],
            queued: 0,
            visited: 0,
            bytes: 0,
            beyond: Vec::new(),
            more_beyond: false,
            size: 0,
        }
    }

    /// Records a frame. `visited` is the length of the path whose visit the frame records.
    pub(super) fn note(&mut self, frame: &LogFrame, range: &LogRange, visited: u64) {
        if self.marks.last().is_none_or(|last| self.queued >= last.number + MARK_EVERY) {
            self.marks.push(LogMark { offset: range.start, number: self.queued });
        }
        self.queued += u64::try_from(frame.queued.len()).expect("a length");
        self.bytes += frame.queued.iter().map(|queued| bytes(&queued.path)).sum::<u64>();
        if frame.visited {
            self.visited += 1;
            self.bytes = self.bytes.saturating_sub(visited);
        }
        if self.beyond.len() < MOST_BEYOND_SENT {
            self.beyond.extend(&frame.beyond);
        } else {
            self.more_beyond |= !frame.beyond.is_empty();
        }
        let totals = CrawlTotals { beyond: self.more_beyond | frame.totals.beyond, ..frame.totals };
        let point = LogPoint { end: range.end, visited: self.visited, totals };
        if self.queued.saturating_sub(self.visited) > MAX_QUEUED {
            return;
        }
        for (size, newest) in self.newest.iter_mut().enumerate() {
            if self.bytes <= most(size) {
                *newest = point;
            }
        }
    }

    #[cfg(test)]
    pub(super) const fn waiting(&self) -> u64 {
        self.bytes
    }

    pub(super) const fn visited(&self) -> u64 {
        self.visited
    }

    /// The newest point of a size class, and the position from which to read the log. From this
    /// position on, the log contains the paths that were queued at that point, and the last
    /// [`MOST_KNOWN`] visited paths.
    pub(super) fn newest(&self, size: usize) -> (LogPoint, LogMark) {
        let point = self.newest.get(size).copied().unwrap_or_default();
        let oldest = point.visited.saturating_sub(MOST_KNOWN);
        let before = self.marks.partition_point(|mark| mark.number <= oldest);
        let mark = before.checked_sub(1).and_then(|at| self.marks.get(at));
        (point, mark.copied().unwrap_or(LogMark { offset: point.end, number: point.visited }))
    }
}

/// Maximum bytes of the paths in a queue of this size class.
const fn most(size: usize) -> u64 {
    RAW_QUEUE_BYTES >> size
}

pub(super) fn bytes(path: &str) -> u64 {
    u64::try_from(path.len()).unwrap_or(u64::MAX)
}
