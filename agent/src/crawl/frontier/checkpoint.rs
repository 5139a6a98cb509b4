//! The checkpoint of a crawl: its state, in a form small enough to send, from which another agent
//! resumes the crawl. Decides what a received checkpoint may contain, because it may be malicious.
//!
//! A checkpoint is one deflated frame with the queued paths and the fingerprints of paths that need
//! not be fetched again. A checkpoint takes at most [`MAX_BYTES`]. If the fingerprints do not fit,
//! the oldest are omitted, and their pages may be fetched again. If the queue does not fit, the
//! checkpoint contains an *earlier* state, whose queue did fit. The next agent repeats the visits
//! after that state and finds their links again, so no page is skipped. In the worst case the crawl
//! starts from the beginning. The time to make a checkpoint depends on its content, not on the
//! crawl's length, because [`LogPoints`] records where in the log to start.
//!
//! A checkpoint contains the state at the newest point at which the queue fits. Whether a queue
//! fits is known only when the checkpoint is made, because the queue's paths are compressed only
//! then. So [`LogPoints`] keeps one point for every size class of queues: the newest point at which
//! the queue was not larger than the class permits.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read as _, Write as _};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use prost::{Message as _, decode_length_delimiter};

use super::known_paths::{FINGERPRINT, MAX_BEYOND, fingerprints};
use super::log::{CrawlTotals, LogFrame, LogOffset, LogRange, LogReader};
use crate::crawl::html::site_urls::SitePath;
use crate::crawl::policy_and_budget::MAX_HOSTS;

/// Maximum size of a checkpoint.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Maximum bytes for the queue. The remaining bytes are for fingerprints, which do not compress.
const MAX_QUEUE_BYTES: usize = MAX_BYTES / 4 * 3;
const _: () = assert!(MAX_BYTES / FINGERPRINT == 1 << 16);
/// Bytes reserved for the encoding around the fingerprints.
const SLACK: usize = 4 << 10;
/// The first byte of a checkpoint: the version of the format.
const VERSION: u8 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub bytes: Vec<u8>,
    pub pages: u32,
}

/// Encodes the name of `site`, all `hosts`, and the newest state whose queue fits. `reader` reads
/// this state from the log. Also returns the queue's size class: an index into the maximum queue
/// sizes of [`LogPoints`], largest first.
pub(super) fn encode(
    reader: &LogReader,
    log_points: &LogPoints,
    site: &str,
    hosts: &BTreeSet<String>,
) -> io::Result<(Checkpoint, usize)> {
    // If the queue has shrunk since the last checkpoint, the next larger size class may fit now.
    let mut size = log_points.size.saturating_sub(1);
    loop {
        let (point, from) = log_points.newest(size);
        let (mut frame, fingerprints) = state_at(reader, from, point)?;
        frame.beyond.clone_from(&log_points.beyond);
        frame.hosts = hosts.iter().cloned().collect();
        site.clone_into(&mut frame.site);
        let again = u32::try_from(log_points.visited() - point.visited).unwrap_or(u32::MAX);
        frame.totals.refetched = frame.totals.refetched.saturating_add(again);
        let queue_bytes = deflate(&frame)?.len();
        // An empty queue always fits.
        if queue_bytes > MAX_QUEUE_BYTES && size + 1 < SIZES {
            size += 1;
            continue;
        }
        let kept = (MAX_BYTES - SLACK).saturating_sub(queue_bytes) / FINGERPRINT;
        let kept = fingerprints.len().saturating_sub(kept);
        frame.known = fingerprints.iter().skip(kept).flat_map(|print| print.to_le_bytes()).collect();
        return Ok((Checkpoint { bytes: deflate(&frame)?, pages: frame.totals.pages }, size));
    }
}

/// Compression level, 1 to 9. Fingerprints are random bytes. Level 1 would make fingerprints longer
/// by a twentieth; level 2 does not.
const LEVEL: u32 = 2;

fn deflate(frame: &LogFrame) -> io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(vec![VERSION], Compression::new(LEVEL));
    encoder.write_all(&frame.encode_to_vec())?;
    encoder.finish()
}

