//! The struct `Session` holds the state of one agent's connection: its slots, its leases to come,
//! and the queue of messages to the agent.

use std::sync::Arc;

use landfall_proto::v1;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;

use super::outbound_queue::OutboundQueue;
use super::outcome_commits::OutcomeCommits;
use crate::Scheduler;
use crate::grpc::errors;
use crate::model::{AgentId, SessionId};
use crate::store;
use crate::store::agents::{CredentialHolder, sessions};

/// The state of one open session.
pub(super) struct Session {
    pub(super) scheduler: Scheduler,
    pub(super) recordings: Arc<OutcomeCommits>,
    pub(super) agent: AgentId,
    /// The agent's name, for logs.
    pub(super) name: String,
    pub(super) session: SessionId,
    pub(super) outbound: OutboundQueue,
    pub(super) wake: Arc<Notify>,
    /// Whether the agent has announced that it is stopping. A stopping agent gets no new leases,
    /// and its session ends when the stream ends.
    pub(super) leaving: bool,
    /// When the session was opened.
    pub(super) opened: Instant,
    /// The agent gets no new leases before this time.
    pub(super) grants_from: Instant,
    /// The agent's free slots: the number last read from the store, minus later grants, plus slots
    /// freed since then.
    pub(super) free: i64,
    /// Whether a task may be waiting for the agent. When a task is assigned to the agent, the
    /// session is woken and reads this value from the store again.
    pub(super) waits: bool,
    /// The contact URL sent in the welcome message.
    pub(super) contact_url: Option<String>,
    /// Why the agent takes no leases, as last reported; empty if it takes leases.
    pub(super) paused: String,
}

impl Session {
    pub(super) fn new(
        scheduler: &Scheduler,
        recordings: &Arc<OutcomeCommits>,
        CredentialHolder { agent, name, .. }: CredentialHolder,
        session: SessionId,
        outbound: OutboundQueue,
        contact_url: Option<String>,
    ) -> Self {
        Self {
            scheduler: scheduler.clone(),
            recordings: Arc::clone(recordings),
            agent,
            name,
            session,
            outbound,
            wake: scheduler.wakes.agent(agent),
            leaving: false,
            opened: Instant::now(),
            grants_from: Instant::now(),
            free: 0,
            waits: false,
            contact_url,
            paused: String::new(),
        }
    }

    /// Whether the agent may get new leases now.
    pub(super) fn may_grant(&self) -> bool {
        !self.leaving && Instant::now() >= self.grants_from
    }

    /// The status for the agent of an ended session.
    pub(super) async fn ended(&self) -> Result<Status, Status> {
        let mut conn = self.connection().await?;
        let cause = sessions::end_cause(&mut conn, self.session).await?;
        Ok(errors::from_end(cause))
    }

    pub(super) async fn connection(&self) -> Result<sqlx::pool::PoolConnection<sqlx::Postgres>, store::Error> {
        store::acquire(&self.scheduler.pool).await
    }

    pub(super) async fn send(&self, response: v1::SessionResponse) -> Result<(), Status> {
        self.outbound.send(response).await
    }
}
