//! One agent's session, run as an async task that owns the agent's stream.
//!
//! The async task answers the agent's messages. When it is woken, and at least once a second, it
//! sends the messages that the store holds for the agent: revoked or preempted leases, measurement
//! orders, and new leases. Each message is committed before it is sent.
//!
//! The async task ends when the stream breaks, the session is superseded or expired, or the
//! scheduler shuts down. Nothing is lost, because the store records every grant, and the agent
//! repeats reports that were not acknowledged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use landfall_proto::v1;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::group_commit::GroupCommit;
use super::{convert, outcomes};
use crate::Scheduler;
use crate::grpc::errors;
use crate::model::{AgentId, SessionId, TaskId};
use crate::store;
use crate::store::agents::{CredentialHolder, sessions};
use crate::store::leases::outcomes::OutcomeAnswer;
use crate::store::leases::{self, FreeSlots, Grant, checkpoints, preemptions};
use crate::store::measurements::{self, orders};

/// Maximum number of messages that wait in memory for an agent. If the agent reads so slowly that
/// more would wait, its session ends.
pub(super) const OUTBOUND_MESSAGES: usize = 256;
/// Maximum time that one message waits for room in the queue.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which the session reads the store if it is not woken.
const POLL: Duration = Duration::from_secs(1);

/// Maximum number of checkpoints in memory at the same time. Each checkpoint has up to 1 MiB.
const CHECKPOINTS_AT_ONCE: usize = 8;

/// Maximum number of leases granted to an agent in a shared transaction that records outcomes. The
/// session is then woken to fill further slots.
pub(super) const FILLED_AT_ONCE: i64 = 512;

pub(super) type Outbound = mpsc::Sender<Result<v1::SessionResponse, Status>>;

/// The group commit of outcomes, shared by the sessions of one scheduler.
pub(super) type OutcomeCommits = GroupCommit<outcomes::OutcomeBatch>;

pub(super) struct Session {
    pub(super) scheduler: Scheduler,
    pub(super) recordings: Arc<OutcomeCommits>,
    pub(super) agent: AgentId,
    /// The agent's name, for logs.
    pub(super) name: String,
    pub(super) session: SessionId,
    outbound: Outbound,
    pub(super) wake: Arc<Notify>,
    /// Whether the agent has announced that it is stopping. Then it gets no new leases, and the
    /// session ends when the stream ends.
    leaving: bool,
    /// When the session was opened.
    pub(super) opened: Instant,
    /// The agent gets no new leases before this time.
    pub(super) grants_from: Instant,
    /// The agent's free slots: the number last read from the store, minus later grants, plus slots
    /// freed since then.
    pub(super) free: i64,
    /// Whether a task may be waiting for the agent. When a task is assigned to the agent, the
    /// session is woken and reads this value from the store again.
    waits: bool,
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
        outbound: Outbound,
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

