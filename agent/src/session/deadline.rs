//! The deadline at which all leases of an agent end unless another heartbeat is acknowledged.

use std::time::Duration;

use crate::crawl::SchedulerSilence;
use crate::machine::clock::BootTime;

/// Interval between checks of whether a deadline has passed. A timer does not suffice, because the
/// runtime's timers stop while the machine is suspended.
const DEADLINE_POLL: Duration = Duration::from_millis(500);

/// The deadline that all leases share. There is no deadline before the first welcome, or after the
/// deadline has passed.
#[derive(Debug, Default)]
pub(super) struct LeaseDeadline {
    at: Option<BootTime>,
    silence: SchedulerSilence,
}

impl LeaseDeadline {
    pub(super) const fn silence(&self) -> &SchedulerSilence {
        &self.silence
    }

    pub(super) fn begin(&mut self, at: BootTime) {
        self.at = Some(at);
        self.silence.leases_renewed(at);
    }

    pub(super) fn renew(&mut self, at: BootTime) {
        self.begin(self.at.map_or(at, |known| known.max(at)));
    }

    pub(super) const fn clear(&mut self) {
        self.at = None;
    }

    pub(super) async fn passed(&self) {
        passed(self.at).await;
    }
}

/// Waits until the deadline has passed. If `deadline` is `None`, waits forever.
async fn passed(deadline: Option<BootTime>) {
    let Some(deadline) = deadline else { return std::future::pending().await };
    loop {
        let left = deadline.remaining(BootTime::now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(DEADLINE_POLL)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_welcome_and_an_acknowledged_heartbeat_end_the_silence() {
        let (mut deadline, hour) = (LeaseDeadline::default(), Duration::from_secs(3600));
        deadline.begin(BootTime::now().after(hour));
        assert!(!deadline.silence().has_begun());
        deadline.silence().session_ended();
        assert!(deadline.silence().has_begun());
        deadline.renew(BootTime::now().after(hour));
        assert!(!deadline.silence().has_begun());
        deadline.silence().session_ended();
        deadline.begin(BootTime::now().after(hour));
        assert!(!deadline.silence().has_begun());
    }
}
