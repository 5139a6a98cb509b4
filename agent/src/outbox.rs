//! Outcomes that the scheduler has not acknowledged yet.
//!
//! An outcome stays here until it is answered, across sessions, and is offered again in each. It is held in memory: an
//! agent that dies loses what it has not handed over, and the lease's expiry gives the site to another. Who fills it takes no
//! lease while too much waits here, so that a scheduler that grants and never answers does not fill the memory.

use std::collections::BTreeMap;

use landfall_proto::v1::{HeldLease, OutcomeReport};

/// The key of a lease: its task and the token of the grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    /// The task.
    pub task_id: i64,
    /// The token.
    pub token: i64,
}

impl From<LeaseKey> for HeldLease {
    fn from(key: LeaseKey) -> Self {
        Self { task_id: key.task_id, token: key.token }
    }
}

/// The outcomes still to be acknowledged.
#[derive(Debug, Default)]
pub struct Outbox {
    outcomes: BTreeMap<LeaseKey, OutcomeReport>,
}

impl Outbox {
    /// Keeps an outcome until it is acknowledged.
    pub fn put(&mut self, outcome: OutcomeReport) {
        let key = LeaseKey { task_id: outcome.task_id, token: outcome.token };
        self.outcomes.insert(key, outcome);
    }

    /// Forgets an outcome that was answered.
    pub fn acknowledge(&mut self, key: LeaseKey) {
        self.outcomes.remove(&key);
    }

    /// The outcome of a lease, if it waits here.
    pub fn get(&self, key: LeaseKey) -> Option<&OutcomeReport> {
        self.outcomes.get(&key)
    }

    /// The leases whose outcomes wait here.
    pub fn keys(&self) -> impl Iterator<Item = LeaseKey> {
        self.outcomes.keys().copied()
    }

    /// Every outcome that waits here.
    pub fn offers(&self) -> impl Iterator<Item = &OutcomeReport> {
        self.outcomes.values()
    }

    /// How many outcomes wait here.
    pub fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// Whether everything was acknowledged.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_waits_until_its_own_lease_is_acknowledged() {
        let mut outbox = Outbox::default();
        outbox.put(OutcomeReport { task_id: 1, token: 2, ..OutcomeReport::default() });
        outbox.acknowledge(LeaseKey { task_id: 1, token: 1 });
        assert_eq!(outbox.offers().count(), 1);
        outbox.acknowledge(LeaseKey { task_id: 1, token: 2 });
        assert!(outbox.is_empty());
    }
}
