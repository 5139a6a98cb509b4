//! The rhythm of heartbeats, and the deadline at which all leases of an agent end unless another
//! heartbeat is acknowledged.

use std::collections::VecDeque;
use std::time::Duration;

use landfall_proto::v1::Welcome;
use rand::{Rng, RngExt};
use tokio::time::Instant;

use super::convert::duration;
use crate::crawl::SchedulerSilence;
use crate::machine::clock::BootTime;

/// Maximum number of unacknowledged heartbeats to remember. The oldest are forgotten first.
const UNACKNOWLEDGED_HEARTBEATS: usize = 64;
/// Maximum random deviation of the heartbeat interval, up or down, as a fraction of the interval.
const JITTER: f64 = 0.2;
/// Minimum interval between heartbeats. A smaller value from the scheduler is raised to this value.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum lifetime of a lease, whatever the scheduler sets. The maximum limits how long a
/// disconnected agent continues to crawl.
const LONGEST_LIFE: Duration = Duration::from_secs(86_400);

/// The mean heartbeat interval, and the lifetime of leases after a heartbeat. The welcome's values
/// are clamped, so that several heartbeats fit into a lifetime, and neither value exceeds the
/// clock's range.
fn rhythm(welcome: &Welcome) -> (Duration, Duration) {
    let given = |wire, otherwise| duration(wire).filter(|given| !given.is_zero()).unwrap_or(otherwise);
    let life = given(welcome.lease_life, Duration::from_secs(30)).clamp(2 * SHORTEST_INTERVAL, LONGEST_LIFE);
    let interval = given(welcome.heartbeat_interval, life / 3).clamp(SHORTEST_INTERVAL, life / 2);
    (interval, life)
}

/// The heartbeats of one session: when the next is due, and which are not acknowledged yet.
pub(super) struct Heartbeats {
    interval: Duration,
    lease_life: Duration,
    next_at: Instant,
    sequence: u64,
    sent: VecDeque<(u64, BootTime)>,
}

impl Heartbeats {
    pub(super) fn new(welcome: &Welcome, rng: &mut impl Rng) -> Self {
        let (interval, lease_life) = rhythm(welcome);
        let next_at = Instant::now() + jittered(interval, rng);
        Self { interval, lease_life, next_at, sequence: 0, sent: VecDeque::new() }
    }

    /// The lifetime of leases after a heartbeat.
    pub(super) const fn lease_life(&self) -> Duration {
        self.lease_life
    }

    pub(super) const fn next_at(&self) -> Instant {
        self.next_at
    }

    pub(super) fn plan_next(&mut self, rng: &mut impl Rng) {
        self.next_at = Instant::now() + jittered(self.interval, rng);
    }

    /// Records that a heartbeat is sent now, and returns its number.
    pub(super) fn begin(&mut self) -> u64 {
        self.sequence += 1;
        self.sent.push_back((self.sequence, BootTime::now()));
        if self.sent.len() > UNACKNOWLEDGED_HEARTBEATS {
            self.sent.pop_front();
        }
        self.sequence
    }

    /// The new deadline of leases, counted from the time at which the acknowledged heartbeat was
    /// sent; `None` if that heartbeat is unknown.
    pub(super) fn acknowledge(&mut self, sequence: u64) -> Option<BootTime> {
        let mut deadline = None;
        while let Some((number, sent)) = self.sent.front().copied().filter(|(number, _)| *number <= sequence) {
            self.sent.pop_front();
            if number == sequence {
                deadline = Some(sent.after(self.lease_life));
            }
        }
        deadline
    }
}

fn jittered(interval: Duration, rng: &mut impl Rng) -> Duration {
    interval.mul_f64(rng.random_range(1.0 - JITTER..=1.0 + JITTER))
}

/// Interval between checks of whether a deadline has passed. A timer does not suffice, because the
/// runtime's timers stop while the machine is suspended.
const DEADLINE_POLL: Duration = Duration::from_millis(500);

/// The deadline that all leases share. There is no deadline before the first welcome, or after the
/// deadline has passed.
#[derive(Debug, Default)]
pub(super) struct LeaseDeadline {
    at: Option<BootTime>,
    /// Whether the deadline passed, and no later one has begun.
    over: bool,
    silence: SchedulerSilence,
}

impl LeaseDeadline {
    pub(super) const fn silence(&self) -> &SchedulerSilence {
        &self.silence
    }

    pub(super) fn begin(&mut self, at: BootTime) {
        (self.at, self.over) = (Some(at), false);
        self.silence.leases_renewed(at);
    }

    pub(super) fn renew(&mut self, at: BootTime) {
        self.begin(self.at.map_or(at, |known| known.max(at)));
    }

    pub(super) const fn clear(&mut self) {
        self.at = None;
    }

    /// Ends the wait for a deadline that passed.
    pub(super) const fn end(&mut self) {
        (self.at, self.over) = (None, true);
    }

    pub(super) fn has_passed(&self) -> bool {
        self.over || self.at.is_some_and(|at| at.remaining(BootTime::now()).is_zero())
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
    fn several_heartbeats_fit_into_a_lease_for_any_welcome() {
        let given = |interval: i64, life: i64| {
            let duration = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
            rhythm(&Welcome {
                heartbeat_interval: duration(interval),
                lease_life: duration(life),
                ..Welcome::default()
            })
        };
        let seconds = Duration::from_secs;
        assert_eq!(given(10, 30), (seconds(10), seconds(30)));
        assert_eq!(given(31_536_000, 30), (seconds(15), seconds(30)), "a life is never prolonged to the interval");
        assert_eq!(given(0, 0), (seconds(10), seconds(30)));
        assert_eq!(given(-5, -5), (seconds(10), seconds(30)));
        assert_eq!(given(i64::MAX, i64::MAX), (LONGEST_LIFE / 2, LONGEST_LIFE));
        assert_eq!(rhythm(&Welcome::default()), (seconds(10), seconds(30)));
    }

    #[test]
    fn a_deadline_has_passed_until_a_later_one_begins() {
        let mut deadline = LeaseDeadline::default();
        assert!(!deadline.has_passed());
        deadline.begin(BootTime::now());
        assert!(deadline.has_passed());
        deadline.end();
        assert!(deadline.has_passed());
        deadline.begin(BootTime::now().after(Duration::from_secs(3600)));
        assert!(!deadline.has_passed());
        deadline.clear();
        assert!(!deadline.has_passed());
    }

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
