//! Measures a crawl's round trips: the time to first byte of requests on warm connections.

use std::net::SocketAddr;
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpInfo;

/// Maximum number of round trips from which the median is computed. New round trips replace the
/// oldest.
const KEPT_ROUND_TRIPS: usize = 1024;

#[derive(Default)]
pub(super) struct RoundTrips {
    /// The connection of the previous request.
    connection: Option<SocketAddr>,
    round_trips: Vec<Duration>,
    next: usize,
}

impl RoundTrips {
    /// The median of the round trips.
    pub(super) fn median(&self) -> Option<Duration> {
        crate::probe::weighted_mean::median(&self.round_trips)
    }

    /// Records the round trip of a request on a warm connection. The connection is warm if the
    /// previous request used it too. A connection is identified by its local port.
    pub(super) fn note(&mut self, response: &reqwest::Response, took: Duration) {
        let connection = response.extensions().get::<HttpInfo>().map(HttpInfo::local_addr);
        let warm = connection.is_some() && connection == self.connection;
        self.connection = connection;
        if !warm {
            return;
        }
        if self.round_trips.len() < KEPT_ROUND_TRIPS {
            self.round_trips.push(took);
        } else {
            self.round_trips[self.next % KEPT_ROUND_TRIPS] = took;
        }
        self.next = self.next.wrapping_add(1);
    }
}
