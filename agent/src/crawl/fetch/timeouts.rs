//! The time limits of a request: to connect, to get the response header and to receive the body.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub(in crate::crawl) struct Timeouts {
    /// Time limit to resolve the name, connect and complete the TLS handshake.
    pub(in crate::crawl) connect: Duration,
    /// Time limit from the start of the request to the response header, including the connection.
    pub(in crate::crawl) first_byte: Duration,
    /// Time limit from the start of the request to the end of the body.
    pub(in crate::crawl) total: Duration,
    /// Time from the header's arrival after which the body's average rate must be at least
    /// [`super::body_rate::MIN_RATE`].
    pub(in crate::crawl) slow_after: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { connect: seconds(5), first_byte: seconds(15), total: seconds(30), slow_after: seconds(10) }
    }
}
