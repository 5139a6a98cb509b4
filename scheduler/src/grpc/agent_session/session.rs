//! One agent's session, run as an async task that owns the agent's stream.
//!
//! The async task answers the agent's messages. When woken, and at least once a second, the async
//! task sends the messages that the store holds for the agent: revoked or preempted leases,
//! measurement orders, and new leases. Each message is committed before it is sent.
//!
//! The async task ends when the stream breaks, the session is superseded or expired, or the
//! scheduler shuts down. Nothing is lost, because the store records every grant, and the agent
//! repeats reports that were not acknowledged.

use std::sync::Arc;
use std::time::Duration;

use landfall_proto::v1;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::outcomes;
use super::session_state::Session;
use crate::grpc::errors;
use crate::store::agents::sessions;
use crate::store::{self, leases};

/// Interval at which the session reads the store if it is not woken.
const POLL: Duration = Duration::from_secs(1);

impl Session {
    pub(super) async fn run(mut self, mut inbound: Streaming<v1::SessionRequest>, shutdown: CancellationToken) {
        let wakes = Arc::clone(&self.scheduler.wakes);
        // `gone` says whether the agent is gone. `gone` is false if the scheduler itself ends all
        // sessions, because the agents may still be running.
        let (ended, gone) = tokio::select! {
            () = shutdown.cancelled() => (Err(Status::unavailable("the scheduler is shutting down")), false),
            () = wakes.database.silent() => (Err(errors::away()), false),
            ended = self.serve(&mut inbound) => (ended, true),
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

    async fn serve(&mut self, inbound: &mut Streaming<v1::SessionRequest>) -> Result<(), Status> {
        let mut poll = tokio::time::interval(POLL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let wake = Arc::clone(&self.wake);
        loop {
            tokio::select! {
                message = inbound.next() => match message {
                    None => return Ok(()),
                    Some(request) => self.receive(request?, inbound).await?,
                },
                () = wake.notified() => self.push().await?,
                _ = poll.tick() => self.push().await?,
            }
        }
    }

    async fn receive(
        &mut self,
        request: v1::SessionRequest,
        inbound: &mut Streaming<v1::SessionRequest>,
    ) -> Result<(), Status> {
        use v1::session_request::Message;
        let mut reports = Vec::new();
        let next = outcomes::gather(request, inbound, &mut reports);
        if !reports.is_empty() {
            self.record_outcomes(reports).await?;
        }
        let Some(request) = next.transpose()? else { return Ok(()) };
        match request.message {
            None => Err(Status::invalid_argument("a session request without a message")),
            Some(Message::Register(_)) => Err(Status::invalid_argument("`register` comes once, as the first message")),
            Some(Message::Heartbeat(heartbeat)) => self.renew(heartbeat).await,
            Some(Message::Measurement(report)) => self.record_measurement(report).await,
            // This arm is never reached, because `gather` takes all outcomes.
            Some(Message::Outcome(report)) => self.record_outcomes(vec![report]).await,
            Some(Message::Release(release)) => self.release(release).await,
            Some(Message::Checkpoint(checkpoint)) => self.keep(checkpoint).await,
            Some(Message::Permit(request)) => self.permit(request).await,
            Some(Message::Leave(_)) => {
                self.leaving = true;
                Ok(())
            }
        }
    }

    /// Ends the session of an agent that announced that it is stopping. For any other agent,
    /// records that the agent disconnected.
    async fn close(&self) -> Result<(), store::Error> {
        if !self.leaving {
            sessions::disconnect(&mut *self.scheduler.pool.acquire().await?, self.session).await?;
            // The assignment job must soon give the agent's waiting tasks to other agents. Without
            // this signal, a quiet scheduler would run the job only after a longer period.
            self.scheduler.wakes.assign.notify_one();
            return Ok(());
        }
        let mut tx = store::begin(&self.scheduler.pool).await?;
        sessions::close(&mut tx, self.session).await?;
        leases::release_of_ended_sessions(&mut tx, self.scheduler.config.lease.max_crashes).await?;
        tx.commit().await?;
        self.scheduler.wakes.assign.notify_one();
        Ok(())
    }
}
