//! Holds the line of a WARC file's index (`.jsonl`) that describes one response.

use serde::{Deserialize, Serialize};

use super::exchange::Exchange;

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
