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
use serde::{Deserialize, Serialize};

use super::exchange::Exchange;
use super::fields::{Fields, date, new_id};
use super::member::Gzip;
use super::{digest, names};
use crate::VERSION;
use crate::net::user_agent::UserAgent;

/// Number of bytes of gzip members to collect before they are written.
const AT_ONCE: usize = 1 << 20;
/// Maximum number of characters of a media type to store. The number is limited because a header
/// may be several kilobytes long.
const MAX_TYPE: usize = 200;

/// The line that describes a response. Every line has all fields, so that programs need to handle
/// only one form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseLine {
    pub url: String,
    pub status: u16,
    /// The time at which the response's head arrived.
    pub fetched_at: String,
    pub ip: Option<String>,
    pub content_type: Option<String>,
    /// Number of bytes of the decoded body.
    pub bytes: u64,
    /// Number of bytes of the body as it was sent and stored, before decoding.
    pub stored_bytes: u64,
    /// The digest of the body as stored.
    pub digest: String,
    /// Why the body is incomplete; null if it is complete.
    pub truncated: Option<String>,
    pub warc: String,
    /// The position of the response's record in the WARC file.
    pub offset: u64,
    /// The length of the response's record. The request's record follows it.
    pub length: u64,
    pub site: String,
    /// The task; null if the crawl has no scheduler.
    pub task: Option<i64>,
    /// Number of links from the start page; null if the response is not a page.
    pub depth: Option<u32>,
}

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
        let block = format!(
            "software: {}/{}\r\nformat: WARC File Format 1.1\r\n\
             conformsTo: http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/\r\n\
             robots: obey\r\n",
            UserAgent::PRODUCT,
            VERSION,
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

    fn line(&self, exchange: &Exchange, fetched_at: String, digest: String, offset: u64, length: u64) -> ResponseLine {
        let Exchange { of, answered, depth, body, decoded, truncated, .. } = exchange;
        ResponseLine {
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
