//! Computes when an agent's slots become free, and how long a crawl will still take.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// If a crawl exceeds its predicted time, its remaining time is assumed to be this share of the
/// time that it has taken so far. The longer a crawl has taken, the larger its site probably is,
/// because most sites are small and a few are very large.
pub(super) const OVERDUE_SHARE: f64 = 0.3;

/// Time until each slot of an agent is free. `under_way` contains the remaining time of each
/// running crawl, and `waiting` the time of each waiting task. Each waiting task, in order, gets
/// the slot that becomes free first.
pub fn frees(slots: usize, under_way: &[Duration], waiting: &[Duration]) -> Vec<Duration> {
    let mut free: BinaryHeap<Reverse<Duration>> = under_way.iter().copied().map(Reverse).collect();
    // If there are more crawls than slots, no slot becomes free when the first of the crawls ends.
    while free.len() > slots {
        free.pop();
    }
    while free.len() < slots {
        free.push(Reverse(Duration::ZERO));
    }
    for takes in waiting {
        if let Some(mut first) = free.peek_mut() {
            first.0 = first.0.saturating_add(*takes);
        }
    }
    free.into_iter().map(|Reverse(free)| free).collect()
}

/// The remaining time of a crawl that has run for `under_way` and was predicted to take `takes`.
pub fn remaining(takes: Duration, under_way: Duration) -> Duration {
    takes.saturating_sub(under_way).max(under_way.mul_f64(OVERDUE_SHARE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn slots_are_free_when_what_they_have_and_what_waits_has_ended() {
        assert_eq!(frees(2, &[], &[]), [ms(0), ms(0)]);
        let mut free = frees(3, &[ms(50), ms(20)], &[ms(30), ms(5)]);
        free.sort();
        // The free slot gets the first waiting task. The slot that is free after 20 ms gets the
        // second waiting task.
        assert_eq!(free, [ms(25), ms(30), ms(50)]);
        assert_eq!(frees(1, &[ms(50), ms(20)], &[]), [ms(50)]);
        assert!(frees(0, &[], &[ms(5)]).is_empty());
        assert_eq!(remaining(ms(100), ms(40)), ms(60));
        assert_eq!(remaining(ms(100), ms(200)), ms(60));
    }
}
