//! Converts messages of agents to domain values and back.
//!
//! All data that agents send are validated: numbers are clamped to their range, and an invalid
//! field gives an `InvalidArgument` that names the field.

use std::net::{IpAddr, SocketAddr};

use landfall_proto::v1;
use tonic::Status;

use crate::config::LeaseConfig;
use crate::model::{AgentId, LeaseToken, PolicyRequest, Rtt, TaskId, naming};
use crate::status::DiskSpace;
use crate::store::agents::enrolments::RedeemResult;
use crate::store::agents::sessions::{MachineReport, OpenedSession, Registration, SessionTerms};
use crate::store::assignments::loads::ReportedLoad;
use crate::store::leases::Grant;
use crate::store::leases::preemptions::PreemptionOrder;
use crate::strategy::explain;

use crate::grpc::operator::convert::{duration, moment, plain};

pub(in crate::grpc) mod crawls;
mod measurements;
mod outcomes;

pub(in crate::grpc) use crawls::{Released, permit_answer, permit_request, release};
pub(in crate::grpc) use measurements::{measure_order, measurement};
pub(in crate::grpc) use outcomes::{outcome, outcome_ack};

/// Maximum number of slots of one agent; the schema has the same bound.
const MAX_CAPACITY: u32 = 10_000;
/// Maximum number of characters that are stored from an agent's free text.
const MAX_TEXT: usize = 500;

/// An agent's registration. If the agent gives no URL for its beacon, the session's source address
/// is taken as the beacon's address.
pub(in crate::grpc) fn registration(register: v1::Register, peer: Option<IpAddr>) -> Result<Registration, Status> {
    if !(1..=MAX_CAPACITY).contains(&register.capacity) {
        return Err(Status::invalid_argument(format!(
            "capacity: {} is not within 1 to {MAX_CAPACITY}",
            register.capacity
        )));
    }
    let port = u16::try_from(register.beacon_port)
        .map_err(|_| Status::invalid_argument(format!("beacon_port: {} is not a port", register.beacon_port)))?;
    let beacon_url = match (register.beacon_url.is_empty(), port, peer) {
        (false, _, _) => Some(beacon_url(&register.beacon_url)?),
        (true, 0, _) | (true, _, None) => None,
        (true, port, Some(peer)) => Some(format!("http://{}/", SocketAddr::new(peer.to_canonical(), port))),
    };
    Ok(Registration {
        city: clip(register.city),
        carrier: clip(register.carrier),
        country: clip(register.country),
        capacity: register.capacity,
        version: clip(register.version),
        beacon_url,
        address: peer,
        yields: register.yields,
        process: Some(register.process).filter(|process| *process != 0),
        held: register.held.iter().map(|held| lease_key(held.task_id, held.token)).collect(),
    })
}

fn beacon_url(text: &str) -> Result<String, Status> {
    let url = url::Url::parse(text).map_err(|error| Status::invalid_argument(format!("beacon_url: {error}")))?;
    if url.scheme() != "http" || url.host_str().is_none() {
        return Err(Status::invalid_argument("beacon_url: must be an http URL with a host"));
    }
    Ok(url.into())
}

pub(in crate::grpc) fn lease_key(task: i64, token: i64) -> (TaskId, LeaseToken) {
    (TaskId::new(task), LeaseToken::new(token))
}

/// The load that a heartbeat reports; `None` if the heartbeat lacks the field `free_slots`.
pub(in crate::grpc) fn said(heartbeat: &v1::Heartbeat) -> Option<ReportedLoad> {
    let v1::Heartbeat { active_crawls: crawls, free_slots, outcomes_waiting, .. } = *heartbeat;
    Some(ReportedLoad { free_slots: free_slots?.min(MAX_CAPACITY), crawls: crawls.min(MAX_CAPACITY), outcomes_waiting })
}

/// The facts that a heartbeat reports about the agent's machine.
pub(in crate::grpc) fn machine(heartbeat: &v1::Heartbeat) -> MachineReport {
    let disk = heartbeat.disk_free_bytes.zip(heartbeat.disk_size_bytes);
    MachineReport {
        sent_at: heartbeat.sent_at.and_then(moment),
        disk: disk.map(|(free, size)| DiskSpace { free, size }),
    }
}

/// The time limits and other limits that this configuration sets for a session.
pub(in crate::grpc) fn terms(lease: &LeaseConfig) -> SessionTerms {
    let LeaseConfig { life, grace, max_supersessions, max_crashes, .. } = *lease;
    SessionTerms { lifetime: life + grace, max_supersessions, max_crashes }
}

pub(in crate::grpc) fn welcome(
    agent: AgentId,
    opened: &OpenedSession,
    lease: &LeaseConfig,
    contact_url: Option<String>,
    others: Vec<String>,
) -> v1::SessionResponse {
    respond(v1::session_response::Message::Welcome(v1::Welcome {
        agent_id: agent.get(),
        incarnation: opened.incarnation.get(),
        heartbeat_interval: Some(duration(lease.heartbeat_interval)),
        lease_life: Some(duration(lease.life)),
        kept: opened
            .kept
            .iter()
            .map(|(task, token)| v1::HeldLease { task_id: task.get(), token: token.get() })
            .collect(),
        contact_url: contact_url.unwrap_or_default(),
        other_scheduler_urls: others,
    }))
}