/// Reads the log from the mark `from`, and returns the state at the later `point`: a frame with the
/// queue, and the fingerprints of visited paths, oldest first. Drops the oldest fingerprints that
/// would not fit into a checkpoint.
fn state_at(reader: &LogReader, from: LogMark, point: LogPoint) -> io::Result<(LogFrame, VecDeque<u128>)> {
    let LogMark { mut offset, mut number } = from;
    let (mut state, mut known) = (LogFrame { totals: point.totals, ..LogFrame::default() }, VecDeque::new());
    let remember = |known: &mut VecDeque<u128>, print: u128| {
        if known.len() == MAX_BYTES / FINGERPRINT {
            known.pop_front();
        }
        known.push_back(print);
    };
    while offset < point.end
        && let Some((frame, next)) = reader.read(offset)?
    {
        for queued in frame.queued {
            if number < point.visited {
                remember(&mut known, SitePath::fingerprint_of(&queued.path).as_u128());
            } else {
                state.queued.push(queued);
            }
            number += 1;
        }
        fingerprints(&frame.known).for_each(|print| remember(&mut known, print.as_u128()));
        offset = next;
    }
    Ok((state, known))
}

/// Maximum inflated size of a checkpoint: the paths, each with up to nine bytes of encoding, the
/// fingerprints and the hosts.
const MOST_INFLATED: usize = 16 << 20;
/// Maximum bytes of the fingerprints of paths beyond the depth limit in a received checkpoint. An
/// agent sends at most a tenth of the fingerprints that it may store, plus those found on one page.
const MOST_BEYOND_RECEIVED: usize = 2 * MAX_BEYOND * FINGERPRINT;
/// Maximum length of a site's name: a host with scheme and port.
const MAX_SITE_NAME_BYTES: usize = 300;

#[derive(Debug, thiserror::Error)]
#[error("not a checkpoint: {0}")]
pub(in crate::crawl) struct BadCheckpoint(String);

#[derive(Debug)]
pub(in crate::crawl) struct CheckpointState(pub(super) LogFrame);

impl CheckpointState {
    pub(in crate::crawl) fn read(bytes: &[u8]) -> Result<Self, BadCheckpoint> {
        let bad = |what: &str| BadCheckpoint(what.to_owned());
        let (version, deflated) = bytes.split_first().ok_or_else(|| bad("it is empty"))?;
        if *version != VERSION {
            return Err(bad("its version is unknown"));
        }
        let limit = u64::try_from(MOST_INFLATED).expect("a length");
        let mut body = Vec::new();
        DeflateDecoder::new(deflated)
            .take(limit + 1)
            .read_to_end(&mut body)
            .map_err(|error| bad(&error.to_string()))?;
        if body.len() > MOST_INFLATED {
            return Err(bad("it is too long"));
        }
        // Check the numbers of queued paths and hosts before allocating memory for them. Another
        // agent made the checkpoint, and that agent may be malicious.
        let (queued, hosts) = counted(&body).ok_or_else(|| bad("its fields are invalid"))?;
        if queued > MAX_QUEUED {
            return Err(bad("it has too many queued paths"));
        }
        if hosts > u64::from(MAX_HOSTS) {
            return Err(bad("it has too many host names"));
        }
        let frame = LogFrame::decode(body.as_slice()).map_err(|error| bad(&error.to_string()))?;
        if frame.known.len() > MAX_BYTES || frame.beyond.len() > MOST_BEYOND_RECEIVED {
            return Err(bad("it has too many fingerprints"));
        }
        if frame.hosts.iter().any(|host| host.len() > MAX_SITE_NAME_BYTES) {
            return Err(bad("it has too long a host name"));
        }
        if frame.visited || frame.queued.iter().any(|queued| SitePath::stored(&queued.path).is_none()) {
            return Err(bad("it has an invalid path"));
        }
        Ok(Self(frame))
    }

