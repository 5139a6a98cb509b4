//! The WARC files that are being written, one after another, their names and their indexes, which
//! have a line for each response.
//!
//! The name of the WARC file ends in `.open` until the file is closed. When [`Volume::commit`]
//! returns, everything that was [appended](Volume::append) is in the file. If an append or a commit
//! fails, everything since the last commit is removed from the file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rand::rngs::ChaCha8Rng;

use super::recording::Exchange;
use super::records::{self, Gzip, RecordPosition, ResponseLine, date, new_id, stamp};
use crate::machine::clock;

/// Number of bytes of gzip members to collect before they are written.
const AT_ONCE: usize = 1 << 20;

#[derive(Debug)]
struct Volume {
    folder: PathBuf,
    stem: String,
    warc: File,
    /// The position after the last committed record.
    end: u64,
    /// The position of the next write. Uncommitted parts of large bodies are between `end` and this
    /// position.
    at: u64,
    lines: File,
    lines_end: u64,
    /// Lines of uncommitted records.
    new_lines: Vec<u8>,
    /// The identifier of the warcinfo record, to which all other records refer.
    info_id: String,
    unsynced: bool,
    /// Whether the file has its final name.
    named: bool,
}

impl Volume {
    /// Creates a file with its warcinfo record. Fails with `AlreadyExists` if the name is taken.
    /// Any other error comes from the disk; the new files are removed if possible.
    pub(super) fn begin(
        folder: &Path,
        stem: &str,
        at: SystemTime,
        gzip: &mut Gzip,
        rng: &mut ChaCha8Rng,
    ) -> io::Result<Self> {
        let new = |name: String| OpenOptions::new().write(true).create_new(true).open(folder.join(name));
        if folder.join(closed_name(stem)).exists() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // Create the index first: if the index exists, the name is taken.
        let lines = new(lines_name(stem))?;
        let begun = new(open_name(stem)).and_then(|warc| {
            let mut volume = Self {
                folder: folder.to_owned(),
                stem: stem.to_owned(),
                warc,
                end: 0,
                at: 0,
                lines,
                lines_end: 0,
                new_lines: Vec::new(),
                info_id: new_id(rng),
                unsynced: true,
                named: false,
            };
            gzip.clear();
            volume.add_info(at, gzip)?;
            volume.end = volume.at;
            Ok(volume)
        });
        if begun.is_err() {
            // Errors are ignored, because the agent completes the remaining files at its next
            // start.
            for name in [open_name(stem), lines_name(stem)] {
                let _gone = fs::remove_file(folder.join(name));
            }
        }
        begun
    }

    /// The file's length in bytes, including uncommitted bytes.
    pub(super) fn len(&self, gzip: &Gzip) -> u64 {
        self.at + length(gzip.made())
    }

    fn add_info(&mut self, at: SystemTime, gzip: &mut Gzip) -> io::Result<()> {
        let (fields, block) = records::info(&self.info_id, at, &closed_name(&self.stem));
        gzip.begin();
        gzip.write(fields.end(length(block.as_bytes())).as_bytes())?;
        gzip.write(block.as_bytes())?;
        gzip.write(b"\r\n\r\n")?;
        gzip.end()?;
        self.write(gzip)
    }

    fn write(&mut self, gzip: &mut Gzip) -> io::Result<()> {
        let made = gzip.made();
        self.warc.write_all_at(made, self.at)?;
        self.at += length(made);
        gzip.clear();
        Ok(())
    }

    /// Adds an exchange: the records of the response and the request, and the response's line. Most
    /// bytes stay in memory until the commit, because writing many exchanges at once takes about as
    /// long as writing one.
    pub(super) fn append(&mut self, exchange: &Exchange, gzip: &mut Gzip, rng: &mut ChaCha8Rng) -> io::Result<()> {
        self.unsynced = true;
        self.add(exchange, gzip, rng).inspect_err(|_| self.roll_back(gzip))
    }

    /// Writes the appended exchanges. The lines are written last, so that the record of every line
    /// exists.
    fn commit(&mut self, gzip: &mut Gzip) -> io::Result<()> {
        let written = self.write(gzip).and_then(|()| self.lines.write_all_at(&self.new_lines, self.lines_end));
        written.inspect_err(|_| self.roll_back(gzip))?;
        self.end = self.at;
        self.lines_end += length(&self.new_lines);
        self.new_lines.clear();
        Ok(())
    }

    fn roll_back(&mut self, gzip: &mut Gzip) {
        gzip.clear();
        self.new_lines.clear();
        self.at = self.end;
        // Errors are ignored, because remaining bytes are overwritten by the next commit, or
        // removed at the agent's next start.
        let _cut = self.warc.set_len(self.end).and_then(|()| self.lines.set_len(self.lines_end));
    }

