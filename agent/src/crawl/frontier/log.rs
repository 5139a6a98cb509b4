//! The history of a frontier as a file. The file stores the queue, which does not fit into memory,
//! and everything else that a crawl needs to resume after a restart.
//!
//! The file starts with a line that names its owner. After that line, frames are only appended.
//! Each frame records what one visit found and spent, and has a length and a checksum. If a crash
//! left an incomplete frame at the end, this frame is cut off. Frames that have not been written
//! yet are read from memory, so reads and writes never wait for each other.
//!
//! [`FrontierLog::open`] and the functions of [`LogReader`] block, so call them on a thread for
//! blocking tasks.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flate2::Crc;
use prost::Message as _;
use tokio::time::Instant;

use crate::disk::folder::blocking;

/// The file's first bytes; the number is the version of the format.
const MAGIC: &[u8] = b"landfall crawl 1\n";
/// Number of bytes before every frame, for its length and checksum, both little-endian.
const HEADER: usize = 8;
/// Maximum length of a frame in bytes. The limits on the size of a page or sitemap keep frames far
/// shorter.
const MAX_FRAME: usize = 64 << 20;

/// Number of unwritten bytes at which the frames must be written to the file.
const MAX_UNWRITTEN: usize = 256 << 10;
/// Maximum time that newly found paths are kept only in memory. After a crash the crawl finds these
/// paths again.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Number of bytes to read at once, enough for the frames of a few hundred visits. Without reading
/// ahead, each visit would wake a thread for blocking tasks.
const READ_AHEAD: usize = 64 << 10;

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct QueuedPath {
    #[prost(string, tag = "1")]
    pub(super) path: String,
    #[prost(uint32, tag = "2")]
    pub(super) depth: u32,
}

/// What a crawl has spent and seen up to the end of a visit.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(in crate::crawl) struct CrawlTotals {
    #[prost(uint32, tag = "1")]
    pub(in crate::crawl) pages: u32,
    /// Decoded body bytes of the pages.
    #[prost(uint64, tag = "2")]
    pub(in crate::crawl) bytes: u64,
    #[prost(uint64, tag = "3")]
    pub(in crate::crawl) unwanted_bytes: u64,
    #[prost(uint32, tag = "4")]
    pub(in crate::crawl) errors: u32,
    #[prost(uint64, tag = "5")]
    pub(in crate::crawl) millis: u64,
    /// Pages fetched again although an agent had already fetched them.
    #[prost(uint32, tag = "6")]
    pub(in crate::crawl) refetched: u32,
    /// Links that were not followed because they lead into a trap.
    #[prost(uint32, tag = "7")]
    pub(in crate::crawl) trapped: u32,
    /// Whether any page was cut at the size limit of a single page.
    #[prost(bool, tag = "8")]
    pub(in crate::crawl) page_cut: bool,
    /// Whether paths were dropped because the queue was full.
    #[prost(bool, tag = "9")]
    pub(in crate::crawl) dropped: bool,
    /// Whether the crawl found more paths beyond the depth limit than it can store individually.
    #[prost(bool, tag = "10")]
    pub(in crate::crawl) beyond: bool,
    #[prost(bool, tag = "11")]
    pub(in crate::crawl) sitemaps_read: bool,
    /// Number of times the site has refused a request (429, 503) since this count was last cleared.
    #[prost(uint32, tag = "12")]
    pub(in crate::crawl) turned_away: u32,
    #[prost(uint32, tag = "13")]
    pub(in crate::crawl) failed_in_a_row: u32,
    /// End of the current pause by the wall clock; 0 if there is no pause.
    #[prost(uint64, tag = "14")]
    pub(in crate::crawl) paused_until_unix_ms: u64,
    /// Number of pages that the site's sitemaps list.
    #[prost(uint64, tag = "15")]
    pub(in crate::crawl) listed: u64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct LogFrame {
    /// Whether the frame records the visit to the path at the head of the queue. A frame without a
    /// visit only adds paths to the queue, for example those of a sitemap.
    #[prost(bool, tag = "1")]
    pub(super) visited: bool,
    #[prost(message, repeated, tag = "2")]
    pub(super) queued: Vec<QueuedPath>,
    /// Fingerprints, 16 bytes each, of paths that are known but not queued: redirect targets, and
    /// pages that another agent visited.
    #[prost(bytes = "vec", tag = "3")]
    pub(super) known: Vec<u8>,
    /// Fingerprints of paths beyond the depth limit.
    #[prost(bytes = "vec", tag = "4")]
    pub(super) beyond: Vec<u8>,
    /// The totals of the crawl after this frame.
    #[prost(message, required, tag = "5")]
    pub(super) totals: CrawlTotals,
    /// The names of other sites to which a page links.
    #[prost(string, repeated, tag = "6")]
    pub(super) hosts: Vec<String>,
    /// In a checkpoint, the crawled site; empty in a log, whose first line names it.
    #[prost(string, tag = "7")]
    pub(super) site: String,
}

