//! Cancels or retries tasks of a batch: all of them, or those of the named sites. Removes a batch.
//!
//! A call for a whole batch stores what is to be done and does the first piece of it, which for a
//! small batch is everything. A job does the rest, whether the client waits or not.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::{FutureExt as _, Stream, stream};
use landfall_proto::v1;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::facts;
use crate::Scheduler;
use crate::grpc::errors;
use crate::grpc::operator::convert::{InvalidField, MAX_CHUNK, timestamp};
use crate::grpc::operator::named;
use crate::model::site_name::SiteName;
use crate::store::batches::Batch;
use crate::store::batches::cancel_and_retry::{self, CancelResult, RetryResult};
use crate::store::batches::changes::{self, Change, ChangeKind};
use crate::store::batches::pieces;

/// Which tasks of a batch a request affects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::grpc::operator) enum ChangeScope {
    /// The whole batch; a retry affects only the batch's failed tasks.
    All,
    Sites(Vec<SiteName>),
}

/// Maximum time from a call for a whole batch until its answer, unless the change finishes earlier.
const ANSWER_WITHIN: Duration = Duration::from_millis(800);
/// Interval at which an unfinished change is read again.
const POLL: Duration = Duration::from_millis(50);
/// Interval between two messages about an unfinished change.
const TOLD_EVERY: Duration = Duration::from_millis(500);

pub(in crate::grpc::operator) async fn cancel(
    scheduler: &Scheduler,
    request: v1::CancelTasksRequest,
) -> Result<v1::CancelTasksResponse, Status> {
    let v1::CancelTasksRequest { batch, sites, all } = request;
    let names = match extent(&sites, all, "all")? {
        ChangeScope::Sites(names) => names,
        ChangeScope::All => return Ok(begin_and_wait(scheduler, &batch, ChangeKind::Cancel).await?.into()),
    };
    let (batch, names) = (&batch, &names);
    let (batch, cancelled) = scheduler
        .operators
        .tx("cancel sites", |tx| {
            async move {
                let batch = named::exact_batch(tx, batch).await?;
                let cancelled = cancel_and_retry::cancel(tx, batch.id, &batch.name, names).await?;
                Ok::<_, Status>((batch, cancelled))
            }
            .boxed()
        })
        .await?;
    tracing::info!(batch = batch.name, cancelled.tasks, cancelled.leases, "tasks were cancelled");
    scheduler.wakes.wake_agents(cancelled.agents.iter().copied());
    if cancelled.leases > 0 {
        // The cancelled crawls may have freed an address for which held tasks wait.
        scheduler.wakes.assign.notify_one();
    }
    Ok(cancelled.into())
}

pub(in crate::grpc::operator) async fn retry(
    scheduler: &Scheduler,
    request: v1::RetryTasksRequest,
) -> Result<v1::RetryTasksResponse, Status> {
    let v1::RetryTasksRequest { batch, sites, failed } = request;
    let names = match extent(&sites, failed, "failed")? {
        ChangeScope::Sites(names) => names,
        ChangeScope::All => return Ok(begin_and_wait(scheduler, &batch, ChangeKind::Retry).await?.into()),
    };
    let (batch, names) = (&batch, &names);
    let (batch, retried) = scheduler
        .operators
        .tx("retry sites", |tx| {
            async move {
                let batch = named::exact_batch(tx, batch).await?;
                changes::check_retry(tx, batch.id, &batch.name).await?;
                let retried = cancel_and_retry::retry(tx, batch.id, &batch.name, names).await?;
                Ok::<_, Status>((batch, retried))
            }
            .boxed()
        })
        .await?;
    tracing::info!(batch = batch.name, retried.tasks, "tasks were retried");
    scheduler.wakes.measure.notify_one();
    scheduler.wakes.assign.notify_one();
    Ok(retried.into())
}

