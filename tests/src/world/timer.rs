//! A timer with a finer resolution than tokio's millisecond, and a histogram of how late the
//! emulated network wakes tasks and delivers packets.
//!
//! The timer consists of a thread, a queue, and a condition variable. The thread uses the kernel's
//! high-resolution timer to sleep until the earliest deadline, and then wakes the waiting tokio
//! task. The tokio task records its lateness, which includes the time until tokio runs it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Wakes tokio tasks at given instants. Clones share the timer's thread.
#[derive(Debug, Clone)]
pub struct Timer {
    shared: Arc<Shared>,
    /// Dropping the last clone ends the thread.
    _guard: Arc<Guard>,
}

#[derive(Debug)]
struct Shared {
    /// The thread waits on `changed` for changes to the queue.
    queue: Mutex<Queue>,
    changed: Condvar,
    lateness: Lateness,
}

#[derive(Debug, Default)]
struct Queue {
    /// The waiting tasks by deadline, and for equal deadlines by number.
    waiting: BTreeMap<(Instant, u64), oneshot::Sender<()>>,
    sequence: u64,
    ended: bool,
}

impl Queue {
    /// The earliest deadline.
    fn next(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }
}

#[derive(Debug)]
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.0.changed.notify_one();
    }
}

impl Timer {
    pub fn start() -> std::io::Result<Self> {
        let shared =
            Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new(), lateness: Lateness::default() });
        let served = Arc::clone(&shared);
        std::thread::Builder::new().name("wan-timer".to_owned()).spawn(move || serve(&served))?;
        Ok(Self { _guard: Arc::new(Guard(Arc::clone(&shared))), shared })
    }

    /// Sleeps until an instant, and records the lateness. If the instant has passed, the function
    /// does not sleep.
    pub async fn sleep_until(&self, at: Instant) {
        if let Some(woken) = self.enqueue(at) {
            // The result is never an error. The thread runs as long as `self` exists, so it does
            // not drop the sender.
            let _ = woken.await;
        }
        self.shared.lateness.note(Instant::now().saturating_duration_since(at));
    }

    fn enqueue(&self, at: Instant) -> Option<oneshot::Receiver<()>> {
        if at <= Instant::now() {
            return None;
        }
        let (wake, woken) = oneshot::channel();
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.sequence += 1;
        let sequence = queue.sequence;
        let earliest = queue.next().is_none_or(|next| at < next);
        queue.waiting.insert((at, sequence), wake);
        drop(queue);
        if earliest {
            self.shared.changed.notify_one();
        }
        Some(woken)
    }

    pub fn lateness(&self) -> &Lateness {
        &self.shared.lateness
    }
}

fn serve(shared: &Shared) {
    let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    while !queue.ended {
        let now = Instant::now();
        while let Some(due) = queue.waiting.first_entry().filter(|first| first.key().0 <= now) {
            // Sending fails if the waiting task was dropped, which does not matter.
            let _ = due.remove().send(());
        }
        queue = match queue.next() {
            Some(next) => {
                let wait = next.saturating_duration_since(Instant::now());
                shared.changed.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0
            }
            None => shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

const BUCKET: Duration = Duration::from_micros(50);
/// Number of buckets. The last bucket contains all values of about 200 ms or more.
const BUCKETS: usize = 4000;

/// A histogram of the lateness of tokio tasks or packets.
#[derive(Debug)]
pub struct Lateness {
    buckets: Vec<AtomicU64>,
}

impl Default for Lateness {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Lateness {
    pub fn note(&self, late: Duration) {
        let bucket = usize::try_from(late.as_micros() / BUCKET.as_micros()).unwrap_or(usize::MAX);
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// The `share` quantile of the lateness, rounded up to the edge of a bucket. Zero if nothing
    /// was recorded.
    pub fn quantile(&self, share: f64) -> Duration {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let mut seen = 0;
        for (edge, count) in (1_u32..).zip(&counts) {
            seen += count;
            if total > 0 && precise(seen) >= share * precise(total) {
                return BUCKET * edge;
            }
        }
        Duration::ZERO
    }
}

/// Converts a count to a float. Counts above 2^32 saturate.
fn precise(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn sleepers_are_never_woken_early() {
        let timer = Timer::start().unwrap();
        let start = Instant::now();
        let sleeps = [30_u64, 5, 15].map(|millis| {
            let timer = timer.clone();
            tokio::spawn(async move {
                timer.sleep_until(start + Duration::from_millis(millis)).await;
                start.elapsed()
            })
        });
        for (sleep, wanted) in sleeps.into_iter().zip([30, 5, 15]) {
            let slept = sleep.await.unwrap();
            assert!(slept >= Duration::from_millis(wanted), "{slept:?} for {wanted} ms");
        }
        assert_eq!(timer.lateness().count(), 3);
    }

    #[tokio::test]
    async fn an_instant_in_the_past_counts_as_late() {
        let timer = Timer::start().unwrap();
        let Some(past) = Instant::now().checked_sub(Duration::from_millis(40)) else { return };
        timer.sleep_until(past).await;
        assert!(timer.lateness().quantile(0.99) >= Duration::from_millis(40));
    }

    #[test]
    fn a_quantile_is_a_buckets_upper_edge() {
        let lateness = Lateness::default();
        for micros in [10, 10, 10, 990] {
            lateness.note(Duration::from_micros(micros));
        }
        assert_eq!(lateness.quantile(0.5), Duration::from_micros(50));
        assert_eq!(lateness.quantile(1.0), Duration::from_micros(1000));
        lateness.note(Duration::from_secs(9));
        assert_eq!(lateness.quantile(1.0), Duration::from_millis(200));
    }
}
