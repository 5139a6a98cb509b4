//! Answers that callers share. One answer is computed for all callers who want it at the same time,
//! so the cost of watching does not depend on the number of watchers.
//!
//! An answer is computed in an async task of its own: a caller who leaves ends nobody else's
//! answer. Each caller says how old an answer it accepts. If an answer of that age is neither known
//! nor being computed, the caller waits for the next one. No caller holds a connection meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::Status;

use crate::model::BatchId;
use crate::status::Status as SystemStatus;
use crate::store::batches::Progress;
use crate::store::batches::changes::Change;
use crate::store::batches::list_and_progress::EndReason;
use crate::throughput::Estimate;
use crate::wake::Wakes;

/// Maximum number of answers of one kind that are computed at once. Each computation occupies a
/// connection to the database.
const AT_ONCE: usize = 2;
/// Time after which an answer is forgotten if no caller has asked for it.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of answers of one kind. A further one displaces the one that was asked for
/// longest ago.
const MOST: usize = 1_000;
/// An answer that is computed within this time is computed for every caller who asks, because
/// sharing it would save little and show a caller less than the caller has just done.
const QUICK: Duration = Duration::from_millis(50);
/// The age up to which a costly answer is shared, as a multiple of the time taken to compute it. At
/// most a twentieth of the time is spent on computing one answer again and again.
const PAUSE: u32 = 20;

/// What the newest answer took to compute, and how many answers of its kind are being asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) took: Duration,
    pub(crate) asked_for: u32,
}

impl Cost {
    /// The age that a caller accepts who wants the present state: none, unless the answer is
    /// costly.
    pub(crate) fn of_present(self) -> Duration {
        if self.took < QUICK { Duration::ZERO } else { self.took.saturating_mul(PAUSE) }
    }

    /// The age at which all answers of this kind together take at most a twentieth of the time.
    pub(crate) fn of_all(self) -> Duration {
        self.took.saturating_mul(PAUSE).saturating_mul(self.asked_for)
    }
}

/// Why a computation gave neither an answer nor an error.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NoAnswer {
    /// The database is silent.
    Silent,
    Panicked,
}

type Computing<V> = Shared<BoxFuture<'static, Result<V, Status>>>;

#[derive(Debug)]
struct Entry<V> {
    asked_at: Instant,
    newest: Option<Answer<V>>,
    /// The computation that runs, and the time at which it was begun.
    computing: Option<(Instant, Computing<V>)>,
}

#[derive(Debug)]
struct Answer<V> {
    value: V,
    /// The answer shows at least everything that was committed before this time.
    as_of: Instant,
    took: Duration,
}

/// The newest answers of one kind, by key.
pub(crate) struct Answers<K, V> {
    entries: Mutex<HashMap<K, Entry<V>>>,
    places: Semaphore,
}

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Self { entries: Mutex::default(), places: Semaphore::new(AT_ONCE) }
    }
}

impl<K, V> fmt::Debug for Answers<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}