    pub(super) async fn run(mut self, mut inbound: Streaming<v1::SessionRequest>, shutdown: CancellationToken) {
        let wakes = Arc::clone(&self.scheduler.wakes);
        // `gone` says whether the agent is gone. It is false if the scheduler itself ends all
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
                // The agent may be gone already, so a failure to send the status is ignored.
                let _told = self.outbound.try_send(Err(status.clone()));
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

    async fn record_measurement(&mut self, report: v1::MeasurementReport) -> Result<(), Status> {
        let answer = convert::measurement(report)?;
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let recorded = measurements::record(&mut tx, self.agent, answer.order, &answer.report).await?;
        store::commit(tx).await?;
        let wakes = &self.scheduler.wakes;
        match recorded {
            measurements::ReportTarget::Site(_) => {
                wakes.measure.notify_one();
                wakes.locate.notify_one();
                wakes.confirm.notify_one();
            }
            measurements::ReportTarget::Beacon(_) => {
                wakes.measure.notify_one();
                wakes.fit.notify_one();
            }
            measurements::ReportTarget::Unknown => {
                tracing::debug!(agent.name = self.name, order.id = %answer.order, "a report on an order that is not open");
            }
        }
        Ok(())
    }

    /// Sends the messages that the store holds for this agent. If there are none, which is the
    /// usual case, no row is locked or written.
    pub(super) async fn push(&mut self) -> Result<(), Status> {
        let mut conn = self.connection().await?;
        let waiting = sessions::waiting(&mut conn, self.agent, self.session).await?;
        drop(conn);
        // Without this check, the agent of an ended session would continue until its next
        // heartbeat. In the meantime it would crawl sites whose tasks other agents have leased.
        let Some(waiting) = waiting else { return Err(self.ended().await?) };
        (self.free, self.waits) = (waiting.free, waiting.tasks);
        let waiting = sessions::PendingMessages { tasks: waiting.tasks && self.may_grant(), ..waiting };
        let any = waiting.orders || waiting.revocations || waiting.preemptions || waiting.leases();
        if any { self.hand_out(waiting).await } else { Ok(()) }
    }

    /// The free slots to fill in the transaction that records outcomes; `None` if no lease can be
    /// granted.
    pub(super) fn fillable(&self) -> Option<FreeSlots> {
        (self.waits && self.may_grant()).then_some(FreeSlots {
            agent: self.agent,
            session: self.session,
            slots: self.free,
        })
    }

    pub(super) fn freed(&mut self, answers: &[OutcomeAnswer]) {
        self.free = self.free.saturating_add(outcomes::freed(answers));
    }

    /// Sends the grants of a transaction that could fill up to `slots` free slots.
    pub(super) async fn filled(&mut self, grants: Vec<Grant>, slots: i64) -> Result<(), Status> {
        if slots > 0 {
            let granted = i64::try_from(grants.len()).unwrap_or(i64::MAX);
            self.waits = granted >= slots;
            if granted == FILLED_AT_ONCE {
                self.wake.notify_one();
            }
        }
        self.send_orders(grants).await
    }

    fn may_grant(&self) -> bool {
        !self.leaving && Instant::now() >= self.grants_from
    }

    async fn hand_out(&mut self, waiting: sessions::PendingMessages) -> Result<(), Status> {
        let (mut orders, mut revoked, mut preempted, mut grants) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut tx = store::begin(&self.scheduler.pool).await?;
        if waiting.orders {
            orders = orders::take_unsent(&mut tx, self.agent, self.session).await?;
        }
        if waiting.revocations {
            revoked = leases::take_revoked(&mut tx, self.session).await?;
        }
        if waiting.preemptions {
            preempted = preemptions::take_unsent(&mut tx, self.agent, self.session).await?;
        }
        if waiting.leases() {
            grants = leases::grant(&mut tx, self.agent, self.session).await?;
        }
        store::commit(tx).await?;
        // Revocations are sent first, because each revocation frees a slot for a new lease.
        for (task, token) in revoked {
            self.send(convert::cancel_order(task, token)).await?;
        }
        for order in preempted {
            self.send(convert::preempt_order(&order)).await?;
        }
        for order in orders {
            let config = &self.scheduler.config;
            self.send(convert::measure_order(order, &config.measure, &config.confirm)).await?;
        }
        self.send_orders(grants).await
    }

    async fn send_orders(&mut self, grants: Vec<Grant>) -> Result<(), Status> {
        self.free = self.free.saturating_sub(i64::try_from(grants.len()).unwrap_or(i64::MAX));
        let mut grants = grants.into_iter().peekable();
        while grants.peek().is_some() {
            let some: Vec<Grant> = grants.by_ref().take(CHECKPOINTS_AT_ONCE).collect();
            let mut states = self.checkpoints(&some).await?;
            let pages = self.last_pages(&some).await?;
            for grant in some {
                let state = states.remove(&grant.task).unwrap_or_default();
                let last_pages = pages.get(&grant.task).copied();
                self.send(convert::crawl_order(grant, state, last_pages)).await?;
            }
        }
        Ok(())
    }

    /// The checkpoints of granted tasks. No other agent writes these checkpoints in the meantime,
    /// because only this agent has the leases.
    async fn checkpoints(&self, grants: &[Grant]) -> Result<HashMap<TaskId, Vec<u8>>, Status> {
        let again: Vec<TaskId> = grants.iter().filter(|grant| grant.token.get() > 1).map(|grant| grant.task).collect();
        if again.is_empty() {
            return Ok(HashMap::new());
        }
        Ok(checkpoints::of(&mut *self.connection().await?, &again).await?)
    }

    /// The number of pages in the last crawl of each granted task's site. The number is read only
    /// if the crawl rate depends on it.
    async fn last_pages(&self, grants: &[Grant]) -> Result<HashMap<TaskId, u32>, Status> {
        let depends = |grant: &&Grant| grant.policy.shortest_interval < grant.policy.request_interval;
        let asked: Vec<TaskId> = grants.iter().filter(depends).map(|grant| grant.task).collect();
        if asked.is_empty() {
            return Ok(HashMap::new());
        }
        Ok(store::leases::outcomes::last_pages(&mut *self.connection().await?, &asked).await?)
    }

    /// The status for the agent of an ended session.
    pub(super) async fn ended(&self) -> Result<Status, Status> {
        let mut conn = self.connection().await?;
        let cause = sessions::end_cause(&mut conn, self.session).await?;
        Ok(errors::from_end(cause))
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

    pub(super) async fn connection(&self) -> Result<sqlx::pool::PoolConnection<sqlx::Postgres>, store::Error> {
        store::acquire(&self.scheduler.pool).await
    }

    pub(super) async fn send(&self, response: v1::SessionResponse) -> Result<(), Status> {
        self.outbound
            .send_timeout(Ok(response), SEND_TIMEOUT)
            .await
            .map_err(|_| Status::unavailable("the agent does not read its stream"))
    }
}
