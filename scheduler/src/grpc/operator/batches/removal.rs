//! Removes a batch in steps of up to a thousand tasks. The removal continues only while the client
//! reads the progress messages.

use std::time::Duration;

use futures_util::{Stream, stream};
use landfall_proto::v1;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::store::batches::Batch;
use crate::store::batches::cancel_and_retry::{self, ChangeScope};
use crate::store::batches::removal::{self, RemovalStep, TaskPosition};
use crate::{Scheduler, store};

use crate::grpc::errors;
use crate::grpc::operator::named;

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
