//! Reads WARC files whose records are gzip members. Checks the lengths, ends and digests of
//! records.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _};
use std::path::Path;

use flate2::bufread::GzDecoder;

use super::recording;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarcRecord {
    pub offset: u64,
    pub length: u64,
    pub fields: Vec<(String, String)>,
    pub block: Vec<u8>,
}

impl WarcRecord {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The part of the block that follows the HTTP head.
    pub fn payload(&self) -> &[u8] {
        let end = self.block.windows(4).position(|four| four == b"\r\n\r\n").map_or(self.block.len(), |at| at + 4);
        &self.block[end..]
    }
}

/// Reads a whole file into memory.
pub fn records(path: &Path) -> io::Result<Vec<WarcRecord>> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut records = Vec::new();
    while !reader.fill_buf()?.is_empty() {
        let offset = reader.stream_position()?;
        let mut bytes = Vec::new();
        GzDecoder::new(&mut reader).read_to_end(&mut bytes)?;
        let length = reader.stream_position()? - offset;
        let record = record(&bytes, offset, length);
        records.push(record.map_err(|wrong| io::Error::other(format!("{}, at {offset}: {wrong}", path.display())))?);
    }
    Ok(records)
}

fn record(bytes: &[u8], offset: u64, length: u64) -> Result<WarcRecord, String> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or("a head without an end")?;
    let head = str::from_utf8(&bytes[..end]).map_err(|error| error.to_string())?;
    let mut lines = head.split("\r\n");
    if lines.next() != Some("WARC/1.1") {
        return Err("not a record of WARC/1.1".to_owned());
    }
    let field = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    let fields = lines.map(|line| field(line).ok_or_else(|| format!("no field: {line}"))).collect::<Result<_, _>>()?;
    let mut record = WarcRecord { offset, length, fields, block: Vec::new() };
    let declared: usize = record.field("Content-Length").and_then(|text| text.parse().ok()).ok_or("no length")?;
    let (block, rest) = bytes[end + 4..].split_at_checked(declared).ok_or("shorter than its Content-Length")?;
    if rest != b"\r\n\r\n" {
        return Err(format!("its block is followed by {rest:?}"));
    }
    record.block = block.to_vec();
    let is =
        |name: &str, bytes: &[u8]| record.field(name).is_none_or(|declared| declared == recording::digest_of(bytes));
    if !is("WARC-Block-Digest", block) || !is("WARC-Payload-Digest", record.payload()) {
        return Err("a digest is wrong".to_owned());
    }
    Ok(record)
}
