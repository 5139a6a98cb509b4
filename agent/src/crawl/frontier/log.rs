//! What happened to a frontier, as a file: the queue that does not fit into memory, and what a restart reads.
//!
//! The file begins with a line that says whose it is, and then only grows, by frames: what one visit found and spent. A frame
//! counts whole or not at all, by its length and checksum; whatever a crash left after the last whole one is cut off. Frames that
//! are not written yet are in memory and are read from there, so reading and writing never wait for each other.
//!
//! All of it blocks: whoever calls [`Log::write`] or [`Log::read`] is on a thread that may.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Crc;
use prost::Message as _;

/// Begins every file; the number is that of the format.
const MAGIC: &[u8] = b"landfall crawl 1\n";
/// Before every frame: its length and its checksum, both little-endian.
const HEADER: usize = 8;
/// No frame is longer: what a crawl finds at once is bounded far below.
const MAX_FRAME: usize = 64 << 20;

/// What is read of a file at once, in bytes: some hundred steps, for each of which a thread would have to be woken otherwise.
const READ_AHEAD: usize = 64 << 10;

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Queued {
    #[prost(string, tag = "1")]
    pub(super) path: String,
    #[prost(uint32, tag = "2")]
    pub(super) depth: u32,
}

/// What a crawl has spent and seen in all, up to some visit.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(in crate::crawl) struct Spent {
    #[prost(uint32, tag = "1")]
    pub(in crate::crawl) pages: u32,
    /// Their bytes.
    #[prost(uint64, tag = "2")]
    pub(in crate::crawl) bytes: u64,
    #[prost(uint64, tag = "3")]
    pub(in crate::crawl) unwanted_bytes: u64,
    #[prost(uint32, tag = "4")]
    pub(in crate::crawl) errors: u32,
    #[prost(uint64, tag = "5")]
    pub(in crate::crawl) millis: u64,
    /// Pages fetched though an agent had fetched them before.
    #[prost(uint32, tag = "6")]
    pub(in crate::crawl) refetched: u32,
    /// Links left out because they lead into a trap.
    #[prost(uint32, tag = "7")]
    pub(in crate::crawl) trapped: u32,
    /// Whether a page was larger than one may be.
    #[prost(bool, tag = "8")]
    pub(in crate::crawl) page_cut: bool,
    /// Whether paths were lost for want of room.
    #[prost(bool, tag = "9")]
    pub(in crate::crawl) dropped: bool,
    /// Whether more paths beyond the depth were found than are remembered one by one.
    #[prost(bool, tag = "10")]
    pub(in crate::crawl) beyond: bool,
    #[prost(bool, tag = "11")]
    pub(in crate::crawl) sitemaps_read: bool,
    /// Times the site turned the crawl away since it was forgiven last.
    #[prost(uint32, tag = "12")]
    pub(in crate::crawl) turned_away: u32,
    #[prost(uint32, tag = "13")]
    pub(in crate::crawl) failed_in_a_row: u32,
    /// Until when the site is left alone, by the wall clock; 0 when it is not.
    #[prost(uint64, tag = "14")]
    pub(in crate::crawl) paused_until_unix_ms: u64,
    /// Pages of the site that its sitemaps list.
    #[prost(uint64, tag = "15")]
    pub(in crate::crawl) listed: u64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Frame {
    /// Whether the path at the head of the queue was visited by it. Otherwise it only adds to the queue, as a sitemap does.
    #[prost(bool, tag = "1")]
    pub(super) visited: bool,
    #[prost(message, repeated, tag = "2")]
    pub(super) queued: Vec<Queued>,
    /// Paths to be known without being queued, by fingerprint, 16 bytes each: where redirects led, and what another agent visited.
    #[prost(bytes = "vec", tag = "3")]
    pub(super) known: Vec<u8>,
    /// Paths beyond the depth, likewise.
    #[prost(bytes = "vec", tag = "4")]
    pub(super) beyond: Vec<u8>,
    /// What was spent in all when it ended.
    #[prost(message, required, tag = "5")]
    pub(super) spent: Spent,
}

impl Frame {
    pub(super) const QUEUED: usize = 2;
}

