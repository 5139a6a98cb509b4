//! A WARC file that is being written, and its index, which has a line for each response.
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

use super::exchange::Exchange;
use super::fields::{date, new_id};
use super::index_line::{RecordPosition, ResponseLine};
use super::member::Gzip;
use super::{names, records};

/// Number of bytes of gzip members to collect before they are written.
const AT_ONCE: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Volume {
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
        if folder.join(names::closed(stem)).exists() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // Create the index first: if the index exists, the name is taken.
        let lines = new(names::lines(stem))?;
        let begun = new(names::open(stem)).and_then(|warc| {
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
            for name in [names::open(stem), names::lines(stem)] {
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
        let (fields, block) = records::info(&self.info_id, at, &names::closed(&self.stem));
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
    pub(super) fn commit(&mut self, gzip: &mut Gzip) -> io::Result<()> {
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

        let record = RecordPosition { warc: names::closed(&self.stem), offset: begin, length: answer_end - begin };
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
            fs::rename(self.folder.join(names::open(&self.stem)), self.folder.join(names::closed(&self.stem)))?;
            self.named = true;
        }
        File::open(&self.folder)?.sync_all()
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("a length")
}
