//! Builds the heads of the records in a WARC file: of warcinfo, of a response, and of its request.
//! ISO 28500 (WARC 1.1) defines the fields.

use std::time::SystemTime;

use super::digest;
use super::exchange::Exchange;
use super::fields::{Fields, date};
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
    fields.add("WARC-Block-Digest", &digest::of(block.as_bytes()));
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
    fields.add("WARC-Block-Digest", &digest::of(&exchange.answered.request));
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
