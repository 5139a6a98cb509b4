//! Builds the head of a WARC record: named fields, one per line.

use std::fmt::Write as _;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use rand::Rng;

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
