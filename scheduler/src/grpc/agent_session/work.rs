//! The part of a session that handles the agent's messages, in the order in which they came, and
//! sends the messages that the store holds for the agent. It runs when a message has come, when it
//! is woken, and at least once a second.
//!
//! A message whose rows another transaction has locked, for example an operator in psql, is parked:
//! the messages after it are handled first, and it is tried again each second. The order of messages
//! matters only for a checkpoint, which must precede the end of its lease, so a checkpoint is never
//! parked.

use std::sync::Arc;
use std::time::Duration;

use landfall_proto::v1;
use tonic::Status;

use super::group_commit::{HOSTS_PER_ROW, MOST_AT_ONCE};
use super::inbox::Queued;
use super::patience::Unhandled;
use super::received::Work;
use super::session::Session;

/// Interval at which the session reads the store if it is not woken.
const POLL: Duration = Duration::from_secs(1);

impl Session {
    /// Handles messages until the stream has ended and all messages are handled.
    pub(super) async fn work(&mut self) -> Result<(), Status> {
        let mut poll = tokio::time::interval(POLL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let wake = Arc::clone(&self.wake);
        loop {
            tokio::select! {
                queued = self.inbox.recv() => match queued {
                    Some(queued) => self.take(queued).await?,
                    None if self.parked.is_empty() => return Ok(()),
                    None => {
                        poll.tick().await;
                        self.retry().await?;
                    }
                },
                () = wake.notified() => self.push().await?,
                _ = poll.tick() => {
                    self.retry().await?;
                    self.push().await?;
                }
            }
        }
    }

    /// Handles a message. Records an outcome together with the outcomes that have already come
    /// after it.
    async fn take(&mut self, queued: Queued) -> Result<(), Status> {
        let (mut outcomes, mut rooms, mut rows) = (Vec::new(), Vec::new(), 0);
        let mut next = Some(queued);
        while let Some(Queued { work: Work::Outcome(outcome), room }) = next {
            rows += 1 + outcome.report.hosts.len() / HOSTS_PER_ROW;
            outcomes.push(outcome);
            rooms.push(room);
            next = if rows < MOST_AT_ONCE { self.inbox.try_recv().ok() } else { None };
        }
        if !outcomes.is_empty() {
            self.record_outcomes(outcomes, rooms).await?;
        }
        match next {
            Some(queued) => self.handle(queued).await.map(drop),
            None => Ok(()),
        }
    }

    /// Handles a message, or parks it. Returns whether it was handled.
    async fn handle(&mut self, queued: Queued) -> Result<bool, Status> {
        let handled = match &queued.work {
            Work::Outcome(outcome) => self.record_alone(outcome).await,
            Work::Measurement(answer) => self.record_measurement(answer).await,
            Work::Release(released) => self.release(released).await,
            Work::Checkpoint(checkpoint) => self.keep(checkpoint).await,
            Work::Permit(asked, request) => self.permit(asked, request).await,
            Work::LostOutcome(lease) => self.refuse_lost(lease).await,
            Work::Lost(v1::HeldLease { task_id, token, history }) => {
                // The lease ended with its history, so nothing is to be done.
                tracing::debug!(
                    agent.name = self.name,
                    task.id = task_id,
                    token,
                    history,
                    "a message about a lost lease"
                );
                Ok(())
            }
            Work::Leave => {
                self.leaving = true;
                Ok(())
            }
        };
        match handled {
            Ok(()) => Ok(true),
            Err(Unhandled::Ends(status)) => Err(status),
            Err(Unhandled::Later) => {
                self.parked.push_back(queued);
                Ok(false)
            }
        }
    }

    /// Handles the parked messages, up to the first that must wait again. The next retry begins with
    /// the message after it, so that each is tried in turn, and a retry waits for only one lock.
    async fn retry(&mut self) -> Result<(), Status> {
        for _ in 0..self.parked.len() {
            let Some(queued) = self.parked.pop_front() else { break };
            if !self.handle(queued).await? {
                break;
            }
        }
        Ok(())
    }
}