#[derive(Debug)]
pub(super) struct Log {
    file: Arc<File>,
    /// Where the file ends, in bytes.
    written: u64,
    /// Up to where no end of the machine loses it.
    synced: u64,
    /// What comes after that which is written.
    unwritten: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub(in crate::crawl) enum OpenError {
    #[error("use {0}")]
    Io(PathBuf, #[source] io::Error),
    #[error("{0} is being written by another crawl")]
    Taken(PathBuf),
}

/// A place between two frames, in bytes.
pub(super) type Place = u64;
pub(super) type Span = std::ops::Range<Place>;

impl Log {
    /// A log without a name, gone with the process.
    pub(super) fn temporary() -> io::Result<Self> {
        Self::begin(tempfile::tempfile()?, "")
    }

    /// The log at `path`, which is made if need be. What it holds is given to `replay`, each frame with where it lies, if it was
    /// `owner`'s; whatever else is there is overwritten.
    pub(super) fn open(path: &Path, owner: &str, mut replay: impl FnMut(&Frame, Span)) -> Result<Self, OpenError> {
        let refused = |source| OpenError::Io(path.to_owned(), source);
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let mut file = options.open(path).map_err(refused)?;
        file.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => OpenError::Taken(path.to_owned()),
            std::fs::TryLockError::Error(source) => refused(source),
        })?;
        let head = head(owner);
        let mut found = vec![0; head.len()];
        let is_ours = file.read_exact(&mut found).is_ok() && found == head;
        if !is_ours {
            return Self::begin(file, owner).map_err(refused);
        }
        let length = file.metadata().map_err(refused)?.len();
        let mut log = Self { file: Arc::new(file), written: length, synced: 0, unwritten: Vec::new() };
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
        Ok(Self { file: Arc::new(file), written: first(owner), synced: 0, unwritten: Vec::new() })
    }

    /// Adds a frame, in memory; returns where it lies.
    pub(super) fn push(&mut self, frame: &Frame) -> Span {
        let body = frame.encode_to_vec();
        let at = self.end();
        let length = u32::try_from(body.len()).expect("frames are far shorter than 4 GiB");
        self.unwritten.extend(length.to_le_bytes());
        self.unwritten.extend(checksum(&body).to_le_bytes());
        self.unwritten.extend(body);
        at..self.end()
    }

    fn end(&self) -> Place {
        self.written + u64::try_from(self.unwritten.len()).expect("a length")
    }

    pub(super) const fn unwritten(&self) -> usize {
        self.unwritten.len()
    }

    /// What is to be written, and where. [`Log::wrote`] says that it was; before, it may be asked for again.
    pub(super) fn to_write(&self) -> (Arc<File>, Place, Vec<u8>) {
        (Arc::clone(&self.file), self.written, self.unwritten.clone())
    }

    /// Notes that so many bytes are in the file.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.unwritten.drain(..bytes);
        self.written += u64::try_from(bytes).expect("a length");
    }

    /// What puts on the disk that which is written, and up to where; `None` where nothing is to be done. [`Log::was_synced`] says that
    /// it was.
    pub(super) fn to_sync(&self) -> Option<(Arc<File>, Place)> {
        (self.synced < self.written).then(|| (Arc::clone(&self.file), self.written))
    }

    /// Notes that what lies before a place is on the disk.
    pub(super) fn was_synced(&mut self, to: Place) {
        self.synced = self.synced.max(to);
    }

    pub(super) fn reader(&self) -> Reader {
        Reader { file: Arc::clone(&self.file), end: self.written }
    }

    /// The frame at `at` where it is in memory still, and the place after it; `None` when it is in the file, or not there yet.
    pub(super) fn in_memory(&self, at: Place) -> Option<(Frame, Place)> {
        let from = usize::try_from(at.checked_sub(self.written)?).ok()?;
        let (frame, length) = whole(self.unwritten.get(from..)?)?;
        Some((frame, at + length))
    }

    pub(super) const fn is_written(&self, at: Place) -> bool {
        at < self.written
    }
}

#[derive(Debug)]
pub(super) struct Reader {
    file: Arc<File>,
    end: u64,
}