impl LogFrame {
    pub(super) const QUEUED: usize = 2;
    pub(super) const HOSTS: usize = 6;
}

#[derive(Debug)]
pub(super) struct FrontierLog {
    file: Arc<File>,
    /// The length of the file in bytes.
    written: u64,
    /// The length of the part that is synced to the disk and so survives a crash of the machine.
    synced: u64,
    /// The bytes to append to the file.
    unwritten: Vec<u8>,
    last_write: Instant,
}

#[derive(Debug, thiserror::Error)]
pub(in crate::crawl) enum LogError {
    #[error("use {0}")]
    Io(PathBuf, #[source] io::Error),
    #[error("{0} is being written by another crawl")]
    Taken(PathBuf),
}

/// A position between two frames, in bytes from the start of the file.
pub(super) type LogOffset = u64;
pub(super) type LogRange = std::ops::Range<LogOffset>;

impl FrontierLog {
    /// A log in an unnamed file, which is deleted when the process ends.
    pub(super) fn temporary() -> io::Result<Self> {
        Self::begin(tempfile::tempfile()?, "")
    }

    /// Opens the log at `path`, which is created if missing. If the log belongs to `owner`,
    /// `replay` receives each frame and its position. A log that does not belong to `owner` is
    /// overwritten.
    pub(super) fn open(
        path: &Path,
        owner: &str,
        mut replay: impl FnMut(&LogFrame, LogRange),
    ) -> Result<Self, LogError> {
        let refused = |source| LogError::Io(path.to_owned(), source);
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let mut file = options.open(path).map_err(refused)?;
        file.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => LogError::Taken(path.to_owned()),
            std::fs::TryLockError::Error(source) => refused(source),
        })?;
        let head = head(owner);
        let mut found = vec![0; head.len()];
        let is_ours = file.read_exact(&mut found).is_ok() && found == head;
        if !is_ours {
            return Self::begin(file, owner).map_err(refused);
        }
        let length = file.metadata().map_err(refused)?.len();
        let mut log = Self::over(file, length);
        let mut at = first(owner);
        while let Some((frame, next)) = log.reader().read(at).map_err(refused)? {
            replay(&frame, at..next);
            at = next;
        }
        log.file.set_len(at).map_err(refused)?;
        log.written = at;
        Ok(log)
    }

    fn begin(mut file: File, owner: &str) -> io::Result<Self> {
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&head(owner))?;
        Ok(Self::over(file, first(owner)))
    }

    fn over(file: File, written: u64) -> Self {
        let last_write = Instant::now();
        Self { file: Arc::new(file), written, synced: 0, unwritten: Vec::new(), last_write }
    }

    /// Appends a frame in memory, and returns its position.
    pub(super) fn push(&mut self, frame: &LogFrame) -> LogRange {
        let body = frame.encode_to_vec();
        let at = self.end();
        let length = u32::try_from(body.len()).expect("frames are far shorter than 4 GiB");
        self.unwritten.extend(length.to_le_bytes());
        self.unwritten.extend(checksum(&body).to_le_bytes());
        self.unwritten.extend(body);
        at..self.end()
    }

    fn end(&self) -> LogOffset {
        self.written + u64::try_from(self.unwritten.len()).expect("a length")
    }

    /// Whether the unwritten frames should be written before the crawl continues.
    pub(super) fn is_due(&self) -> bool {
        self.unwritten.len() >= MAX_UNWRITTEN || self.last_write.elapsed() >= WRITE_EVERY
    }

    /// Writes the unwritten frames. May be called again after an error or a cancellation.
    pub(super) async fn write(&mut self) -> io::Result<()> {
        let (file, at, bytes) = (Arc::clone(&self.file), self.written, self.unwritten.clone());
        let length = bytes.len();
        if length > 0 {
            blocking(move || file.write_all_at(&bytes, at)).await?;
        }
        self.last_write = Instant::now();
        self.unwritten.drain(..length);
        self.written += u64::try_from(length).expect("a length");
        Ok(())
    }

    /// Syncs the written frames to the disk, so that they survive a crash of the machine.
    pub(super) async fn sync(&mut self) -> io::Result<()> {
        let (file, to) = (Arc::clone(&self.file), self.written);
        if self.synced < to {
            blocking(move || file.sync_data()).await?;
            self.synced = to;
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) const fn is_synced(&self) -> bool {
        self.unwritten.is_empty() && self.synced >= self.written
    }

    pub(super) fn reader(&self) -> LogReader {
        LogReader { file: Arc::clone(&self.file), end: self.written }
    }

    /// The frame at `at` if it is still in memory, and the position after it; `None` if it is in
    /// the file or does not exist yet.
    pub(super) fn in_memory(&self, at: LogOffset) -> Option<(LogFrame, LogOffset)> {
        let from = usize::try_from(at.checked_sub(self.written)?).ok()?;
        let (frame, length) = whole(self.unwritten.get(from..)?)?;
        Some((frame, at + length))
    }

    pub(super) const fn is_written(&self, at: LogOffset) -> bool {
        at < self.written
    }
}

