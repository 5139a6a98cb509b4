//! The key of a lease, which names the lease in messages and on the disk.

use landfall_proto::v1::{HeldLease, OutcomeReport};

/// Identifies a lease by its task and its fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    pub task_id: i64,
    pub token: i64,
}

impl From<LeaseKey> for HeldLease {
    fn from(key: LeaseKey) -> Self {
        Self { task_id: key.task_id, token: key.token }
    }
}

impl From<&OutcomeReport> for LeaseKey {
    fn from(outcome: &OutcomeReport) -> Self {
        Self { task_id: outcome.task_id, token: outcome.token }
    }
}
