//! The deadline at which all leases of an agent end unless another heartbeat is acknowledged. Some
//! time before the deadline, crawls count as disconnected from the scheduler, and slow down.

use std::time::Duration;

use crate::crawl::SchedulerSilence;
use crate::machine::clock::BootTime;

/// Fraction of the time to the deadline after which crawls count as disconnected. A heartbeat
/// interval is at most half of a lease's lifetime, and varies by up to a fifth. So while the
/// connection works, the next heartbeat is sent earlier, after at most 0.6 of the time to the
/// deadline.
const SILENT_SHARE: f64 = 0.75;

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
        self.restart_silence();
    }

    pub(super) fn renew(&mut self, at: BootTime) {
        self.at = self.at.max(Some(at));
        self.restart_silence();
    }

    fn restart_silence(&self) {
        let now = BootTime::now();
        let left = self.at.map(|at| at.remaining(now)).unwrap_or_default();
        self.silence.begins_at(now.after(left.mul_f64(SILENT_SHARE)));
    }

    /// Call this when a session ends. Crawls then count as disconnected until the next session.
    pub(super) fn lost(&self) {
        self.silence.begins_at(BootTime::now());
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
    fn the_scheduler_is_silent_after_a_session_ends_or_most_of_the_lease_has_passed() {
        let mut deadline = LeaseDeadline::default();
        let silence = deadline.silence().clone();
        assert!(!silence.has_begun(), "there never was a scheduler");
        deadline.begin(BootTime::now().after(Duration::from_secs(3600)));
        assert!(!silence.has_begun());
        deadline.lost();
        assert!(silence.has_begun());
        deadline.renew(BootTime::now().after(Duration::from_secs(3600)));
        assert!(!silence.has_begun(), "it is heard again");
        let mut deadline = LeaseDeadline::default();
        deadline.begin(BootTime::now());
        assert!(deadline.silence().has_begun(), "nothing is left");
    }
}
