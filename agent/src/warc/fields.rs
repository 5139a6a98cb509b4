//! The head of a WARC record: named fields, a line each.

use std::fmt::Write as _;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use rand::Rng;

/// A head that is being written.
#[derive(Debug)]
pub(super) struct Fields(String);

impl Fields {
    /// The head of a record of this kind.
    pub(super) fn new(kind: &str, id: &str, at: SystemTime) -> Self {
        let mut fields = Self("WARC/1.1\r\n".to_owned());
        fields.add("WARC-Type", kind);
        fields.add("WARC-Record-ID", id);
        fields.add("WARC-Date", &date(at));
        fields
    }

    /// Adds a field. What could end its line, or is no text, is escaped as in URLs.
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

    /// The whole head, of a block of so many bytes.
    pub(super) fn end(mut self, length: u64) -> String {
        self.add("Content-Length", &length.to_string());
        self.0.push_str("\r\n");
        self.0
    }
}

/// A time as WARC writes it, to the millisecond.
pub(super) fn date(at: SystemTime) -> String {
    DateTime::<Utc>::from(at).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// A time as file names hold it.
pub(super) fn stamp(at: SystemTime) -> String {
    DateTime::<Utc>::from(at).format("%Y%m%d%H%M%S").to_string()
}

/// A new record's identifier: a random UUID (RFC 9562, version 4).
pub(super) fn new_id(rng: &mut impl Rng) -> String {
    let mut bytes = [0; 16];
    rng.fill_bytes(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let [a, b, c, d] =
        [0, 4, 8, 12].map(|at| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
    format!("<urn:uuid:{a:08x}-{:04x}-{:04x}-{:04x}-{:04x}{d:08x}>", b >> 16, b & 0xffff, c >> 16, c & 0xffff)
}
