//! Estimates of the remaining time of batches, shared by all callers. An estimate reads the whole
//! batch, so it is computed only when a caller needs it, and rarely for a large batch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use landfall_proto::v1;
use sqlx::PgPool;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::grpc::operator::convert::duration;
use crate::model::BatchId;
use crate::store;
use crate::store::Error;
use crate::store::batches::Progress;
use crate::store::reports::remaining_time;
use crate::throughput::Estimate;

/// The pause after an estimate, as a multiple of the time taken to compute it. With this pause, at
/// most about a tenth of the time is spent on the estimates of one batch, even of a million sites.
const PAUSE: u32 = 10;
/// Minimum time between two estimates of one batch, because people cannot read estimates that
/// change faster.
const LEAST_PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of estimates computed at once. Each computation occupies a connection to the
/// database.
const AT_ONCE: usize = 2;
/// Time after which a batch is forgotten if no caller has asked about it.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// Time that `show_status` waits for the estimates of batches about which no caller has asked
/// recently.
pub(in crate::grpc::operator) const STATUS_PATIENCE: Duration = Duration::from_millis(50);
/// Time that `show_batch` waits for an estimate. This is long enough for a batch of a million
/// sites.
pub(in crate::grpc::operator) const SHOW_PATIENCE: Duration = Duration::from_secs(30);
/// Time that `watch_batch` waits for a new estimate before it sends the previous estimate.
pub(in crate::grpc::operator) const WATCH_PATIENCE: Duration = Duration::from_millis(200);

/// The newest estimate of each batch that a caller has asked about.
#[derive(Debug)]
pub struct Estimates {
    batches: Mutex<HashMap<BatchId, Entry>>,
    places: Semaphore,
}

impl Default for Estimates {
    fn default() -> Self {
        Self { batches: Mutex::default(), places: Semaphore::new(AT_ONCE) }
    }
}

#[derive(Debug)]
struct Entry {
    asked_at: Instant,
    /// When the newest estimate becomes outdated.
    outdated_at: Instant,
    /// The newest estimate. The outer value is `None` before the first estimate; the inner value is
    /// `None` if no site remains.
    newest: Option<Option<Estimate>>,
    computing: Option<Shared<BoxFuture<'static, ()>>>,
}

impl Estimates {
    /// The remaining time of a batch; `None` means the same as in `Entry::newest`. Waits up to
    /// `patience` for an estimate that is being computed, then returns the previous estimate.
    pub async fn of(self: &Arc<Self>, pool: &PgPool, batch: BatchId, patience: Duration) -> Option<Option<Estimate>> {
        let computing = self.begin(pool, batch);
        if let Some(computing) = computing {
            // After a timeout the computation continues, and the next caller gets its result.
            drop(tokio::time::timeout(patience, computing).await);
        }
        self.batches().get(&batch).and_then(|entry| entry.newest.clone())
    }

    /// The estimated remaining time of a batch; `None` when no task is open.
    pub async fn left(
        self: &Arc<Self>,
        pool: &PgPool,
        batch: BatchId,
        progress: &Progress,
        patience: Duration,
    ) -> Option<Estimate> {
        if progress.open() == 0 {
            return None;
        }
        self.of(pool, batch, patience).await.flatten()
    }

    /// The computation that is running; `None` if the newest estimate is up to date. Starts a
    /// computation if the newest estimate is outdated.
    fn begin(self: &Arc<Self>, pool: &PgPool, batch: BatchId) -> Option<Shared<BoxFuture<'static, ()>>> {
        let now = Instant::now();
        let mut batches = self.batches();
        batches.retain(|_, entry| now.duration_since(entry.asked_at) < FORGET_AFTER);
        let entry = batches.entry(batch).or_insert_with(|| Entry {
            asked_at: now,
            outdated_at: now,
            newest: None,
            computing: None,
        });
        entry.asked_at = now;
        // A computation that ended but is still stored has panicked.
        let computing = entry.computing.as_ref().is_some_and(|computing| computing.peek().is_none());
        if !computing && now >= entry.outdated_at {
            let (estimates, pool) = (Arc::clone(self), pool.clone());
            let task = tokio::spawn(async move { estimates.compute(&pool, batch).await });
            entry.computing = Some(task.map(drop).boxed().shared());
        }
        entry.computing.clone()
    }

    async fn compute(&self, pool: &PgPool, batch: BatchId) {
        // This cannot fail, because the semaphore is never closed.
        let place = self.places.acquire().await;
        let began = Instant::now();
        let computed = estimate(pool, batch).await;
        drop(place);
        let mut batches = self.batches();
        let Some(entry) = batches.get_mut(&batch) else { return };
        entry.computing = None;
        entry.outdated_at = Instant::now() + (began.elapsed() * PAUSE).max(LEAST_PAUSE);
        match computed {
            Ok(estimate) => entry.newest = Some(estimate),
            Err(error) => tracing::warn!(%batch, %error, "the remaining time of a batch could not be estimated"),
        }
    }

    fn batches(&self) -> MutexGuard<'_, HashMap<BatchId, Entry>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn estimate(pool: &PgPool, batch: BatchId) -> Result<Option<Estimate>, Error> {
    let mut conn = store::acquire(pool).await?;
    remaining_time::estimate(&mut conn, batch).await
}

impl From<Estimate> for v1::Estimate {
    fn from(estimate: Estimate) -> Self {
        let Estimate { left, sites, held, stalled, note } = estimate;
        Self { left: left.map(duration), sites, held, note, stalled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_estimate_is_shared_and_made_again_only_after_a_pause(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        fixtures::located(&mut conn, batch, &["a.cn", "b.cn"]).await;
        drop(conn);
        let estimates = Arc::new(Estimates::default());
        let patience = Duration::from_secs(60);
        let of = || estimates.of(&pool, batch, patience);
        let (one, other) = tokio::join!(of(), of());
        let first = one.expect("computed in time").expect("two sites remain");
        assert_eq!((first.sites, other), (2, Some(Some(first.clone()))));
        let outdated_at = estimates.batches()[&batch].outdated_at;
        assert_eq!((of().await, estimates.batches()[&batch].outdated_at), (Some(Some(first)), outdated_at));
        estimates.batches().get_mut(&batch).expect("known").outdated_at = Instant::now();
        fixtures::execute(&mut pool.acquire().await.expect("connect"), "update tasks set state = 'cancelled'").await;
        assert_eq!(of().await, Some(None), "no site remains");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn whoever_does_not_wait_gets_the_former_estimate(pool: PgPool) {
        let batch = fixtures::batch(&mut pool.acquire().await.expect("connect"), "b", "random").await;
        let estimates = Arc::new(Estimates::default());
        let taken = estimates.places.acquire_many(AT_ONCE.try_into().expect("few")).await.expect("open");
        assert_eq!(estimates.of(&pool, batch, Duration::ZERO).await, None, "none was made yet");
        drop(taken);
        assert_eq!(estimates.of(&pool, batch, Duration::from_secs(60)).await, Some(None));
    }
}
