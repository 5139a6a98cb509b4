//! Cancels or retries tasks of a batch: all of them, or those of the named sites. Removes a batch
//! in steps of up to a thousand tasks, and only while the client reads the progress messages.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::{Stream, stream};
use landfall_proto::v1;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::Scheduler;
use crate::grpc::errors;
use crate::grpc::operator::convert::{InvalidField, MAX_CHUNK};
use crate::grpc::operator::named;
use crate::model::site_name::SiteName;
use crate::store;
use crate::store::batches::Batch;
use crate::store::batches::cancel_and_retry::{self, CancelResult, ChangeScope, RetryResult};
use crate::store::batches::removal::{self, RemovalStep, TaskPosition};
use crate::store::batches::submissions::SubmitError;

pub(in crate::grpc::operator) async fn cancel(
    scheduler: &Scheduler,
    request: v1::CancelTasksRequest,
) -> Result<v1::CancelTasksResponse, Status> {
    let v1::CancelTasksRequest { batch, sites, all } = request;
    let extent = extent(&sites, all, "all")?;
    let mut tx = store::begin(&scheduler.pool).await?;
    let batch = named::exact_batch(&mut tx, &batch).await?;
    let cancelled = cancel_and_retry::cancel(&mut tx, batch.id, &batch.name, &extent).await?;
    store::commit(tx).await?;
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
    let extent = extent(&sites, failed, "failed")?;
    let mut tx = store::begin(&scheduler.pool).await?;
    let batch = named::exact_batch(&mut tx, &batch).await?;
    if batch.removing {
        return Err(SubmitError::BeingRemoved(batch.name).into());
    }
    let retried = cancel_and_retry::retry(&mut tx, batch.id, &batch.name, &extent).await?;
    store::commit(tx).await?;
    tracing::info!(batch = batch.name, retried.tasks, "tasks were retried");
    scheduler.wakes.measure.notify_one();
    scheduler.wakes.assign.notify_one();
    Ok(retried.into())
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

impl From<CancelResult> for v1::CancelTasksResponse {
    fn from(cancelled: CancelResult) -> Self {
        let CancelResult { tasks, leases, ended, recrawls, agents: _ } = cancelled;
        Self { tasks, leases, ended, recrawls }
    }
}

impl From<RetryResult> for v1::RetryTasksResponse {
    fn from(RetryResult { tasks, open }: RetryResult) -> Self {
        Self { tasks, open }
    }
}

/// The pause after a step that removed tasks. A step takes tens of milliseconds, so the pause
/// leaves about half of the time for other work. `WAIT` is the pause while the remaining tasks
/// cannot be removed yet.
const REST: Duration = Duration::from_millis(20);
const WAIT: Duration = Duration::from_millis(500);

/// A batch that is being removed.
pub(in crate::grpc::operator) struct Removal {
    scheduler: Scheduler,
    shutdown: CancellationToken,
    batch: Batch,
    tasks: u64,
    removed: u64,
    place: TaskPosition,
    rest: Duration,
    begun: bool,
    done: bool,
}

impl Removal {
    /// Marks the batch with this name as being removed. If `cancel` is true, cancels its tasks first.
    pub(in crate::grpc::operator) async fn begin(
        scheduler: Scheduler,
        shutdown: CancellationToken,
        batch: &str,
        cancel: bool,
    ) -> Result<Self, Status> {
        let mut tx = store::begin(&scheduler.pool).await?;
        let batch = named::exact_batch(&mut tx, batch).await?;
        let agents = if cancel {
            cancel_and_retry::cancel(&mut tx, batch.id, &batch.name, &ChangeScope::All).await?.agents
        } else {
            Vec::new()
        };
        let tasks = removal::begin(&mut tx, batch.id, &batch.name).await?;
        store::commit(tx).await?;
        tracing::info!(batch = batch.name, tasks, "a batch is being removed");
        scheduler.wakes.wake_agents(agents);
        let (removed, place, rest) = (0, TaskPosition::default(), Duration::ZERO);
        Ok(Self { scheduler, shutdown, batch, tasks, removed, place, rest, begun: false, done: false })
    }

    /// Sends one message at once, and one more after each step of the removal.
    pub(in crate::grpc::operator) fn messages(
        self,
    ) -> impl Stream<Item = Result<v1::RemoveBatchProgress, Status>> + Send {
        stream::unfold(Some(self), |removal| async move {
            let mut removal = removal.filter(|removal| !removal.done)?;
            if removal.begun
                && let Err(status) = removal.step().await
            {
                return Some((Err(status), None));
            }
            removal.begun = true;
            let Self { removed, tasks, done, .. } = removal;
            Some((Ok(v1::RemoveBatchProgress { removed, tasks, done }), Some(removal)))
        })
    }

    async fn step(&mut self) -> Result<(), Status> {
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return Err(errors::stopping()),
            () = tokio::time::sleep(self.rest) => {}
        }
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let Batch { id, name, .. } = &self.batch;
        let step = removal::step(&mut tx, *id, name, self.place).await?;
        store::commit(tx).await?;
        match step {
            RemovalStep::Removed(tasks, place) => {
                (self.removed, self.place, self.rest) = (self.removed + tasks, place, REST);
            }
            RemovalStep::Waits => self.rest = WAIT,
            RemovalStep::Done => {
                tracing::info!(batch = name, tasks = self.removed, "a batch was removed");
                self.done = true;
            }
        }
        Ok(())
    }
}
