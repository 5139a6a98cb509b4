//! Builds the heads of the records in a WARC file, and the lines of its index (`.jsonl`), which
//! describe one response each. ISO 28500 (WARC/1.1) defines the fields.

use std::fmt::Write as _;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
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
const ROOM: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct Fields(String);

impl Fields {
    /// Starts the head of a record of type `kind`. `date` must have the format of [`date`].
    pub(super) fn new(kind: &str, id: &str, date: &str) -> Self {
        let mut fields = Self(String::with_capacity(ROOM));
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

#[cfg(test)]
mod tests {
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
}
