//! One agent's session, run as an async task that owns the agent's stream: its state, heartbeats,
//! the queue of messages to the agent, and the fields that several messages have.
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

use futures_util::FutureExt as _;
use landfall_proto::v1;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::group_commit::{HOSTS_PER_ROW, OutcomeCommits};
use crate::Scheduler;
use crate::grpc::errors;
use crate::grpc::operator::convert::{moment, plain};
use crate::model::{AgentId, LeaseToken, Rtt, SessionId, TaskId, naming};
use crate::status::DiskSpace;
use crate::store::agents::CredentialHolder;
use crate::store::agents::refusals::{self, Refusal};
use crate::store::agents::sessions::{self, MachineReport};
use crate::store::assignments::agents_and_loads::ReportedLoad;
use crate::store::{self, leases};

/// The state of one open session.
pub(super) struct Session {
    pub(super) scheduler: Scheduler,
    pub(super) recordings: Arc<OutcomeCommits>,
    pub(super) agent: AgentId,
    /// The agent's name, for logs.
    pub(super) name: String,
    pub(super) session: SessionId,
    outbound: OutboundQueue,
    pub(super) wake: Arc<Notify>,
    /// Whether the agent has announced that it is stopping. A stopping agent gets no new leases,
    /// and its session ends when the stream ends.
    leaving: bool,
    /// When the session was opened.
    opened: Instant,
    /// The agent gets no new leases before this time.
    pub(super) grants_from: Instant,
    /// The agent's free slots: the number last read from the store, minus later grants, plus slots
    /// freed since then.
    pub(super) free: i64,
    /// Whether a task may be waiting for the agent. When a task is assigned to the agent, the
    /// session is woken and reads this value from the store again.
    pub(super) waits: bool,
    /// The contact URL sent in the welcome message.
    contact_url: Option<String>,
    /// Why the agent takes no leases, as last reported; empty if it takes leases.
    paused: String,
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

/// Maximum number of outcomes from one stream that are recorded at once. The maximum is high enough
/// to share the cost of the commit, and low enough for a transaction that takes only tens of
/// milliseconds.
const MOST_AT_ONCE: usize = 512;
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
        let next = gather(request, inbound, &mut reports);
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

/// Adds the outcomes that have already arrived to `reports`, beginning with `request`. Returns the
/// next message if it is of another kind, or the error that broke the stream.
fn gather(
    request: v1::SessionRequest,
    inbound: &mut Streaming<v1::SessionRequest>,
    reports: &mut Vec<v1::OutcomeReport>,
) -> Option<Result<v1::SessionRequest, Status>> {
    let (mut next, mut rows) = (Some(Ok(request)), 0);
    loop {
        match next {
            Some(Ok(v1::SessionRequest { message: Some(v1::session_request::Message::Outcome(report)) })) => {
                rows += 1 + report.hosts.len() / HOSTS_PER_ROW;
                reports.push(report);
            }
            other => return other,
        }
        if rows >= MOST_AT_ONCE {
            return None;
        }
        // Stops if no message has arrived or the stream has ended. The end of the stream is not
        // lost, because the next read of the stream returns it again.
        next = inbound.next().now_or_never()?;
    }
}

/// Maximum number of heartbeats that an agent can have sent since its session was opened. An agent
/// varies its interval by up to a fifth. The maximum is twice the regular number plus four, which
/// leaves room for this variation and for clock errors.
fn most_heartbeats(elapsed: Duration, interval: Duration) -> u64 {
    let intervals = elapsed.as_nanos() / interval.as_nanos().max(1);
    u64::try_from(intervals).unwrap_or(u64::MAX).saturating_mul(2).saturating_add(4)
}

impl Session {
    pub(super) async fn renew(&mut self, heartbeat: v1::Heartbeat) -> Result<(), Status> {
        let lease = &self.scheduler.config.lease;
        let lifetime = lease.life + lease.grace;
        let mut conn = self.connection().await?;
        let most = most_heartbeats(self.opened.elapsed(), lease.heartbeat_interval);
        if heartbeat.sequence > most {
            let detail = format!("heartbeat.sequence: {} when at most {most} can have been sent", heartbeat.sequence);
            refusals::count(&mut conn, self.agent, Refusal::FutureHeartbeat, &detail).await?;
            return Err(Status::invalid_argument(detail));
        }
        let renewed = sessions::renew(&mut conn, self.session, lifetime, machine(&heartbeat)).await?;
        store::assignments::agents_and_loads::record(&mut conn, self.session, said(&heartbeat)).await?;
        if self.paused != heartbeat.paused {
            self.pause(&mut conn, heartbeat.paused).await?;
        }
        let contact_url = store::settings::contact_url(&mut conn).await?;
        drop(conn);
        if !renewed {
            return Err(self.ended().await?);
        }
        // The contact URL is sent only in the welcome message, so an agent with an outdated URL
        // must reconnect. Reconnecting is cheap, because the agent keeps its leases.
        if contact_url != self.contact_url {
            return Err(Status::unavailable("the contact URL has changed: register again to learn it"));
        }
        self.send(heartbeat_ack(heartbeat.sequence)).await
    }