#[derive(Debug)]
pub(super) struct LogReader {
    file: Arc<File>,
    end: u64,
}

impl LogReader {
    /// The frame at `at`, and the position after it; `None` at the end, or if no whole frame
    /// follows.
    pub(super) fn read(&self, at: LogOffset) -> io::Result<Option<(LogFrame, LogOffset)>> {
        let mut header = [0; HEADER];
        if at + 8 > self.end {
            return Ok(None);
        }
        self.file.read_exact_at(&mut header, at)?;
        let (length, checked) = header_of(header);
        let end = at + 8 + u64::try_from(length).expect("a length");
        if length > MAX_FRAME || end > self.end {
            return Ok(None);
        }
        let mut body = vec![0; length];
        self.file.read_exact_at(&mut body, at + 8)?;
        if checksum(&body) != checked {
            return Ok(None);
        }
        Ok(LogFrame::decode(body.as_slice()).ok().map(|frame| (frame, end)))
    }

    /// The queued paths of the frames from `at` on, and the position after these frames. Reads
    /// [`READ_AHEAD`] bytes, or one frame if that is longer. `None` if [`LogReader::read`] returns
    /// `None`.
    pub(super) fn read_ahead(&self, at: LogOffset) -> io::Result<Option<(Vec<QueuedPath>, LogOffset)>> {
        let there = usize::try_from(self.end.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut block = vec![0; there.min(READ_AHEAD)];
        self.file.read_exact_at(&mut block, at)?;
        let (mut queued, mut rest, mut next) = (Vec::new(), block.as_slice(), at);
        while let Some((frame, length)) = whole(rest) {
            queued.extend(frame.queued);
            next += length;
            rest = usize::try_from(length).ok().and_then(|length| rest.get(length..)).unwrap_or_default();
        }
        if next > at {
            return Ok(Some((queued, next)));
        }
        // Either the first frame is longer than the bytes read ahead, or there is no whole frame.
        Ok(self.read(at)?.map(|(frame, next)| (frame.queued, next)))
    }
}

pub(super) fn first(owner: &str) -> LogOffset {
    u64::try_from(head(owner).len()).expect("a length")
}

fn head(owner: &str) -> Vec<u8> {
    // The head must be one line, so remove line breaks from the owner's name.
    let owner = owner.replace(['\n', '\r'], " ");
    [MAGIC, owner.as_bytes(), b"\n"].concat()
}

fn header_of(header: [u8; HEADER]) -> (usize, u32) {
    let [a, b, c, d, e, f, g, h] = header;
    let length = u32::from_le_bytes([a, b, c, d]);
    (usize::try_from(length).unwrap_or(usize::MAX), u32::from_le_bytes([e, f, g, h]))
}

/// The frame at the start of `bytes`, and its length with its header; `None` if it is incomplete.
fn whole(bytes: &[u8]) -> Option<(LogFrame, u64)> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
    let (length, checked) = header_of(*header);
    let body = rest.get(..length)?;
    if checksum(body) != checked {
        return None;
    }
    Some((LogFrame::decode(body).ok()?, u64::try_from(HEADER + length).expect("a length")))
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::crawl::frontier::tests::block_on;

