//! Counts what the port refuses, by cause, for the metrics, and logs each cause at most once a
//! minute, whatever strangers do.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::model::words;

words!(
    /// Why the port refused or closed something.
    Refused {
        /// The peer, or all peers together, have their maximum number of connections, and none of
        /// them is a stranger's.
        Connections = "connections",
        /// A stranger's connection was closed to make room for a newer one.
        Crowded = "crowded",
        /// The TLS handshake failed, or did not end in time.
        Handshake = "handshake",
        /// A stranger's connection had no request in time.
        Idle = "idle",
        /// Strangers have their maximum number of calls.
        Calls = "calls",
        /// The request of a call that needs no secret was too large, or did not end in time.
        Body = "body",
        /// No descriptor was free for a new connection.
        Accept = "accept",
        /// A wrong token of the operator.
        OperatorToken = "operator-token",
        /// A wrong credential of an agent.
        Credential = "credential",
        /// A wrong enrolment token.
        EnrolmentToken = "enrolment-token",
        /// A wrong cookie of a browser.
        Cookie = "cookie",
        /// A secret that was not looked up, because its peer had presented too many wrong secrets.
        Slowed = "slowed",
    }
);

/// Minimum time between two lines of the log with the same cause.
const QUIET: Duration = Duration::from_secs(60);

/// The numbers of refusals since the start of the process.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<[Tally; Refused::ALL.len()]>);

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    count: u64,
    /// The part of `count` that was logged, and when.
    told: (u64, Option<Instant>),
    peer: Option<IpAddr>,
}

impl Refusals {
    /// Counts a refusal, and logs it unless its cause was logged within the last minute.
    pub(crate) fn note(&self, cause: Refused, peer: Option<IpAddr>) {
        let mut tallies = self.tallies();
        let tally = &mut tallies[cause as usize];
        tally.count += 1;
        tally.peer = peer;
        tally.tell(cause, Instant::now());
    }

    /// Logs refusals that were not logged yet. Called from time to time.
    pub(crate) fn tell(&self) {
        let mut tallies = self.tallies();
        for cause in Refused::ALL {
            tallies[*cause as usize].tell(*cause, Instant::now());
        }
    }

    /// The number of refusals of each cause.
    pub(crate) fn counts(&self) -> Vec<(Refused, u64)> {
        let tallies = self.tallies();
        Refused::ALL.iter().map(|cause| (*cause, tallies[*cause as usize].count)).collect()
    }

    fn tallies(&self) -> MutexGuard<'_, [Tally; Refused::ALL.len()]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally {
    /// Logs how often something was refused since the last line. Returns whether there was a line.
    fn tell(&mut self, cause: Refused, now: Instant) -> bool {
        let (told, at) = self.told;
        if self.count == told || at.is_some_and(|at| now.saturating_duration_since(at) < QUIET) {
            return false;
        }
        let (times, peer) = (self.count - told, self.peer.map(|peer| peer.to_string()));
        tracing::warn!(cause = cause.name(), times, last_peer = peer, "the port refused something");
        self.told = (self.count, Some(now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_once_a_minute_and_counted_each_time() {
        let (mut tally, begin) = (Tally::default(), Instant::now());
        let told = |tally: &mut Tally, seconds| tally.tell(Refused::Cookie, begin + Duration::from_secs(seconds));
        assert!(!told(&mut tally, 0), "nothing was refused");
        tally.count = 1;
        assert!(told(&mut tally, 0), "the first is logged at once");
        tally.count = 9;
        assert!(!told(&mut tally, 59));
        assert!(told(&mut tally, 60) && tally.told.0 == 9);
        assert!(!told(&mut tally, 120), "nothing new");
        let refusals = Refusals::default();
        (0..3).for_each(|_| refusals.note(Refused::Idle, None));
        let counts = refusals.counts();
        assert_eq!(counts.into_iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>(), [(Refused::Idle, 3)]);
    }
}
