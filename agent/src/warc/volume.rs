//! One WARC file that is being written, and the lines beside it, one for each answer.
//!
//! The file is called `.open` until it is closed. What was [appended](Volume::append) is in the system's hands when [`Volume::commit`]
//! returns; where either fails, everything since the last commit leaves nothing.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::exchange::Exchange;
use super::fields::{Fields, date, new_id};
use super::member::Gzip;
use super::{digest, names};
use crate::net::user_agent::UserAgent;

/// Bytes of members that are made before they are written.
const AT_ONCE: usize = 1 << 20;
/// What is kept of a media type, in characters: a header may have kilobytes.
const MAX_TYPE: usize = 200;

/// What the file of lines says of an answer. Every line has every field, so that programs read one kind of line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub url: String,
    pub status: u16,
    /// When the answer's head was there.
    pub fetched_at: String,
    pub ip: Option<String>,
    pub content_type: Option<String>,
    /// Bytes of the body, decoded.
    pub bytes: u64,
    /// Bytes of the body, as it was sent and is stored.
    pub stored_bytes: u64,
    /// The digest of the body as it is stored.
    pub digest: String,
    /// Why the body is not whole; null when it is.
    pub truncated: Option<String>,
    pub warc: String,
    /// Where the answer's record begins in it.
    pub offset: u64,
    /// The length of that record in the file; its request follows.
    pub length: u64,
    pub site: String,
    /// The task; null where no scheduler gave one.
    pub task: Option<i64>,
    /// Links from the start page; null for what is no page.
    pub depth: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Volume {
    folder: PathBuf,
    stem: String,
    warc: File,
    /// Where the last record ends that was committed.
    end: u64,
    /// Where the next bytes go: behind that, and behind what large bodies had written before they were committed.
    at: u64,
    lines: File,
    lines_end: u64,
    /// Lines of what is not committed yet.
    new_lines: Vec<u8>,
    /// The record that says where all others come from.
    info_id: String,
    unsynced: bool,
    /// Whether it has its name already.
    named: bool,
}

impl Volume {
    /// Begins a file, with the record that says what it is.
    /// `AlreadyExists` where the name is taken; else the disk refused, and there is no file.
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
        // First: where it is there, the name is another file's.
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
            // What cannot be removed now is mended at the next start.
            for name in [names::open(stem), names::lines(stem)] {
                let _gone = fs::remove_file(folder.join(name));
            }
        }
        begun
    }

    /// Its bytes, with what is appended and not committed yet.
    pub(super) fn len(&self, gzip: &Gzip) -> u64 {
        self.at + length(gzip.made())
    }

    fn add_info(&mut self, at: SystemTime, gzip: &mut Gzip) -> io::Result<()> {
        let block = format!(
            "software: {}/{}\r\nformat: WARC File Format 1.1\r\n\
             conformsTo: http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/\r\n\
             robots: obey\r\n",
            UserAgent::PRODUCT,
            crate::VERSION,
        );
        let mut fields = Fields::new("warcinfo", &self.info_id, &date(at));
        fields.add("WARC-Filename", &names::closed(&self.stem));
        fields.add("WARC-Block-Digest", &digest::of(block.as_bytes()));
        fields.add("Content-Type", "application/warc-fields");
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

    /// Adds an exchange: the answer, the request, and the line. Until it is committed most of it is in memory, since writing
    /// costs about as much for many as for one.
    pub(super) fn append(&mut self, exchange: &Exchange, gzip: &mut Gzip, rng: &mut ChaCha8Rng) -> io::Result<()> {
        self.unsynced = true;
        self.add(exchange, gzip, rng).inspect_err(|_| self.roll_back(gzip))
    }

    /// Writes what was appended. The lines come last: whoever finds one finds its record.
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
        // Where this fails too, what is left is written over by the next attempt, or cut off at the next start.
        let _cut = self.warc.set_len(self.end).and_then(|()| self.lines.set_len(self.lines_end));
    }

    fn add(&mut self, exchange: &Exchange, gzip: &mut Gzip, rng: &mut ChaCha8Rng) -> io::Result<()> {
        let Exchange { answered, body, .. } = exchange;
        let (answer_id, request_id) = (new_id(rng), new_id(rng));
        let payload = exchange.payload.clone().label();
        let (begin, date) = (self.len(gzip), date(answered.at));

        let mut fields = self.fields("response", &answer_id, &date, exchange);
        if let Some(truncated) = exchange.truncated {
            fields.add("WARC-Truncated", truncated.name());
        }
        fields.add("WARC-Payload-Digest", &payload);
        fields.add("WARC-Block-Digest", &exchange.block.clone().label());
        fields.add("Content-Type", "application/http;msgtype=response");
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

        let mut fields = self.fields("request", &request_id, &date, exchange);
        fields.add("WARC-Concurrent-To", &answer_id);
        fields.add("WARC-Block-Digest", &digest::of(&answered.request));
        fields.add("Content-Type", "application/http;msgtype=request");
        let head = fields.end(length(&answered.request));
        gzip.plain(&[head.as_bytes(), &answered.request, b"\r\n\r\n"])?;

        let line = self.line(exchange, date, payload, begin, answer_end - begin);
        serde_json::to_writer(&mut self.new_lines, &line)?;
        self.new_lines.push(b'\n');
        Ok(())
    }

    fn fields(&self, kind: &str, id: &str, date: &str, exchange: &Exchange) -> Fields {
        let mut fields = Fields::new(kind, id, date);
        fields.add("WARC-Target-URI", &exchange.answered.url);
        fields.add("WARC-Warcinfo-ID", &self.info_id);
        if let Some(address) = exchange.answered.address {
            fields.add("WARC-IP-Address", &address.to_canonical().to_string());
        }
        fields
    }

    fn line(&self, exchange: &Exchange, fetched_at: String, digest: String, offset: u64, length: u64) -> Line {
        let Exchange { of, answered, depth, body, decoded, truncated, .. } = exchange;
        Line {
            url: answered.url.clone(),
            status: answered.status,
            fetched_at,
            ip: answered.address.map(|address| address.to_canonical().to_string()),
            content_type: answered.content_type.as_ref().map(|text| text.chars().take(MAX_TYPE).collect()),
            bytes: *decoded,
            stored_bytes: body.len(),
            digest,
            truncated: truncated.map(|truncated| truncated.name().to_owned()),
            warc: names::closed(&self.stem),
            offset,
            length,
            site: of.site.clone(),
            task: of.task_id,
            depth: *depth,
        }
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.unsynced {
            self.warc.sync_data()?;
            self.lines.sync_data()?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// Gives the file its name. What fails may be tried again.
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