/// Stores what is to be done with a whole batch, and does the first piece.
async fn begin(scheduler: &Scheduler, batch: &str, kind: ChangeKind, cancel: bool) -> Result<(Batch, Change), Status> {
    let (batch, change) = scheduler
        .operators
        .tx("begin a change of a batch", |tx| {
            async move {
                let batch = named::exact_batch(tx, batch).await?;
                let change = changes::begin(tx, batch.id, &batch.name, kind, cancel).await?;
                Ok::<_, Status>((batch, change))
            }
            .boxed()
        })
        .await?;
    tracing::info!(batch = batch.name, change = kind.name(), sites = change.sites, "a change of a batch was asked for");
    let id = batch.id;
    match scheduler.operators.tx("change a piece of a batch", |tx| pieces::piece_of(tx, id).boxed()).await {
        Ok(piece) => piece.iter().for_each(|piece| scheduler.wakes.wake_for(piece)),
        // The change has begun, and the job does what this call could not do.
        Err(error) => tracing::warn!(error = format!("{:#}", anyhow::Error::from(error)), "a piece failed"),
    }
    scheduler.wakes.changes.notify_one();
    Ok((batch, change))
}

/// Begins a change; returns it when it is finished, or after a short time.
async fn begin_and_wait(scheduler: &Scheduler, batch: &str, kind: ChangeKind) -> Result<Change, Status> {
    let until = Instant::now() + ANSWER_WITHIN;
    let (batch, begun) = begin(scheduler, batch, kind, false).await?;
    loop {
        let newest = facts::change(scheduler, batch.id, Duration::ZERO).await?;
        let Some(change) = newest.filter(|newest| newest.number == begun.number) else {
            return Err(replaced(&batch.name, begun.kind));
        };
        if change.finished || Instant::now() >= until {
            return Ok(change);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The status `Aborted`, because another operator's change ended this one.
fn replaced(batch: &str, kind: ChangeKind) -> Status {
    Status::aborted(format!(
        "another operator's command ended this {} of batch {batch}: `landfall batches show {batch}` shows what became of it",
        kind.name()
    ))
}

/// One operator who follows the change of one batch.
pub(in crate::grpc::operator) struct ChangeWatch {
    scheduler: Scheduler,
    shutdown: CancellationToken,
    batch: Batch,
    /// The newest state of the change.
    change: Change,
    begun: bool,
    done: bool,
}

impl ChangeWatch {
    /// Follows the newest change of the batch with this name.
    pub(in crate::grpc::operator) async fn newest(
        scheduler: Scheduler,
        shutdown: CancellationToken,
        batch: &str,
    ) -> Result<Self, Status> {
        let mut conn = scheduler.operators.read("follow a change").await?;
        let batch = named::exact_batch(&mut conn, batch).await?;
        let change = changes::of_batch(&mut conn, batch.id).await?;
        drop(conn);
        let none = || Status::not_found(format!("batch {} was never changed as a whole", batch.name));
        let change = change.ok_or_else(none)?;
        Ok(Self { scheduler, shutdown, batch, change, begun: false, done: false })
    }

    /// Begins to remove the batch with this name. If `cancel` is true, cancels its tasks.
    pub(in crate::grpc::operator) async fn removal(
        scheduler: Scheduler,
        shutdown: CancellationToken,
        batch: &str,
        cancel: bool,
    ) -> Result<Self, Status> {
        let (batch, change) = begin(&scheduler, batch, ChangeKind::Remove, cancel).await?;
        Ok(Self { scheduler, shutdown, batch, change, begun: false, done: false })
    }

    /// Sends one message at once, one per period, and a last one when the change is finished.
    pub(in crate::grpc::operator) fn messages<M: From<Change> + Send>(
        self,
    ) -> impl Stream<Item = Result<M, Status>> + Send {
        stream::unfold(Some(self), |watch| async move {
            let mut watch = watch.filter(|watch| !watch.done)?;
            if watch.begun
                && let Err(status) = watch.wait().await
            {
                return Some((Err(status), None));
            }
            watch.begun = true;
            watch.done = watch.change.finished;
            Some((Ok(M::from(watch.change.clone())), Some(watch)))
        })
    }

    /// Waits for the end of the change, at most for a period.
    async fn wait(&mut self) -> Result<(), Status> {
        let until = Instant::now() + TOLD_EVERY;
        // The job may wait for an agent that has been told to stop meanwhile.
        self.scheduler.wakes.changes.notify_one();
        loop {
            let look = facts::change(&self.scheduler, self.batch.id, Duration::ZERO);
            match self.scheduler.wakes.database.while_it_answers(look).await.unwrap_or_else(|| Err(errors::away()))? {
                Some(newest) if newest.number == self.change.number => self.change = newest,
                // The row is removed together with the batch.
                None if self.change.kind == ChangeKind::Remove => {
                    let sites = self.change.sites;
                    self.change = Change { finished: true, read: sites, changed: sites, ..self.change.clone() };
                }
                _ => return Err(replaced(&self.batch.name, self.change.kind)),
            }
            if self.change.finished || Instant::now() >= until {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return Err(errors::stopping()),
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }
}

/// Parses which tasks of a batch a request affects: all tasks, or those of the named sites.
pub(in crate::grpc::operator) fn extent(sites: &[String], all: bool, flag: &str) -> Result<ChangeScope, InvalidField> {
    match (sites.len(), all) {
        (0, true) => return Ok(ChangeScope::All),
        (0, false) => return Err(InvalidField::new("sites", format!("no site is named, and `{flag}` is not set"))),
        (_, true) => return Err(InvalidField::new(flag, "sites are named too")),
        (named, false) if named > MAX_CHUNK => {
            return Err(InvalidField::new("sites", format!("more than {MAX_CHUNK} in one message")));
        }
        (_, false) => {}
    }
    let parsed =
        sites.iter().enumerate().map(|(index, text)| text.parse().map_err(InvalidField::of(format!("sites[{index}]"))));
    // Repeated names are dropped, so that each site is counted once.
    let mut seen = HashSet::new();
    let names: Vec<SiteName> = parsed.collect::<Result<_, _>>()?;
    Ok(ChangeScope::Sites(names.into_iter().filter(|name: &SiteName| seen.insert(name.clone())).collect()))
}

impl From<Change> for v1::BatchChange {
    fn from(change: Change) -> Self {
        let kind = match change.kind {
            ChangeKind::Cancel => v1::BatchChangeKind::Cancel,
            ChangeKind::Retry => v1::BatchChangeKind::Retry,
            ChangeKind::Remove => v1::BatchChangeKind::Remove,
        };
        Self {
            kind: kind.into(),
            asked_at: Some(timestamp(change.asked_at)),
            finished: change.finished,
            sites: change.sites,
            read: change.read,
            tasks: change.changed,
            leases: change.leases,
            recrawls: change.recrawls,
        }
    }
}

impl From<Change> for v1::CancelTasksResponse {
    fn from(change: Change) -> Self {
        Self {
            tasks: change.changed,
            leases: change.leases,
            ended: change.read.saturating_sub(change.changed),
            recrawls: change.recrawls,
            unfinished: (!change.finished).then(|| change.into()),
        }
    }
}

impl From<Change> for v1::RetryTasksResponse {
    fn from(change: Change) -> Self {
        Self { tasks: change.changed, open: 0, unfinished: (!change.finished).then(|| change.into()) }
    }
}

impl From<Change> for v1::RemoveBatchProgress {
    fn from(change: Change) -> Self {
        Self { removed: change.changed, tasks: change.sites, done: change.finished }
    }
}

impl From<CancelResult> for v1::CancelTasksResponse {
    fn from(cancelled: CancelResult) -> Self {
        let CancelResult { tasks, leases, ended, recrawls, agents: _ } = cancelled;
        Self { tasks, leases, ended, recrawls, unfinished: None }
    }
}

impl From<RetryResult> for v1::RetryTasksResponse {
    fn from(RetryResult { tasks, open }: RetryResult) -> Self {
        Self { tasks, open, unfinished: None }
    }
}
