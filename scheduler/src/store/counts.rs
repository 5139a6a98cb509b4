//! Counts the transactions of each name, and the time that they take, for the metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What became of the transactions of one name.
#[derive(Debug, Clone, Copy, Default)]
pub struct TransactionCount {
    pub ended: u64,
    pub failed: u64,
    pub conflicts: u64,
    pub took: Duration,
}

/// The counts by name. There are as many names as calls of [`Db::tx`] in the program.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<BTreeMap<&'static str, TransactionCount>>);

impl Counts {
    pub(super) fn read(&self) -> BTreeMap<&'static str, TransactionCount> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn add(&self, name: &'static str, took: Duration, ok: bool, conflict: bool) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(name).or_default();
        count.ended += 1;
        count.failed += u64::from(!ok);
        count.conflicts += u64::from(conflict);
        count.took += took;
    }
}

/// Counts a use of a connection when it is dropped.
#[derive(Debug)]
pub(super) struct Timer {
    name: &'static str,
    begun: Instant,
    counts: Arc<Counts>,
}

impl Timer {
    pub(super) fn start(name: &'static str, counts: &Arc<Counts>) -> Self {
        Self { name, begun: Instant::now(), counts: Arc::clone(counts) }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.counts.add(self.name, self.begun.elapsed(), true, false);
    }
}
