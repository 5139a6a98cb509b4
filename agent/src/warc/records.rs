//! Builds the records of a WARC file, each a gzip member with its head, and the lines of its index
//! (`.jsonl`), which describe one response each. ISO 28500 (WARC/1.1) defines the fields.
//!
//! The compressor's state is larger than most records, so one compressor is allocated and reused.

use std::fmt::Write as _;
use std::io;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use rand::Rng;
use serde::{Deserialize, Serialize};

use super::recording::{self, Exchange};
use crate::VERSION;
use crate::net::user_agent::UserAgent;

/// The head and the block of the first record, which describes the file `name`.
pub(super) fn info(id: &str, at: SystemTime, name: &str) -> (Fields, String) {
    let block = format!(
        "software: {}/{}\r\nformat: WARC File Format 1.1\r\n\
         conformsTo: http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/\r\n\
         robots: obey\r\n",
        UserAgent::PRODUCT,
        VERSION,
    );
    let mut fields = Fields::new("warcinfo", id, &date(at));
    fields.add("WARC-Filename", name);
    fields.add("WARC-Block-Digest", &recording::digest_of(block.as_bytes()));
    fields.add("Content-Type", "application/warc-fields");
    (fields, block)
}

/// The head of a response. `info_id` identifies the warcinfo record, and `payload` is the digest of
/// the response's payload.
pub(super) fn response(exchange: &Exchange, id: &str, info_id: &str, date: &str, payload: &str) -> Fields {
    let mut fields = of_exchange("response", exchange, id, info_id, date);
    if let Some(truncated) = exchange.truncated {
        fields.add("WARC-Truncated", truncated.name());
    }
    fields.add("WARC-Payload-Digest", payload);
    fields.add("WARC-Block-Digest", &exchange.block.clone().label());
    fields.add("Content-Type", "application/http;msgtype=response");
    fields
}

/// The head of a request. `response_id` identifies the record of its response.
pub(super) fn request(exchange: &Exchange, id: &str, info_id: &str, date: &str, response_id: &str) -> Fields {
    let mut fields = of_exchange("request", exchange, id, info_id, date);
    fields.add("WARC-Concurrent-To", response_id);
    fields.add("WARC-Block-Digest", &recording::digest_of(&exchange.answered.request));
    fields.add("Content-Type", "application/http;msgtype=request");
    fields
}

fn of_exchange(kind: &str, exchange: &Exchange, id: &str, info_id: &str, date: &str) -> Fields {
    let mut fields = Fields::new(kind, id, date);
    fields.add("WARC-Target-URI", &exchange.answered.url);
    fields.add("WARC-Warcinfo-ID", info_id);
    if let Some(address) = exchange.answered.address {
        fields.add("WARC-IP-Address", &address.to_canonical().to_string());
    }
    fields
}

/// Initial buffer size for the head of a record: twice what most heads need.
const HEAD_ROOM: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct Fields(String);

impl Fields {
    /// Starts the head of a record of type `kind`. `date` must have the format of [`date`].
    pub(super) fn new(kind: &str, id: &str, date: &str) -> Self {
        let mut fields = Self(String::with_capacity(HEAD_ROOM));
        fields.0.push_str("WARC/1.1\r\n");
        fields.add("WARC-Type", kind);
        fields.add("WARC-Record-ID", id);
        fields.add("WARC-Date", date);
        fields
    }

    /// Adds a field. Control characters in the value are escaped as in URLs, because they could end
    /// the line.
    pub(super) fn add(&mut self, name: &str, value: &str) {
        self.0.push_str(name);
        self.0.push_str(": ");
        let mut rest = value;
        while let Some(at) = rest.bytes().position(|byte| byte.is_ascii_control()) {
            let (before, behind) = rest.split_at(at);
            let (control, behind) = behind.split_at(1);
            write!(self.0, "{before}%{:02X}", control.as_bytes()[0]).expect("a string takes everything");
            rest = behind;
        }
        self.0.push_str(rest);
        self.0.push_str("\r\n");
    }

    /// Completes the head of a record whose block has `length` bytes.
    pub(super) fn end(mut self, length: u64) -> String {
        self.add("Content-Length", &length.to_string());
        self.0.push_str("\r\n");
        self.0
    }
}

