//! Decides when the header of a response is too large.

use reqwest::header::HeaderMap;

/// Maximum bytes of a response header: names, values and four bytes per field. The limits of
/// servers and browsers are usually less than a quarter of this size.
pub(super) const MAX_HEADER_BYTES: usize = 64 << 10;
/// Maximum number of fields in a response header. Pages of large sites have about thirty.
pub(super) const MAX_HEADER_FIELDS: usize = 100;

pub(super) fn is_too_large(headers: &HeaderMap) -> bool {
    let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>();
    headers.len() > MAX_HEADER_FIELDS || bytes > MAX_HEADER_BYTES
}
