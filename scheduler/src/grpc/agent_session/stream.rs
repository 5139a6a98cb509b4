//! One agent's session, run as an async task that owns the agent's stream.
//!
//! Two parts of the async task run beside each other. One reads the agent's messages and answers
//! heartbeats at once (`heartbeats`). The other handles all other messages, in order, and sends the
//! messages that the store holds for the agent: revoked or preempted leases, measurement orders,
//! and new leases (`work`). So no heartbeat waits for another message's locks. A bounded queue is
//! between the two parts (`inbox`). Each message is committed before it is sent.
//!
//! The async task ends when the stream breaks, the session is superseded or expired, or the
//! scheduler shuts down. Nothing is lost, because the store records every grant, and the agent
//! repeats reports that were not acknowledged.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use landfall_proto::v1;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::heartbeats::Heartbeats;
use super::inbox::Inbox;
use super::patience::OPEN_PATIENCE;
use super::session::Session;
use crate::grpc::errors;
use crate::store::agents::sessions;
use crate::store::leases::ReleaseScope;
use crate::store::{self, leases};

/// Maximum time in which the remaining messages of a closed stream are handled. The agent reports
/// the rest again in its next session. A stopping agent waits 8 s for the end of its session.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

impl Session {
    pub(super) async fn run(
        mut self,
        heartbeats: Heartbeats,
        queue: Inbox,
        mut inbound: Streaming<v1::SessionRequest>,
        shutdown: CancellationToken,
    ) {
        let wakes = Arc::clone(&self.scheduler.wakes);
        // `gone` says whether the agent is gone. `gone` is false if the scheduler itself ends all
        // sessions, because the agents may still be running.
        let (ended, gone) = tokio::select! {
            () = shutdown.cancelled() => (Err(Status::unavailable("the scheduler is shutting down")), false),
            () = wakes.database.silent() => (Err(errors::away()), false),
            ended = self.serve(heartbeats.read(&mut inbound, queue)) => (ended, true),
        };
        match &ended {
            Ok(()) => tracing::info!(agent.name = self.name, "an agent disconnected"),
            Err(status) => {
                tracing::info!(agent.name = self.name, reason = status.message(), "a session ended");
                self.outbound.end(status.clone());
            }
        }
        if (self.leaving || gone)
            && let Some(Err(error)) = wakes.database.while_it_answers(self.close()).await
        {
            tracing::warn!(agent.name = self.name, error = %error, "a session could not be closed; it expires instead");
        }
    }

    /// Handles the messages that `reading` queues. When `reading` has ended, handles the remaining
    /// messages for a short time.
    async fn serve(&mut self, reading: impl Future<Output = Result<(), Status>>) -> Result<(), Status> {
        let (mut reading, mut working) = (pin!(reading), pin!(self.work()));
        tokio::select! {
            biased;
            read = &mut reading => {
                let worked = timeout(CLOSE_PATIENCE, working).await.unwrap_or(Ok(()));
                read.and(worked)
            }
            worked = &mut working => worked,
        }
    }

    /// Ends the session of an agent that announced that it is stopping. For any other agent,
    /// records that the agent disconnected.
    async fn close(&self) -> Result<(), store::Error> {
        let (agent, session, leaving) = (self.agent, self.session, self.leaving);
        let max_crashes = self.scheduler.config.lease.max_crashes;
        let db = self.scheduler.db.with_patience(OPEN_PATIENCE);
        let closing = db.tx("close a session", |tx| {
            async move {
                if !leaving {
                    return sessions::disconnect(tx, session).await;
                }
                sessions::close(tx, session).await?;
                leases::release_of_ended_sessions(tx, ReleaseScope::Agent(agent), max_crashes).await.map(drop)
            }
            .boxed()
        });
        closing.await?;
        // The assignment job must soon give the agent's waiting tasks to other agents. Without
        // this signal, a quiet scheduler would run the job only after a longer period.
        self.scheduler.wakes.assign.notify_one();
        Ok(())
    }
}