/// Formats a time for WARC fields, with milliseconds.
pub(super) fn date(at: SystemTime) -> String {
    DateTime::<Utc>::from(at).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Formats a time for file names.
pub(super) fn stamp(at: SystemTime) -> String {
    DateTime::<Utc>::from(at).format("%Y%m%d%H%M%S").to_string()
}

/// Makes the identifier of a record: a random UUID (RFC 9562, version 4).
pub(super) fn new_id(rng: &mut impl Rng) -> String {
    let mut bytes = [0; 16];
    rng.fill_bytes(&mut bytes);
    format!("<{}>", uuid::Builder::from_random_bytes(bytes).into_uuid().urn())
}

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

/// The position of a response's record.
#[derive(Debug)]
pub(super) struct RecordPosition {
    /// The name of the WARC file.
    pub(super) warc: String,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl ResponseLine {
    pub(super) fn of(exchange: &Exchange, fetched_at: String, digest: String, record: RecordPosition) -> Self {
        let RecordPosition { warc, offset, length } = record;
        let Exchange { of, answered, depth, body, decoded, truncated, .. } = exchange;
        Self {
            url: answered.url.clone(),
            status: answered.status,
            fetched_at,
            ip: answered.address.map(|address| address.to_canonical().to_string()),
            content_type: answered.content_type.as_ref().map(|text| text.chars().take(MAX_TYPE).collect()),
            bytes: *decoded,
            stored_bytes: body.len(),
            digest,
            truncated: truncated.map(|truncated| truncated.name().to_owned()),
            warc,
            offset,
            length,
            site: of.site.clone(),
            task: of.task_id,
            depth: *depth,
        }
    }
}

/// Compression level, 1 to 9. Level 1 takes two fifths of level 2's time, and its output is a
/// quarter larger than level 2's (docs/evaluation/costs.md).
const LEVEL: u32 = 1;
/// A gzip header: magic number, method deflate, no name, no time, the flag for fastest compression,
/// unknown operating system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
/// Size of the compressor's output buffer in bytes. The output of most records fills only a tenth
/// of the buffer.
const ROOM: usize = 32 << 10;
/// Maximum number of bytes to join before they are compressed. Most records are then compressed in
/// one call.
const TOGETHER: usize = 32 << 10;

#[derive(Debug)]
pub(super) struct Gzip {
    compress: Compress,
    crc: Crc,
    /// Bytes that have been added but not compressed yet.
    waiting: Vec<u8>,
    /// The compressor's output buffer. If the compressor wrote directly to `out`, the free space of
    /// `out` would have to be zeroed for every piece.
    space_limit: Box<[u8]>,
    /// Finished bytes that have not been written to the file yet.
    out: Vec<u8>,
}

impl Gzip {
    pub(super) fn new() -> Self {
        let compress = Compress::new(Compression::new(LEVEL), false);
        let (waiting, space_limit) = (Vec::with_capacity(TOGETHER), vec![0; ROOM].into());
        Self { compress, crc: Crc::new(), waiting, space_limit, out: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.out.clear();
    }

    pub(super) fn begin(&mut self) {
        self.compress.reset();
        self.crc.reset();
        self.waiting.clear();
        self.out.extend(HEADER);
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.waiting.len() + bytes.len() > TOGETHER {
            self.compress_waiting(FlushCompress::None)?;
        }
        if bytes.len() > TOGETHER {
            self.crc.update(bytes);
            return self.compress_all(bytes, FlushCompress::None);
        }
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    pub(super) fn end(&mut self) -> io::Result<()> {
        self.compress_waiting(FlushCompress::Finish)?;
        self.out.extend(self.crc.sum().to_le_bytes());
        self.out.extend(self.crc.amount().to_le_bytes());
        Ok(())
    }

    /// Makes a member from these parts, and compresses it only if it has 64 KiB or more. For small
    /// parts, compression is not worth the time to reset the compressor.
    pub(super) fn plain(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let Ok(length) = u16::try_from(length) else {
            self.begin();
            parts.iter().try_for_each(|part| self.write(part))?;
            return self.end();
        };
        self.out.extend(HEADER);
        // A single stored block, marked as the last: its length, and the complement of the length
        // (RFC 1951, 3.2.4).
        self.out.push(1);
        self.out.extend(length.to_le_bytes());
        self.out.extend((!length).to_le_bytes());
        self.crc.reset();
        for part in parts {
            self.crc.update(part);
            self.out.extend_from_slice(part);
        }
        self.out.extend(self.crc.sum().to_le_bytes());
        self.out.extend(self.crc.amount().to_le_bytes());
        Ok(())
    }

    /// The bytes of all members since the last [`Gzip::clear`].
    pub(super) fn made(&self) -> &[u8] {
        &self.out
    }

    fn compress_waiting(&mut self, flush: FlushCompress) -> io::Result<()> {
        let mut waiting = std::mem::take(&mut self.waiting);
        self.crc.update(&waiting);
        let compressed = self.compress_all(&waiting, flush);
        waiting.clear();
        self.waiting = waiting;
        compressed
    }

    /// Compresses all of `bytes`. If `flush` is `Finish`, also empties the compressor and ends its
    /// stream.
    fn compress_all(&mut self, mut bytes: &[u8], flush: FlushCompress) -> io::Result<()> {
        let is_last = matches!(flush, FlushCompress::Finish);
        let mut status = Status::Ok;
        while !bytes.is_empty() || is_last && status != Status::StreamEnd {
            let before = self.compress.total_in();
            status = self.compress(bytes, flush)?;
            let taken = usize::try_from(self.compress.total_in() - before).map_err(io::Error::other)?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn compress(&mut self, bytes: &[u8], flush: FlushCompress) -> io::Result<Status> {
        let before = self.compress.total_out();
        let status = self.compress.compress(bytes, &mut self.space_limit, flush).map_err(io::Error::other)?;
        let made = usize::try_from(self.compress.total_out() - before).map_err(io::Error::other)?;
        self.out.extend_from_slice(&self.space_limit[..made]);
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::MultiGzDecoder;
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::ChaCha8Rng;

    use super::*;

    #[test]
    fn an_identifier_is_a_random_uuid_in_lower_case() {
        let id = new_id(&mut ChaCha8Rng::seed_from_u64(7));
        let uuid = id.strip_prefix("<urn:uuid:").and_then(|rest| rest.strip_suffix('>')).unwrap();
        let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert!(groups == [8, 4, 4, 4, 12] && uuid[14..].starts_with('4') && uuid == uuid.to_lowercase(), "{id}");
    }

    fn read(members: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        MultiGzDecoder::new(members).read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn noise(length: usize) -> Vec<u8> {
        (0_u32..).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()).take(length).collect()
    }

    #[test]
    fn a_plain_member_reads_back_however_long_it_is() {
        for length in [0, 1, 65_535, 65_536, 100_000] {
            let (bytes, mut gzip) = (noise(length), Gzip::new());
            gzip.plain(&[&bytes[..length / 2], &bytes[length / 2..]]).unwrap();
            assert!(read(gzip.made()) == bytes, "{length} bytes");
        }
    }

    #[test]
    fn an_unfinished_member_leaves_nothing_in_the_next() {
        let mut gzip = Gzip::new();
        gzip.begin();
        gzip.write(b"never ended").unwrap();
        gzip.clear();
        gzip.begin();
        gzip.write(b"whole").unwrap();
        gzip.end().unwrap();
        assert_eq!(read(gzip.made()), b"whole");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn pieces_of_any_length_read_back_in_order(lengths in prop::collection::vec(0..3 * TOGETHER, 0..8)) {
            let (mut gzip, mut all) = (Gzip::new(), Vec::new());
            gzip.begin();
            for (length, shift) in lengths.into_iter().zip(0..) {
                let piece: Vec<u8> = noise(length).into_iter().map(|byte| byte >> shift).collect();
                gzip.write(&piece).unwrap();
                all.extend(piece);
            }
            gzip.end().unwrap();
            gzip.plain(&[b"and ", b"another"]).unwrap();
            prop_assert!(read(gzip.made()) == [all.as_slice(), b"and another"].concat());
        }
    }
}