    /// Fails if the checkpoint is of another site, whose paths prove nothing about `site`.
    /// Checkpoints of older agents name no site.
    pub(in crate::crawl) fn of(mut self, site: &str) -> Result<Self, BadCheckpoint> {
        let named = std::mem::take(&mut self.0.site);
        if named.is_empty() || named == site {
            Ok(self)
        } else {
            Err(BadCheckpoint("it is of another site".to_owned()))
        }
    }

    pub(in crate::crawl) const fn pages(&self) -> u32 {
        self.0.totals.pages
    }
}

/// The numbers of queued paths and of hosts in an encoded frame; `None` if the frame is invalid.
fn counted(mut frame: &[u8]) -> Option<(u64, u64)> {
    let (mut queued, mut hosts) = (0, 0);
    while !frame.is_empty() {
        let key = decode_length_delimiter(&mut frame).ok()?;
        let skipped = match key & 7 {
            0 => {
                decode_length_delimiter(&mut frame).ok()?;
                0
            }
            1 => 8,
            2 => decode_length_delimiter(&mut frame).ok()?,
            5 => 4,
            _ => return None,
        };
        frame = frame.get(skipped..)?;
        queued += u64::from(key >> 3 == LogFrame::QUEUED);
        hosts += u64::from(key >> 3 == LogFrame::HOSTS);
    }
    Some((queued, hosts))
}

/// Maximum bytes of the paths in the largest size class. Paths usually compress to a tenth of their
/// size.
const RAW_QUEUE_BYTES: u64 = 8 << 20;
/// Maximum number of queued paths in a checkpoint. Without this limit, reading a small checkpoint
/// could take much memory. Each path takes about 50 bytes of memory. An empty path takes only two
/// bytes in the checkpoint, and many such paths compress to a thousandth of that size. Real queues
/// hardly ever reach the limit: a checkpoint with that many paths has room for only one and a half
/// bytes per path, and real paths need more.
const MAX_QUEUED: u64 = 1 << 19;
/// Maximum number of fingerprints in a checkpoint. This many fingerprints would fill a checkpoint
/// completely.
const MOST_KNOWN: u64 = 1 << 16;
/// Maximum bytes of the fingerprints of paths beyond the depth limit in a checkpoint.
const MOST_BEYOND_SENT: usize = MAX_BEYOND / 10 * FINGERPRINT;
/// The number of size classes of queues. Each class permits half as many bytes as the previous one.
/// The last class is the empty queue.
const SIZES: usize = 25;
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
    offset: LogOffset,
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
    more_beyond: bool,
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
        self.bytes += frame.queued.iter().map(|queued| queue_bytes(&queued.path)).sum::<u64>();
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

