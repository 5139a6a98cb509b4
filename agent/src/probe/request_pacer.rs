//! The pacer, which pauses before every request to a host.

use std::time::Duration;

/// Makes the prober pause before every request.
#[derive(Debug)]
pub(crate) struct RequestPacer {
    interval: Duration,
    paused: bool,
    sent: u32,
}

impl RequestPacer {
    pub(crate) const fn new(interval: Duration) -> Self {
        Self { interval, paused: false, sent: 0 }
    }

    /// Waits until a request may be sent. Returns immediately if no request was sent since the last
    /// pause.
    pub(crate) async fn pause(&mut self) {
        if !self.paused {
            tokio::time::sleep(self.interval).await;
            self.paused = true;
        }
    }

    /// Records that a request was sent or a connection was attempted, so that the next request
    /// needs a pause.
    pub(crate) const fn spend(&mut self) {
        self.paused = false;
        self.sent += 1;
    }

    pub(crate) const fn sent(&self) -> u32 {
        self.sent
    }
}
