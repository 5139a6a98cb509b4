//! Computes the cost of a plan, and of one more job: the sum of the fourth powers of the times, in
//! seconds, at which the slots' last crawls end.

use std::time::Duration;

/// The longest time of a job whose cost is at most `cost`: the fourth root of `cost`, because a job
/// costs at least the fourth power of its time. The result is slightly greater than this root,
/// because floats are not exact. Comparing a job's time with this result rejects most agents
/// without computing costs.
pub(super) fn affordable(cost: f64) -> Duration {
    Duration::try_from_secs_f64(cost.max(0.0).sqrt().sqrt() * 1.000_001).unwrap_or(Duration::MAX)
}

pub(super) fn fourth_power(value: f64) -> f64 {
    let square = value * value;
    square * square
}

/// The times at which an agent's slots become free.
pub(super) struct Slots {
    pub(super) ends: Vec<Duration>,
    /// The index of the slot that is free first, the time until this slot is free in seconds, and
    /// the fourth power of this time.
    first: usize,
    first_s: f64,
    first_s4: f64,
}

impl Slots {
    pub(super) fn new(frees: &[Duration]) -> Self {
        let mut slots = Self { ends: frees.to_vec(), first: 0, first_s: 0.0, first_s4: 0.0 };
        slots.look();
        slots
    }

    fn look(&mut self) {
        let first = self.ends.iter().enumerate().min_by_key(|(_, end)| **end);
        (self.first, self.first_s) = first.map_or((0, 0.0), |(slot, end)| (slot, end.as_secs_f64()));
        self.first_s4 = fourth_power(self.first_s);
    }

    /// The cost of a job. The cost of the plan is the sum of the fourth powers of the slots' ends,
    /// and a job's cost is the amount that the job adds. `None` if there are no slots.
    pub(super) fn cost(&self, takes: Duration) -> Option<f64> {
        (!self.ends.is_empty()).then(|| fourth_power(self.first_s + takes.as_secs_f64()) - self.first_s4)
    }

    /// Gives a job to the slot that is free first, and returns this slot.
    pub(super) fn take(&mut self, takes: Duration) -> Option<usize> {
        let slot = self.first;
        let end = self.ends.get_mut(slot)?;
        *end = end.saturating_add(takes);
        self.look();
        Some(slot)
    }
}
