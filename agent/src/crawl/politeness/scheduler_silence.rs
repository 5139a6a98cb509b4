//! Decides when crawls count as disconnected from the scheduler. Disconnected crawls slow down, and
//! stop when their leases end.

use std::sync::{Arc, Mutex, PoisonError};

use crate::machine::clock::BootTime;

/// Fraction of the time to the leases' deadline after which crawls count as disconnected. A
/// heartbeat interval is at most half of a lease's lifetime, and varies by up to a fifth. So while
/// the connection works, the next heartbeat is sent earlier, after at most 0.6 of the time to the
/// deadline.
const SILENT_SHARE: f64 = 0.75;

/// The time from which an agent's crawls count as disconnected, because the scheduler does not
/// answer. Clones share the state. A crawl without a scheduler is never disconnected.
#[derive(Debug, Clone, Default)]
pub struct SchedulerSilence(Arc<Mutex<Option<BootTime>>>);

impl SchedulerSilence {
    /// Call this when the scheduler has begun or renewed the leases, which now end at `deadline`.
    pub fn leases_renewed(&self, deadline: BootTime) {
        let now = BootTime::now();
        self.begins_at(now.after(deadline.remaining(now).mul_f64(SILENT_SHARE)));
    }

    /// Call this when a session ends. Crawls then count as disconnected until the next session.
    pub fn session_ended(&self) {
        self.begins_at(BootTime::now());
    }

    pub fn has_begun(&self) -> bool {
        let from = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        from.is_some_and(|from| from.remaining(BootTime::now()).is_zero())
    }

    fn begins_at(&self, moment: BootTime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(moment);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_scheduler_is_silent_after_a_session_ends_or_most_of_the_lease_has_passed() {
        let silence = SchedulerSilence::default();
        assert!(!silence.has_begun(), "there never was a scheduler");
        silence.leases_renewed(BootTime::now().after(Duration::from_secs(3600)));
        assert!(!silence.has_begun());
        silence.session_ended();
        assert!(silence.has_begun());
        silence.leases_renewed(BootTime::now().after(Duration::from_secs(3600)));
        assert!(!silence.has_begun(), "it is heard again");
        silence.leases_renewed(BootTime::now());
        assert!(silence.has_begun(), "nothing is left");
    }
}