impl Reader {
    /// The frame at `at`, and the place after it; `None` at the end, and where no whole frame is.
    pub(super) fn read(&self, at: Place) -> io::Result<Option<(Frame, Place)>> {
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
        Ok(Frame::decode(body.as_slice()).ok().map(|frame| (frame, end)))
    }

    /// What the frames from `at` on queue, as many as are read at once and one at least, and the place after them; `None` where
    /// [`Reader::read`] says so.
    pub(super) fn read_ahead(&self, at: Place) -> io::Result<Option<(Vec<Queued>, Place)>> {
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
        // The first is longer than that, or none.
        Ok(self.read(at)?.map(|(frame, next)| (frame.queued, next)))
    }
}

pub(super) fn first(owner: &str) -> Place {
    u64::try_from(head(owner).len()).expect("a length")
}

fn head(owner: &str) -> Vec<u8> {
    // A line, whatever the owner is called.
    let owner = owner.replace(['\n', '\r'], " ");
    [MAGIC, owner.as_bytes(), b"\n"].concat()
}

fn header_of(header: [u8; HEADER]) -> (usize, u32) {
    let [a, b, c, d, e, f, g, h] = header;
    let length = u32::from_le_bytes([a, b, c, d]);
    (usize::try_from(length).unwrap_or(usize::MAX), u32::from_le_bytes([e, f, g, h]))
}

/// The frame that `bytes` begin with, and its length with its header; `None` when it is not whole.
fn whole(bytes: &[u8]) -> Option<(Frame, u64)> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
    let (length, checked) = header_of(*header);
    let body = rest.get(..length)?;
    if checksum(body) != checked {
        return None;
    }
    Some((Frame::decode(body).ok()?, u64::try_from(HEADER + length).expect("a length")))
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

    fn frame(number: u32) -> Frame {
        let queued = (0..number % 5).map(|depth| Queued { path: format!("/{number}/{depth}"), depth }).collect();
        Frame { visited: true, queued, spent: Spent { pages: number, ..Spent::default() }, ..Frame::default() }
    }

    pub(crate) fn write(log: &mut Log) {
        let (file, at, bytes) = log.to_write();
        file.write_all_at(&bytes, at).unwrap();
        log.wrote(bytes.len());
    }

    fn replayed(path: &Path, owner: &str) -> Vec<Frame> {
        let mut frames = Vec::new();
        Log::open(path, owner, |frame, _| frames.push(frame.clone())).unwrap();
        frames
    }

    #[test]
    fn frames_are_read_back_from_memory_and_from_the_file() {
        let mut log = Log::temporary().unwrap();
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
    fn reading_ahead_brings_every_path_once_and_in_order_whatever_the_frames_lengths() {
        let mut log = Log::temporary().unwrap();
        let frames = [0, 3, 20_000, 1, 0, 2, 7, 900, 0, 5_000, 0].map(|paths: u32| {
            let queued = (0..paths).map(|path| Queued { path: format!("/{paths}/{path}"), depth: path }).collect();
            Frame { visited: true, queued, ..Frame::default() }
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
        let mut log = Log::open(&path, "a.cn", |_, _| panic!("it is new")).unwrap();
        for number in 0..3 {
            log.push(&frame(number));
        }
        write(&mut log);
        assert!(matches!(Log::open(&path, "a.cn", |_, _| ()), Err(OpenError::Taken(_))));
        drop(log);
        assert_eq!(replayed(&path, "a.cn"), [frame(0), frame(1), frame(2)]);
        assert_eq!(replayed(&path, "b.cn"), []);
        assert_eq!(replayed(&path, "b.cn"), []);
    }

    proptest! {
        #[test]
        fn whatever_a_crash_leaves_the_whole_frames_before_it_count(
            cut in 0_usize..400,
            rubbish in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("1-1.crawl");
            let mut log = Log::open(&path, "a.cn", |_, _| ()).unwrap();
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
            // And goes on from there.
            let mut log = Log::open(&path, "a.cn", |_, _| ()).unwrap();
            log.push(&frame(77));
            write(&mut log);
            drop(log);
            let frames = replayed(&path, "a.cn");
            prop_assert_eq!(frames.last(), Some(&frame(77)));
        }
    }
}