pub(in crate::grpc) fn heartbeat_ack(sequence: u64) -> v1::SessionResponse {
    respond(v1::session_response::Message::Heartbeat(v1::HeartbeatAck { sequence }))
}

pub(in crate::grpc) fn cancel_order(task: TaskId, token: LeaseToken) -> v1::SessionResponse {
    respond(v1::session_response::Message::Cancel(v1::CancelOrder { task_id: task.get(), token: token.get() }))
}

pub(in crate::grpc) fn preempt_order(preempt: &PreemptionOrder) -> v1::SessionResponse {
    respond(v1::session_response::Message::Preempt(v1::PreemptOrder {
        task_id: preempt.task.get(),
        token: preempt.token.get(),
        reason: explain::ends_sooner(&preempt.to, preempt.there, preempt.here),
    }))
}

/// The crawl order for a granted lease. `checkpoint` is the crawl's progress, or empty if the crawl
/// has not begun. `last_pages` is the number of pages in the site's last crawl.
pub(in crate::grpc) fn crawl_order(grant: Grant, checkpoint: Vec<u8>, last_pages: Option<u32>) -> v1::SessionResponse {
    respond(v1::session_response::Message::Crawl(v1::CrawlOrder {
        task_id: grant.task.get(),
        token: grant.token.get(),
        site: Some(v1::SiteTarget {
            site_id: grant.site.get(),
            name: grant.name,
            origin: grant.origin.unwrap_or_default(),
        }),
        // Agents do not need the recrawl interval.
        policy: Some(PolicyRequest { recrawl_interval: None, ..grant.policy.into() }.into()),
        checkpoint,
        last_pages,
    }))
}

pub(in crate::grpc) fn enrolled(redeemed: RedeemResult) -> v1::EnrolResponse {
    v1::EnrolResponse {
        agent_id: redeemed.agent.get(),
        credential: redeemed.credential,
        name: redeemed.name,
        city: redeemed.city,
        carrier: redeemed.carrier,
        country: redeemed.country,
    }
}

fn respond(message: v1::session_response::Message) -> v1::SessionResponse {
    v1::SessionResponse { message: Some(message) }
}

fn rtt(value: Option<prost_types::Duration>) -> Option<Rtt> {
    plain(value).and_then(|duration| Rtt::try_new(duration).ok())
}

/// Makes an agent's text printable, and truncates it to the stored length.
pub(in crate::grpc) fn clip(mut text: String) -> String {
    text.retain(naming::is_shown);
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT) {
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register() -> v1::Register {
        v1::Register { name: "a".into(), capacity: 4, beacon_port: 7180, ..v1::Register::default() }
    }

    #[test]
    fn the_beacon_is_where_the_session_comes_from_unless_said_otherwise() {
        let peer = "192.0.2.7".parse().ok();
        let formed = registration(register(), peer).expect("valid").beacon_url;
        assert_eq!(formed.as_deref(), Some("http://192.0.2.7:7180/"));
        let named = v1::Register { beacon_url: "http://b.example:1/".into(), ..register() };
        assert_eq!(registration(named, peer).expect("valid").beacon_url.as_deref(), Some("http://b.example:1/"));
        let none = v1::Register { beacon_port: 0, ..register() };
        assert_eq!(registration(none, peer).expect("valid").beacon_url, None);
    }

    #[test]
    fn nonsense_in_a_registration_is_named() {
        for (broken, field) in [
            (v1::Register { capacity: 0, ..register() }, "capacity"),
            (v1::Register { beacon_port: 70_000, ..register() }, "beacon_port"),
            (v1::Register { beacon_url: "ftp://x".into(), ..register() }, "beacon_url"),
        ] {
            let status = registration(broken, None).expect_err("refused");
            assert!(status.message().starts_with(field), "{status}");
        }
    }

    #[test]
    fn a_time_that_postgres_does_not_store_is_refused_or_unknown() {
        let times = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let before_all = times(-8_000_000_000_000);
        let report = v1::OutcomeReport {
            kind: v1::OutcomeKind::Complete.into(),
            started_at: before_all,
            duration: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
            ..v1::OutcomeReport::default()
        };
        let refused = outcome(report.clone()).expect_err("refused");
        assert_eq!(refused.message(), "started_at: missing or out of range");
        assert!(outcome(v1::OutcomeReport { started_at: times(0), ..report }).is_ok());
        let beat = |sent_at| machine(&v1::Heartbeat { sent_at, ..v1::Heartbeat::default() }).sent_at;
        assert!(beat(before_all).is_none() && beat(times(i64::MAX)).is_none() && beat(times(0)).is_some());
    }

    #[test]
    fn text_from_agents_is_bounded_and_printable() {
        assert_eq!(clip("a\u{1b}[31mb\n".into()), "a[31mb");
        assert_eq!(clip("é".repeat(2 * MAX_TEXT)).chars().count(), MAX_TEXT);
    }
}