    fn frame(number: u32) -> LogFrame {
        let queued = (0..number % 5).map(|depth| QueuedPath { path: format!("/{number}/{depth}"), depth }).collect();
        LogFrame {
            visited: true,
            queued,
            totals: CrawlTotals { pages: number, ..CrawlTotals::default() },
            ..LogFrame::default()
        }
    }

    pub(crate) fn write(log: &mut FrontierLog) {
        block_on(log.write()).unwrap();
    }

    fn replayed(path: &Path, owner: &str) -> Vec<LogFrame> {
        let mut frames = Vec::new();
        FrontierLog::open(path, owner, |frame, _| frames.push(frame.clone())).unwrap();
        frames
    }

    #[test]
    fn frames_are_read_back_from_memory_and_from_the_file() {
        let mut log = FrontierLog::temporary().unwrap();
        let mut at = first("");
        for number in 0..20 {
            log.push(&frame(number));
            if number == 11 {
                write(&mut log);
            }
        }
        for number in 0..20 {
            let found = if log.is_written(at) { log.reader().read(at).unwrap() } else { log.in_memory(at) };
            let (found, next) = found.unwrap();
            assert_eq!(found, frame(number));
            at = next;
        }
        assert!(!log.is_written(at) && log.in_memory(at).is_none());
    }

    #[test]
    fn reading_ahead_returns_every_path_once_and_in_order() {
        let mut log = FrontierLog::temporary().unwrap();
        let frames = [0, 3, 20_000, 1, 0, 2, 7, 900, 0, 5_000, 0].map(|paths: u32| {
            let queued = (0..paths).map(|path| QueuedPath { path: format!("/{paths}/{path}"), depth: path }).collect();
            LogFrame { visited: true, queued, ..LogFrame::default() }
        });
        for frame in &frames {
            log.push(frame);
        }
        write(&mut log);
        let (reader, mut at, mut found) = (log.reader(), first(""), Vec::new());
        let mut reads = 0;
        while let Some((queued, next)) = reader.read_ahead(at).unwrap() {
            assert!(next > at);
            found.extend(queued);
            at = next;
            reads += 1;
        }
        assert!(found.into_iter().eq(frames.iter().flat_map(|frame| frame.queued.clone())));
        assert_eq!(at, log.written);
        assert!(reads < frames.len(), "{reads} reads");
    }

    #[test]
    fn a_restart_finds_every_whole_frame_of_the_same_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-1.crawl");
        let mut log = FrontierLog::open(&path, "a.cn", |_, _| panic!("it is new")).unwrap();
        for number in 0..3 {
            log.push(&frame(number));
        }
        write(&mut log);
        assert!(matches!(FrontierLog::open(&path, "a.cn", |_, _| ()), Err(LogError::Taken(_))));
        drop(log);
        assert_eq!(replayed(&path, "a.cn"), [frame(0), frame(1), frame(2)]);
        assert_eq!(replayed(&path, "b.cn"), []);
        assert_eq!(replayed(&path, "b.cn"), []);
    }

    proptest! {
        #[test]
        fn after_a_crash_every_whole_frame_counts(
            cut in 0_usize..400,
            rubbish in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("1-1.crawl");
            let mut log = FrontierLog::open(&path, "a.cn", |_, _| ()).unwrap();
            for number in 0..9 {
                log.push(&frame(number));
            }
            write(&mut log);
            drop(log);
            let mut bytes = std::fs::read(&path).unwrap();
            bytes.truncate(bytes.len().saturating_sub(cut).max(usize::try_from(first("a.cn")).unwrap()));
            bytes.extend(&rubbish);
            std::fs::write(&path, &bytes).unwrap();
            let frames = replayed(&path, "a.cn");
            for (number, found) in (0..).zip(&frames) {
                prop_assert_eq!(found, &frame(number));
            }
            prop_assert!(cut > 0 || frames.len() == 9);
            // New frames are appended where the file was cut.
            let mut log = FrontierLog::open(&path, "a.cn", |_, _| ()).unwrap();
            log.push(&frame(77));
            write(&mut log);
            drop(log);
            let frames = replayed(&path, "a.cn");
            prop_assert_eq!(frames.last(), Some(&frame(77)));
        }
    }
}
