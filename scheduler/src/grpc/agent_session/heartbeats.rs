//! Handles an agent's heartbeats: renews the session and its leases, and records whether the agent
//! takes leases.

use std::time::Duration;

use landfall_proto::v1;
use tonic::Status;

use super::message_fields::{clip, respond};
use super::registration::MAX_CAPACITY;
use super::session_state::Session;
use crate::grpc::operator::convert::moment;
use crate::status::DiskSpace;
use crate::store;
use crate::store::agents::refusals::{self, Refusal};
use crate::store::agents::sessions::{self, MachineReport};
use crate::store::assignments::loads::ReportedLoad;

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
        store::assignments::loads::record(&mut conn, self.session, said(&heartbeat)).await?;
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
