//! The state of one agent's session, which the files for the kinds of messages use and change.

use std::collections::VecDeque;
use std::sync::Arc;

use landfall_proto::v1;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tonic::Status;

use super::group_commit::OutcomeCommits;
use super::inbox::Queued;
use super::outbound::OutboundQueue;
use super::patience::LOCK_PATIENCE;
use crate::Scheduler;
use crate::grpc::errors;
use crate::model::{AgentId, SessionId};
use crate::store::Db;
use crate::store::agents::CredentialHolder;
use crate::store::agents::sessions;
use crate::store::schema::histories::Histories;

/// The state of one open session.
pub(super) struct Session {
    pub(super) scheduler: Scheduler,
    /// The database, with the patience of agents' messages.
    pub(super) db: Db,
    pub(super) recordings: Arc<OutcomeCommits>,
    pub(super) agent: AgentId,
    /// The agent's name, for logs.
    pub(super) name: String,
    pub(super) session: SessionId,
    pub(super) outbound: OutboundQueue,
    pub(super) wake: Arc<Notify>,
    /// The messages to handle. No message is added once the stream has ended.
    pub(super) inbox: mpsc::Receiver<Queued>,
    /// The messages that wait until other transactions release their locks.
    pub(super) parked: VecDeque<Queued>,
    /// Whether the agent has announced that it is stopping. A stopping agent gets no new leases,
    /// and its session ends when the stream ends.
    pub(super) leaving: bool,
    /// The agent gets no new leases before this time.
    pub(super) grants_from: Instant,
    /// The agent's free slots: the number last read from the store, minus later grants, plus slots
    /// freed since then.
    pub(super) free: i64,
    /// Whether a task may be waiting for the agent. When a task is assigned to the agent, the
    /// session is woken and reads this value from the store again.
    pub(super) waits: bool,
    /// The database's histories when the session was opened.
    pub(super) histories: Histories,
}

impl Session {
    pub(super) fn new(
        scheduler: &Scheduler,
        recordings: &Arc<OutcomeCommits>,
        CredentialHolder { agent, name, .. }: CredentialHolder,
        session: SessionId,
        outbound: OutboundQueue,
        inbox: mpsc::Receiver<Queued>,
        histories: Histories,
    ) -> Self {
        Self {
            scheduler: scheduler.clone(),
            db: scheduler.db.with_patience(LOCK_PATIENCE),
            recordings: Arc::clone(recordings),
            agent,
            name,
            session,
            outbound,
            wake: scheduler.wakes.agent(agent),
            inbox,
            parked: VecDeque::new(),
            leaving: false,
            grants_from: Instant::now(),
            free: 0,
            waits: false,
            histories,
        }
    }

    /// Whether the agent still reads the messages that are sent to it.
    pub(super) fn is_connected(&self) -> bool {
        !self.inbox.is_closed()
    }

    /// Whether the agent may get new leases now.
    pub(super) fn may_grant(&self) -> bool {
        !self.leaving && self.is_connected() && Instant::now() >= self.grants_from
    }

    pub(super) async fn send(&self, response: v1::SessionResponse) -> Result<(), Status> {
        self.outbound.send(response).await
    }
}

/// The status for the agent of an ended session.
pub(super) async fn ended(scheduler: &Scheduler, session: SessionId) -> Result<Status, Status> {
    let mut conn = scheduler.db.read("read why a session ended").await?;
    let cause = sessions::end_cause(&mut conn, session).await?;
    Ok(errors::from_end(cause))
}