    /// Records when the agent stops taking leases, so that its waiting tasks go to other agents,
    /// and when it takes leases again, so that it gets new work.
    async fn pause(&mut self, conn: &mut sqlx::PgConnection, said: String) -> Result<(), Status> {
        let reason = Some(clip(said.clone())).filter(|reason| !reason.is_empty());
        let changed = sessions::pause(conn, self.session, reason.as_deref()).await?;
        // Only the start and the end of a pause are logged, because the reason may change with
        // every heartbeat. For example, the text about a full disk contains the free space.
        if changed && self.paused.is_empty() != said.is_empty() {
            match &reason {
                Some(reason) => tracing::warn!(agent.name = self.name, reason, "an agent paused"),
                None => tracing::info!(agent.name = self.name, "an agent takes leases again"),
            }
            self.scheduler.wakes.assign.notify_one();
        }
        self.paused = said;
        Ok(())
    }
}

/// The load that a heartbeat reports; `None` if the heartbeat lacks the field `free_slots`.
fn said(heartbeat: &v1::Heartbeat) -> Option<ReportedLoad> {
    let v1::Heartbeat { active_crawls: crawls, free_slots, outcomes_waiting, .. } = *heartbeat;
    Some(ReportedLoad { free_slots: free_slots?.min(MAX_CAPACITY), crawls: crawls.min(MAX_CAPACITY), outcomes_waiting })
}

/// The facts that a heartbeat reports about the agent's machine.
fn machine(heartbeat: &v1::Heartbeat) -> MachineReport {
    let disk = heartbeat.disk_free_bytes.zip(heartbeat.disk_size_bytes);
    MachineReport {
        sent_at: heartbeat.sent_at.and_then(moment),
        disk: disk.map(|(free, size)| DiskSpace { free, size }),
    }
}

fn heartbeat_ack(sequence: u64) -> v1::SessionResponse {
    respond(v1::session_response::Message::Heartbeat(v1::HeartbeatAck { sequence }))
}

/// Maximum number of messages that wait in memory for an agent. If the agent reads so slowly that
/// more would wait, its session ends.
const OUTBOUND_MESSAGES: usize = 256;
/// Maximum time that one message waits for room in the queue.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

type Outbound = Result<v1::SessionResponse, Status>;

/// The sending end of the queue.
#[derive(Debug)]
pub(super) struct OutboundQueue(mpsc::Sender<Outbound>);

impl OutboundQueue {
    /// Creates a queue. The stream returns its messages.
    pub(super) fn new() -> (Self, ReceiverStream<Outbound>) {
        let (outbound, responses) = mpsc::channel(OUTBOUND_MESSAGES);
        (Self(outbound), ReceiverStream::new(responses))
    }

    /// Adds a message, after waiting for room.
    pub(super) async fn send(&self, response: v1::SessionResponse) -> Result<(), Status> {
        self.0
            .send_timeout(Ok(response), SEND_TIMEOUT)
            .await
            .map_err(|_| Status::unavailable("the agent does not read its stream"))
    }

    /// Adds the status with which the stream ends. Ignores a failure, because the agent may be gone
    /// already.
    pub(super) fn end(&self, status: Status) {
        let _told = self.0.try_send(Err(status));
    }
}

/// Maximum number of slots of one agent; the schema has the same bound.
pub(super) const MAX_CAPACITY: u32 = 10_000;
/// Maximum number of characters that are stored from an agent's free text.
const MAX_TEXT: usize = 500;
/// Maximum length of one pause that a site can request.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(7 * 24 * 3600);

pub(super) fn lease_key(task: i64, token: i64) -> (TaskId, LeaseToken) {
    (TaskId::new(task), LeaseToken::new(token))
}

pub(super) fn rtt(value: Option<prost_types::Duration>) -> Option<Rtt> {
    plain(value).and_then(|duration| Rtt::try_new(duration).ok())
}

/// Makes an agent's text printable, and truncates it to the stored length.
pub(super) fn clip(mut text: String) -> String {
    text.retain(naming::is_shown);
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT) {
        text.truncate(end);
    }
    text
}

/// Wraps the message that answers an agent.
pub(super) fn respond(message: v1::session_response::Message) -> v1::SessionResponse {
    v1::SessionResponse { message: Some(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_keeps_its_interval_is_never_from_the_future() {
        let interval = Duration::from_secs(10);
        // The fastest possible agent sends every heartbeat a fifth of the interval early.
        for sequence in 1..10_000 {
            let elapsed = interval.mul_f64(0.8) * sequence;
            assert!(u64::from(sequence) <= most_heartbeats(elapsed, interval), "{sequence}");
        }
        assert_eq!(most_heartbeats(Duration::ZERO, interval), 4);
        assert_eq!(most_heartbeats(Duration::from_secs(3600), interval), 724);
        assert_eq!(
            most_heartbeats(Duration::from_secs(1), Duration::ZERO),
            2_000_000_004,
            "no interval is no division by it"
        );
    }

    #[test]
    fn a_time_that_postgres_does_not_store_is_unknown() {
        let times = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let beat = |sent_at| machine(&v1::Heartbeat { sent_at, ..v1::Heartbeat::default() }).sent_at;
        assert!(beat(times(-8_000_000_000_000)).is_none() && beat(times(i64::MAX)).is_none());
        assert!(beat(times(0)).is_some());
    }

    #[test]
    fn text_from_agents_is_bounded_and_printable() {
        assert_eq!(clip("a\u{1b}[31mb\n".into()), "a[31mb");
        assert_eq!(clip("é".repeat(2 * MAX_TEXT)).chars().count(), MAX_TEXT);
    }
}
