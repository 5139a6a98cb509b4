//! The part of a session that reads the agent's stream: answers heartbeats at once, and queues all
//! other messages.
//!
//! A heartbeat waits only for the row of its own session, which no transaction locks for long. If
//! the database does not store the heartbeat in time, the heartbeat is not answered, and the
//! session goes on: the agent's leases last for several heartbeats.

use std::time::Duration;

use futures_util::FutureExt as _;
use landfall_proto::v1;
use landfall_proto::v1::session_request::Message;
use tokio::time::{Instant, timeout};
use tonic::{Status, Streaming};

use super::fields::{MAX_CAPACITY, clip, respond};
use super::inbox::Inbox;
use super::outbound::OutboundQueue;
use super::patience::Unhandled;
use super::received;
use super::session::ended;
use crate::Scheduler;
use crate::grpc::operator::convert::moment;
use crate::model::{AgentId, SessionId};
use crate::status::DiskSpace;
use crate::store::agents::refusals::{self, Refusal};
use crate::store::agents::sessions::{self, HeartbeatReport, MachineReport};
use crate::store::assignments::agents_and_loads::ReportedLoad;
use crate::store::schema::histories::Histories;
use crate::store::{self, Db};

/// Maximum time that a heartbeat waits for its session's row. Transactions that grant leases lock
/// the row until their commit, which may take a second on a slow disk.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum time to store a heartbeat, including the wait for a connection to the database.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known from a session's earlier heartbeats.
pub(super) struct Heartbeats {
    scheduler: Scheduler,
    /// The database, with the patience of heartbeats.
    db: Db,
    agent: AgentId,
    /// The agent's name, for logs.
    name: String,
    session: SessionId,
    outbound: OutboundQueue,
    /// When the session was opened.
    opened: Instant,
    /// The contact URL sent in the welcome message.
    contact_url: Option<String>,
    /// The database's histories when the session was opened.
    histories: Histories,
    /// Why the agent takes no leases, as last reported; empty if it takes leases.
    paused: String,
}

impl Heartbeats {
    pub(super) fn new(
        scheduler: &Scheduler,
        (agent, name, session): (AgentId, String, SessionId),
        outbound: OutboundQueue,
        (contact_url, histories): (Option<String>, Histories),
    ) -> Self {
        Self {
            scheduler: scheduler.clone(),
            db: scheduler.db.with_patience(LOCK_PATIENCE),
            agent,
            name,
            session,
            outbound,
            opened: Instant::now(),
            contact_url,
            histories,
            paused: String::new(),
        }
    }

    /// Reads the stream until it ends.
    pub(super) async fn read(
        mut self,
        inbound: &mut Streaming<v1::SessionRequest>,
        queue: Inbox,
    ) -> Result<(), Status> {
        while let Some(request) = inbound.message().await? {
            let message =
                request.message.ok_or_else(|| Status::invalid_argument("a session request without a message"))?;
            let size = message.encoded_len();
            let work = match message {
                Message::Heartbeat(heartbeat) => {
                    self.answer(heartbeat).await?;
                    continue;
                }
                message => received::work(message, self.agent, self.session, &self.histories)?,
            };
            queue.put(work, size).await?;
        }
        Ok(())
    }

    async fn answer(&mut self, heartbeat: v1::Heartbeat) -> Result<(), Status> {
        let sequence = heartbeat.sequence;
        match timeout(PATIENCE, self.renew(heartbeat)).await {
            Ok(Ok(())) => self.outbound.send(heartbeat_ack(sequence)).await,
            Ok(Err(Unhandled::Ends(status))) => Err(status),
            Ok(Err(Unhandled::Later)) | Err(_) => {
                tracing::warn!(agent.name = self.name, "a heartbeat could not be stored in time; it is not answered");
                Ok(())
            }
        }
    }

    async fn renew(&mut self, heartbeat: v1::Heartbeat) -> Result<(), Unhandled> {
        let lease = &self.scheduler.config.lease;
        let lifetime = lease.life + lease.grace;
        let most = most_heartbeats(self.opened.elapsed(), lease.heartbeat_interval);
        if heartbeat.sequence > most {
            let detail = format!("heartbeat.sequence: {} when at most {most} can have been sent", heartbeat.sequence);
            let counting = self.db.tx("count a heartbeat from the future", |tx| {
                refusals::count(tx, self.agent, Refusal::FutureHeartbeat, &detail).boxed()
            });
            counting.await?;
            return Err(Status::invalid_argument(detail).into());
        }
        let (session, report) =
            (self.session, HeartbeatReport { machine: machine(&heartbeat), load: said(&heartbeat) });
        let pause = (self.paused != heartbeat.paused).then(|| reason(&heartbeat.paused));
        let renewal = self.db.tx("renew a session", |tx| {
            let pause = pause.as_ref();
            async move {
                let renewed = sessions::renew(tx, session, lifetime, report).await?;
                let changed = match pause {
                    Some(reason) => sessions::pause(tx, session, reason.as_deref()).await?,
                    None => false,
                };
                Ok::<_, store::Error>((renewed, changed))
            }
            .boxed()
        });
        let (renewed, changed) = renewal.await?;
        let Some(renewed) = renewed else { return Err(ended(&self.scheduler, self.session).await?.into()) };
        if changed {
            self.note_pause(&heartbeat.paused);
        }
        self.paused = heartbeat.paused;
        // The contact URL is sent only in the welcome message, so an agent with an outdated URL
        // must reconnect. Reconnecting is cheap, because the agent keeps its leases.
        if renewed.contact_url != self.contact_url {
            return Err(Status::unavailable("the contact URL has changed: register again to learn it").into());
        }
        // The database may have lost outcomes that the agent no longer has. When the agent registers
        // again, the leases that it does not name go to other agents.
        if !self.histories.are_current(renewed.floor) {
            return Err(Status::unavailable("the database lost its newest changes: register again").into());
        }
        Ok(())
    }

    /// When the agent stops taking leases, its waiting tasks go to other agents. When it takes
    /// leases again, it gets new work. Only the start and the end of a pause are logged, because the
    /// reason may change with every heartbeat. For example, the text about a full disk contains the
    /// free space.
    fn note_pause(&self, said: &str) {
        if self.paused.is_empty() == said.is_empty() {
            return;
        }
        match reason(said) {
            Some(reason) => tracing::warn!(agent.name = self.name, reason, "an agent paused"),
            None => tracing::info!(agent.name = self.name, "an agent takes leases again"),
        }
        self.scheduler.wakes.assign.notify_one();
    }
}

/// Why the agent takes no leases; `None` if it takes leases.
fn reason(paused: &str) -> Option<String> {
    Some(clip(paused.to_owned())).filter(|reason| !reason.is_empty())
}

/// Maximum number of heartbeats that an agent can have sent since its session was opened. An agent
/// varies its interval by up to a fifth. The maximum is twice the regular number plus four, which
/// leaves room for this variation and for clock errors.
fn most_heartbeats(elapsed: Duration, interval: Duration) -> u64 {
    let intervals = elapsed.as_nanos() / interval.as_nanos().max(1);
    u64::try_from(intervals).unwrap_or(u64::MAX).saturating_mul(2).saturating_add(4)
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
}