pub(super) fn queue_bytes(path: &str) -> u64 {
    u64::try_from(path.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crawl::frontier::log::tests::write;
    use crate::crawl::frontier::log::{FrontierLog, QueuedPath, first};

    const MOST: usize = 1 << 19;

    /// A checkpoint whose deflated content is `body`.
    fn of(body: &[u8]) -> Vec<u8> {
        [vec![VERSION], crate::testing::deflate(body)].concat()
    }

    fn refused(body: &[u8]) -> String {
        let checkpoint = of(body);
        assert!(checkpoint.len() <= MAX_BYTES, "it travels: {}", checkpoint.len());
        CheckpointState::read(&checkpoint).unwrap_err().to_string()
    }

    #[test]
    fn a_checkpoints_queued_paths_are_bounded() {
        let path = LogFrame { queued: vec![QueuedPath { path: "/".to_owned(), depth: 0 }], ..LogFrame::default() };
        let (totals, path) = (LogFrame::default().encode_to_vec(), path.encode_to_vec());
        let path = path.strip_suffix(totals.as_slice()).unwrap();
        let many = |number: usize| [path.repeat(number), totals.clone()].concat();
        let most = CheckpointState::read(&of(&many(MOST))).unwrap();
        assert_eq!(most.0.queued.len(), MOST);
        assert_eq!(refused(&many(MOST + 1)), "not a checkpoint: it has too many queued paths");
        // Each queued path takes two bytes, so the input is two megabytes longer than the maximum.
        assert_eq!(refused(&[2 << 3 | 2, 0].repeat(9 << 20)), "not a checkpoint: it is too long");
        assert_eq!(refused(&[2 << 3 | 2, 0].repeat(7 << 20)), "not a checkpoint: it has too many queued paths");
    }

    #[test]
    fn a_written_checkpoint_holds_no_more_paths_than_may_be_read() {
        let step = |visited, paths, pages| LogFrame {
            visited,
            queued: vec![QueuedPath { path: "/".to_owned(), depth: 0 }; paths],
            totals: CrawlTotals { pages, ..CrawlTotals::default() },
            ..LogFrame::default()
        };
        let (mut log, mut log_points) = (FrontierLog::temporary().unwrap(), LogPoints::new(first("")));
        let mut pages_and_paths_after = |step: LogFrame| {
            let range = log.push(&step);
            log_points.note(&step, &range, 1);
            write(&mut log);
            let (checkpoint, _) = encode(&log.reader(), &log_points, "a.cn", &BTreeSet::new()).unwrap();
            (checkpoint.pages, CheckpointState::read(&checkpoint.bytes).unwrap().0.queued.len())
        };
        assert_eq!(pages_and_paths_after(step(false, MOST, 1)), (1, MOST));
        assert_eq!(pages_and_paths_after(step(false, 1, 2)), (1, MOST), "of the moment before that");
        assert_eq!(pages_and_paths_after(step(true, 0, 3)), (3, MOST), "one was visited");
    }

    #[test]
    fn a_checkpoints_fingerprints_are_bounded() {
        let frame = |known, beyond| LogFrame { known: vec![7; known], beyond: vec![7; beyond], ..LogFrame::default() };
        let (known, beyond) = (MAX_BYTES, MOST_BEYOND_RECEIVED);
        assert!(CheckpointState::read(&of(&frame(known, beyond).encode_to_vec())).is_ok());
        for frame in [frame(known + 1, 0), frame(0, beyond + 1)] {
            assert_eq!(refused(&frame.encode_to_vec()), "not a checkpoint: it has too many fingerprints");
        }
    }

    #[test]
    fn a_checkpoints_host_names_are_bounded() {
        let frame = |hosts: Vec<String>| of(&LogFrame { hosts, ..LogFrame::default() }.encode_to_vec());
        let most = usize::try_from(MAX_HOSTS).unwrap();
        assert!(CheckpointState::read(&frame(vec!["a.cn".to_owned(); most])).is_ok());
        let error = |hosts| CheckpointState::read(&frame(hosts)).unwrap_err().to_string();
        assert_eq!(error(vec!["a".repeat(MAX_SITE_NAME_BYTES + 1)]), "not a checkpoint: it has too long a host name");
        assert_eq!(error(vec![String::new(); most + 1]), "not a checkpoint: it has too many host names");
        // Each empty host name takes two bytes, so the input has too many names but is not too
        // long.
        assert_eq!(refused(&[6 << 3 | 2, 0].repeat(7 << 20)), "not a checkpoint: it has too many host names");
    }

    #[test]
    fn the_counts_of_queued_paths_and_hosts_are_exact() {
        let queued = |path: &str| QueuedPath { path: path.to_owned(), depth: u32::MAX };
        let frame = LogFrame {
            visited: true,
            queued: ["", "/a", &"/long".repeat(99)].map(queued).to_vec(),
            known: vec![9; 64],
            beyond: vec![8; 32],
            totals: CrawlTotals { pages: u32::MAX, bytes: u64::MAX, ..CrawlTotals::default() },
            hosts: vec!["a.cn".to_owned(); 2],
            site: "a.cn".to_owned(),
        };
        let body = frame.encode_to_vec();
        assert_eq!(counted(&body), Some((3, 2)));
        assert_eq!(counted(&[]), Some((0, 0)));
        for wrong in [&body[..body.len() - 1], &[2 << 3 | 2, 5, 0], &[0xff], &[3], &[1 << 3 | 1, 0]] {
            assert_eq!(counted(wrong), None, "{wrong:?}");
        }
    }
}