impl<K, V> Answers<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// The answer for `key`, not older than `max_age` says of its cost. If necessary, computes the
    /// answer or waits for a computation. A computation ends if the database is silent.
    pub(crate) async fn ask<F>(
        self: &Arc<Self>,
        wakes: &Arc<Wakes>,
        key: K,
        max_age: impl Fn(Cost) -> Duration,
        compute: impl Fn() -> F,
    ) -> Result<V, Status>
    where
        F: Future<Output = Result<V, Status>> + Send + 'static,
    {
        let arrived = Instant::now();
        loop {
            let (begun_at, computing) = {
                let mut entries = self.entries();
                let (asked_for, entry) = entry(&mut entries, &key);
                if let Some(known) = &entry.newest
                    && arrived.saturating_duration_since(known.as_of) <= max_age(Cost { took: known.took, asked_for })
                {
                    return Ok(known.value.clone());
                }
                // A computation that ended but is still stored has panicked.
                match entry.computing.as_ref().filter(|(_, computing)| computing.peek().is_none()) {
                    Some(running) => running.clone(),
                    None => {
                        let begun = (Instant::now(), self.begin(Arc::clone(wakes), key.clone(), compute()));
                        entry.computing.insert(begun).clone()
                    }
                }
            };
            let computed = computing.await;
            // An error is an answer to all who waited, so that they do not all try again at once.
            if computed.is_err() || begun_at >= arrived {
                return computed;
            }
        }
    }

    /// The newest answer, however old; `None` if there is none.
    pub(crate) fn newest(&self, key: &K) -> Option<V> {
        self.entries().get(key)?.newest.as_ref().map(|answer| answer.value.clone())
    }

    fn begin<F>(self: &Arc<Self>, wakes: Arc<Wakes>, key: K, work: F) -> Computing<V>
    where
        F: Future<Output = Result<V, Status>> + Send + 'static,
    {
        let answers = Arc::clone(self);
        let task = tokio::spawn(async move {
            // This cannot fail, because the semaphore is never closed.
            let place = answers.places.acquire().await;
            let as_of = Instant::now();
            let computed = wakes.database.while_it_answers(work).await.unwrap_or_else(|| Err(NoAnswer::Silent.into()));
            drop(place);
            if let Some(entry) = answers.entries().get_mut(&key) {
                entry.computing = None;
                if let Ok(value) = &computed {
                    entry.newest = Some(Answer { value: value.clone(), as_of, took: as_of.elapsed() });
                }
            }
            computed
        });
        task.map(|ended| ended.unwrap_or_else(|_| Err(NoAnswer::Panicked.into()))).boxed().shared()
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<K, Entry<V>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of `key`, and the number of entries that callers have asked for recently.
fn entry<'a, K: Clone + Eq + Hash, V>(entries: &'a mut HashMap<K, Entry<V>>, key: &K) -> (u32, &'a mut Entry<V>) {
    let now = Instant::now();
    entries.retain(|_, entry| now.duration_since(entry.asked_at) < FORGET_AFTER);
    if entries.len() >= MOST && !entries.contains_key(key) {
        let longest_ago = entries.iter().min_by_key(|(_, entry)| entry.asked_at).map(|(key, _)| key.clone());
        longest_ago.and_then(|key| entries.remove(&key));
    }
    let asked_for = u32::try_from(entries.len()).unwrap_or(u32::MAX).max(1);
    let entry = entries.entry(key.clone()).or_insert_with(|| Entry { asked_at: now, newest: None, computing: None });
    entry.asked_at = now;
    (asked_for, entry)
}

/// Why tasks ended, and the batch's numbers when that was read.
type CountedEndings = ([u64; 4], Vec<EndReason>);

/// All answers that operators' calls and pages share.
#[derive(Debug, Default)]
pub struct SharedAnswers {
    pub(in crate::grpc) progress: Arc<Answers<BatchId, Progress>>,
    pub(in crate::grpc) endings: Arc<Answers<BatchId, CountedEndings>>,
    /// The newest change of each batch.
    pub(in crate::grpc) changes: Arc<Answers<BatchId, Option<Change>>>,
    /// The estimate is `None` if no site remains.
    pub(in crate::grpc) estimates: Arc<Answers<BatchId, Option<Estimate>>>,
    /// The state of the system, by the number of batches that it shows.
    pub(in crate::grpc) status: Arc<Answers<u32, SystemStatus>>,
    /// Whether this scheduler can use the database.
    pub(in crate::grpc) ready: Arc<Answers<(), ()>>,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::join_all;

    use super::*;

    /// Answers that are the number of computations so far. Each computation needs a permit.
    struct Counter {
        answers: Arc<Answers<u32, u32>>,
        wakes: Arc<Wakes>,
        computed: Arc<AtomicU32>,
        permits: Arc<Semaphore>,
    }

