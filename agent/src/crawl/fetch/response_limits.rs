//! The limits of a response: the size of its header, and the rate of its body.

/// Maximum bytes of a response header: names, values and four bytes per field. The limits of
/// servers and browsers are usually less than a quarter of this size.
pub(super) const MAX_HEADER_BYTES: usize = 64 << 10;
/// Maximum number of fields in a response header. Pages of large sites have about thirty.
pub(super) const MAX_HEADER_FIELDS: usize = 100;
/// Minimum average rate of a body in bytes per second, enforced after
/// [`super::Timeouts::slow_after`]. The slowest links on which sites are hosted have four times
/// this rate.
pub(super) const MIN_RATE: u64 = 1 << 10;