    fn add(&mut self, exchange: &Exchange, gzip: &mut Gzip, rng: &mut ChaCha8Rng) -> io::Result<()> {
        let Exchange { answered, body, .. } = exchange;
        let (answer_id, request_id) = (new_id(rng), new_id(rng));
        let payload = exchange.payload.clone().label();
        let (begin, date) = (self.len(gzip), date(answered.at));

        let fields = records::response(exchange, &answer_id, &self.info_id, &date, &payload);
        gzip.begin();
        gzip.write(fields.end(length(&answered.head) + body.len()).as_bytes())?;
        gzip.write(&answered.head)?;
        body.read(|piece| {
            gzip.write(piece)?;
            if gzip.made().len() >= AT_ONCE {
                self.write(gzip)?;
            }
            Ok(())
        })?;
        gzip.write(b"\r\n\r\n")?;
        gzip.end()?;
        let answer_end = self.len(gzip);

        let fields = records::request(exchange, &request_id, &self.info_id, &date, &answer_id);
        let head = fields.end(length(&answered.request));
        gzip.plain(&[head.as_bytes(), &answered.request, b"\r\n\r\n"])?;

        let record = RecordPosition { warc: closed_name(&self.stem), offset: begin, length: answer_end - begin };
        let line = ResponseLine::of(exchange, date, payload, record);
        serde_json::to_writer(&mut self.new_lines, &line)?;
        self.new_lines.push(b'\n');
        Ok(())
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.unsynced {
            self.warc.sync_data()?;
            self.lines.sync_data()?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// Gives the file its final name. May be called again after an error.
    pub(super) fn close(&mut self) -> io::Result<()> {
        if !self.named {
            self.warc.set_len(self.end)?;
            self.sync()?;
            fs::rename(self.folder.join(open_name(&self.stem)), self.folder.join(closed_name(&self.stem)))?;
            self.named = true;
        }
        File::open(&self.folder)?.sync_all()
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("a length")
}

/// Writes exchanges to one file after another, with functions that block the thread.
#[derive(Debug)]
pub(super) struct VolumeSeries {
    pub(super) folder: PathBuf,
    /// The agent's name, which is part of the file names.
    pub(super) name: String,
    /// Size in bytes at which a file is full. The next record then goes to a new file.
    pub(super) max_file_bytes: u64,
    /// The number of the next file.
    number: u32,
    volume: Option<Volume>,
    gzip: Gzip,
    rng: ChaCha8Rng,
    _lock: File,
}

impl VolumeSeries {
    pub(super) fn new(folder: PathBuf, lock: File, name: String, max_file_bytes: u64) -> Self {
        let (volume, gzip, rng) = (None, Gzip::new(), rand::make_rng());
        Self { folder, name, max_file_bytes, number: 0, volume, gzip, rng, _lock: lock }
    }

    /// Stores exchanges until the WARC file is full, but at least one if there is any. Returns the
    /// number of stored exchanges.
    pub(super) fn store<'a>(&mut self, exchanges: impl Iterator<Item = &'a Exchange>) -> io::Result<usize> {
        let mut stored = 0;
        for exchange in exchanges {
            let is_full = self.volume.as_ref().is_some_and(|volume| volume.len(&self.gzip) >= self.max_file_bytes);
            if is_full && stored > 0 {
                break;
            }
            if is_full {
                self.close()?;
            }
            let volume = match self.volume.take() {
                Some(volume) => volume,
                None => self.begin()?,
            };
            self.volume.insert(volume).append(exchange, &mut self.gzip, &mut self.rng)?;
            stored += 1;
        }
        if let Some(volume) = self.volume.as_mut().filter(|_| stored > 0) {
            volume.commit(&mut self.gzip)?;
        }
        Ok(stored)
    }

    /// Creates a file with an unused name. Names contain the time in seconds, so an earlier process
    /// may have used some names of the same second.
    fn begin(&mut self) -> io::Result<Volume> {
        loop {
            let at = clock::wall();
            let stem = stem(&self.name, at, self.number);
            self.number = self.number.wrapping_add(1);
            match Volume::begin(&self.folder, &stem, at, &mut self.gzip, &mut self.rng) {
                Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => {}
                begun => return begun,
            }
        }
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.volume.as_mut().map_or(Ok(()), Volume::sync)
    }

    pub(super) fn close(&mut self) -> io::Result<()> {
        if let Some(volume) = &mut self.volume {
            volume.close()?;
        }
        self.volume = None;
        Ok(())
    }
}

pub(super) const OPEN: &str = ".warc.gz.open";
const CLOSED: &str = ".warc.gz";
const LINES: &str = ".jsonl";

/// The common name of a WARC file and its index, without suffixes: the agent's name, the time `at`
/// of the file's creation, and a number.
pub(super) fn stem(name: &str, at: SystemTime, number: u32) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    let name: String = name.chars().take(100).map(|c| if is_plain(c) { c } else { '-' }).collect();
    format!("landfall-{name}-{}-{number:05}", stamp(at))
}

pub(super) fn open_name(stem: &str) -> String {
    format!("{stem}{OPEN}")
}

pub(super) fn closed_name(stem: &str) -> String {
    format!("{stem}{CLOSED}")
}

pub(super) fn lines_name(stem: &str) -> String {
    format!("{stem}{LINES}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_name_is_one_path_component_for_any_agent_name() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * 365);
        assert_eq!(closed_name(&stem("a/../北京 1", at, 7)), "landfall-a-..----1-19710101000000-00007.warc.gz");
        assert!(stem(&"x".repeat(1000), at, u32::MAX).len() < 150);
    }
}