    impl Counter {
        fn new(permits: usize) -> Self {
            let permits = Arc::new(Semaphore::new(permits));
            Self { answers: Arc::default(), wakes: Arc::default(), computed: Arc::default(), permits }
        }

        async fn ask(&self, max_age: Duration) -> u32 {
            let compute = || {
                let (computed, permits) = (Arc::clone(&self.computed), Arc::clone(&self.permits));
                async move {
                    permits.acquire().await.expect("open").forget();
                    Ok(computed.fetch_add(1, Ordering::SeqCst) + 1)
                }
            };
            self.answers.ask(&self.wakes, 0, |_| max_age, compute).await.expect("an answer")
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn two_hundred_who_ask_together_cost_two_computations() {
        let counter = Counter::new(0);
        let asked = join_all((0..200).map(|_| counter.ask(Duration::ZERO)));
        let released = async {
            tokio::task::yield_now().await;
            counter.permits.add_permits(200);
        };
        let (answers, ()) = tokio::join!(asked, released);
        // Those who asked after the first computation had begun share a second one.
        assert!(answers.iter().all(|answer| *answer <= 2), "{answers:?}");
    }

    #[tokio::test]
    async fn an_answer_is_never_older_than_its_caller_accepts() {
        let counter = Counter::new(3);
        assert_eq!(counter.ask(HOUR).await, 1);
        assert_eq!(join_all((0..50).map(|_| counter.ask(HOUR))).await, [1; 50]);
        assert_eq!(counter.ask(Duration::ZERO).await, 2);
        assert_eq!(counter.ask(HOUR).await, 2);
    }

    #[test]
    fn a_quick_answer_is_always_of_the_present_and_a_costly_one_takes_a_twentieth_of_the_time() {
        let cost = |millis, asked_for| Cost { took: Duration::from_millis(millis), asked_for };
        assert_eq!(cost(49, 500).of_present(), Duration::ZERO);
        assert_eq!(cost(500, 500).of_present(), Duration::from_secs(10));
        assert_eq!(cost(5, 1).of_all(), Duration::from_millis(100));
        assert_eq!(cost(5, 300).of_all(), Duration::from_secs(30), "all three hundred together");
    }

    #[tokio::test]
    async fn a_caller_who_leaves_ends_no_computation_and_a_panic_ends_no_later_one() {
        let counter = Counter::new(0);
        assert!(counter.ask(HOUR).now_or_never().is_none(), "the computation waits");
        counter.permits.add_permits(1);
        while counter.answers.newest(&0).is_none() {
            tokio::task::yield_now().await;
        }
        assert_eq!(counter.ask(HOUR).await, 1);
        let ask = async |value: Option<u32>| {
            let compute = || async move { Ok(value.expect("a value")) };
            counter.answers.ask(&counter.wakes, 7, |_| HOUR, compute).await
        };
        assert_eq!(ask(None).await.expect_err("a panic").code(), tonic::Code::Internal);
        assert_eq!(ask(Some(5)).await.expect("an answer"), 5);
    }

    #[tokio::test]
    async fn few_answers_are_kept_and_none_for_long() {
        let (answers, wakes) = (Arc::<Answers<usize, ()>>::default(), Arc::default());
        let ask = async |key| answers.ask(&wakes, key, |_| HOUR, || async { Ok(()) }).await.expect("an answer");
        for key in 0..MOST + 10 {
            ask(key).await;
        }
        let kept = answers.entries().len();
        assert_eq!((kept, answers.newest(&0), answers.newest(&MOST)), (MOST, None, Some(())));
        let long_ago = Instant::now().checked_sub(FORGET_AFTER).expect("the machine has run for a minute");
        answers.entries().values_mut().for_each(|entry| entry.asked_at = long_ago);
        ask(0).await;
        assert_eq!(answers.entries().len(), 1);
    }
}
