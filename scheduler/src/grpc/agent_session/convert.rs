//! Converts messages of agents to domain values and back.
//!
//! All data that agents send are validated: numbers are clamped to their range, and an invalid
//! field gives an `InvalidArgument` that names the field.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use landfall_proto::v1;
use tonic::Status;

use crate::config::{ConfirmConfig, LeaseConfig, MeasureConfig};
use crate::model::site_name::SiteName;
use crate::model::{AgentId, LeaseToken, MAX_HOSTS, OrderId, PolicyRequest, ReasonKind, Rtt, TaskId, naming};
use crate::status::DiskSpace;
use crate::store::agents::enrolments::RedeemResult;
use crate::store::agents::refusals::Refusal;
use crate::store::agents::sessions::{MachineReport, OpenedSession, Registration, SessionTerms};
use crate::store::assignments::loads::ReportedLoad;
use crate::store::leases::Grant;
use crate::store::leases::outcomes::{self, Blocker, Budget, CrawlEnding, OutcomeAnswer};
use crate::store::leases::preemptions::PreemptionOrder;
use crate::store::measurements::failures::Failure;
use crate::store::measurements::orders::{Order, OrderTarget};
use crate::store::measurements::{Measured, Report, ReportContent};
use crate::strategy::explain;

use crate::grpc::operator::convert::{duration, moment, plain};

mod crawls;

pub(in crate::grpc) use crawls::{Released, checkpoint, permit_answer, permit_request, release};

/// Maximum number of slots of one agent; the schema has the same bound.
const MAX_CAPACITY: u32 = 10_000;
/// Maximum age of a measurement that a prober reuses for another site.
const OLDEST_SHARED: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of characters stored of an agent's free text.
const MAX_TEXT: usize = 500;

/// A parsed measurement report.
#[derive(Debug)]
pub(in crate::grpc) struct MeasurementAnswer {
    pub(in crate::grpc) order: OrderId,
    pub(in crate::grpc) report: Report,
}

/// An agent's registration. If the agent gives no URL of its beacon, the beacon's address is the
/// session's source address.
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

/// The time limits and other limits of a session in this configuration.
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

pub(in crate::grpc) fn measure_order(
    order: Order,
    config: &MeasureConfig,
    confirm: &ConfirmConfig,
) -> v1::SessionResponse {
    let common = v1::MeasureOrder {
        order_id: order.id.get(),
        timeout: Some(duration(config.sample_timeout)),
        metric: v1::DistanceMetric::from(config.metric).into(),
        ..v1::MeasureOrder::default()
    };
    let order = match order.target {
        OrderTarget::Site { id, name, origin, locked, may_share } => v1::MeasureOrder {
            target: Some(v1::measure_order::Target::Site(v1::SiteTarget {
                site_id: id.get(),
                name,
                origin: origin.unwrap_or_default(),
            })),
            samples: if order.confirming { confirm.samples } else { config.site_samples },
            interval: Some(duration(config.site_interval)),
            least_samples: Some(config.site_least_samples),
            share_max_age: (may_share && !config.share_max_age.is_zero()).then(|| duration(config.share_max_age)),
            resolve_only: locked.is_none(),
            address: locked.map(|address| address.to_string()).unwrap_or_default(),
            ..common
        },
        OrderTarget::Beacon { agent, url } => v1::MeasureOrder {
            target: Some(v1::measure_order::Target::Beacon(v1::BeaconTarget { agent_id: agent.get(), url })),
            samples: config.mesh_samples,
            interval: Some(duration(config.mesh_interval)),
            ..common
        },
    };
    respond(v1::session_response::Message::Measure(order))
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

pub(in crate::grpc) fn measurement(report: v1::MeasurementReport) -> Result<MeasurementAnswer, Status> {
    use v1::measurement_report::Result as Reported;
    let finding = match report.result {
        None => return Err(Status::invalid_argument("result: missing")),
        Some(Reported::Postponed(v1::Postponed {})) => ReportContent::Postponed,
        Some(Reported::Failure(said)) => ReportContent::Measured { result: Err(failure(said)), agreed: None },
        Some(Reported::Measurement(measurement)) => match (measured(&measurement), report.shared_from) {
            // An implausible round trip is stored as a failed measurement; it does not end the
            // session.
            (Err(field), _) => {
                let failure = Failure::from(format!("the prober's report: {field}").as_str());
                ReportContent::Measured { result: Err(failure), agreed: None }
            }
            (Ok(measured), from) if from.is_empty() => {
                ReportContent::Measured { result: Ok(measured), agreed: report.agreed }
            }
            (Ok(measured), from) => {
                let age = plain(report.age).unwrap_or_default().min(OLDEST_SHARED);
                ReportContent::Shared { measured, from: clip(from), age }
            }
        },
    };
    Ok(MeasurementAnswer {
        order: OrderId::new(report.order_id),
        report: Report {
            finding,
            origin: Some(clip(report.origin)).filter(|origin| !origin.is_empty()),
            address: report.address.parse().ok(),
            requests: report.requests,
        },
    })
}

/// Converts a measurement. An error names the invalid field.
fn measured(measurement: &v1::Measurement) -> Result<Measured, String> {
    let trip = |field: &str, value: Option<prost_types::Duration>| {
        let Some(given) = value else { return Err(format!("{field}: missing")) };
        rtt(value).ok_or_else(|| {
            format!("{field}: {} s and {} ns is not above 0 and at most 10 minutes", given.seconds, given.nanos)
        })
    };
    Ok(Measured {
        rtt: trip("rtt", measurement.rtt)?,
        min: trip("min", measurement.min)?,
        median: trip("median", measurement.median)?,
        spread: plain(measurement.spread).ok_or("spread: missing or negative")?,
        answered: measurement.count,
        lost: measurement.lost,
    })
}

fn failure(failure: v1::MeasurementFailure) -> Failure {
    Failure { cause: failure.reason().into(), said: clip(failure.message) }
}

pub(in crate::grpc) fn outcome(report: v1::OutcomeReport) -> Result<(outcomes::Report, Option<String>), Status> {
    let (task, token) = lease_key(report.task_id, report.token);
    let ending = ending(&report)?;
    let started_at = report
        .started_at
        .and_then(moment)
        .ok_or_else(|| Status::invalid_argument("started_at: missing or out of range"))?;
    let duration = plain(report.duration).ok_or_else(|| Status::invalid_argument("duration: missing or negative"))?;
    let report_rtt = rtt(report.rtt);
    let origin = Some(clip(report.origin)).filter(|origin| !origin.is_empty());
    let report = outcomes::Report {
        task,
        token,
        ending,
        pages: report.pages,
        bytes: report.bytes,
        errors: report.errors,
        started_at,
        duration,
        rtt: report_rtt,
        message: clip(report.message),
        refetched: report.refetched,
        trapped: report.trapped,
        hosts: hosts(&report.hosts),
    };
    Ok((report, origin))
}

/// The names of other sites that a crawl found. They come from pages, so invalid names are omitted
/// instead of refusing the outcome.
fn hosts(found: &[String]) -> Vec<SiteName> {
    let names = found.iter().take(MAX_HOSTS.try_into().unwrap_or(usize::MAX));
    names.filter_map(|name| name.parse().ok()).collect()
}

fn ending(report: &v1::OutcomeReport) -> Result<CrawlEnding, Status> {
    match report.kind() {
        v1::OutcomeKind::Complete => Ok(CrawlEnding::Complete),
        v1::OutcomeKind::Blocked => Ok(CrawlEnding::Blocked(Blocker::try_from(report.blocked_by()).ok())),
        v1::OutcomeKind::Unreachable => Ok(CrawlEnding::Unreachable(trouble(report.trouble()))),
        v1::OutcomeKind::Truncated => Budget::try_from(report.budget())
            .map(CrawlEnding::Truncated)
            .map_err(|_| Status::invalid_argument("budget: missing in a truncated outcome")),
        v1::OutcomeKind::Unspecified => Err(Status::invalid_argument("kind: missing or unknown")),
    }
}

/// Why a site is unreachable, if the agent knows the reason.
const fn trouble(trouble: v1::Trouble) -> Option<ReasonKind> {
    match trouble {
        v1::Trouble::Unspecified => None,
        v1::Trouble::NameNotFound => Some(ReasonKind::NameNotFound),
        v1::Trouble::ConnectionRefused => Some(ReasonKind::ConnectionRefused),
        v1::Trouble::NoConnection => Some(ReasonKind::NoConnection),
        v1::Trouble::TimedOut => Some(ReasonKind::TimedOut),
        v1::Trouble::Tls => Some(ReasonKind::Tls),
        v1::Trouble::Redirect => Some(ReasonKind::Redirect),
        v1::Trouble::Status4xx => Some(ReasonKind::Status4xx),
        v1::Trouble::Status5xx => Some(ReasonKind::Status5xx),
        v1::Trouble::BrokenAnswer => Some(ReasonKind::BrokenAnswer),
    }
}

pub(in crate::grpc) fn outcome_ack(task: TaskId, token: LeaseToken, said: OutcomeAnswer) -> v1::SessionResponse {
    let answer = match said {
        OutcomeAnswer::Accepted { .. } => v1::outcome_ack::Answer::Accepted,
        // The first outcome stays stored. A contradicting outcome also gets the answer
        // `Duplicate`, so that the agent does not send this outcome again.
        OutcomeAnswer::Duplicate | OutcomeAnswer::Refused(Refusal::Contradiction) => v1::outcome_ack::Answer::Duplicate,
        OutcomeAnswer::Refused(_) => v1::outcome_ack::Answer::Stale,
    };
    let reason = if let OutcomeAnswer::Refused(refusal) = said { refusal.to_string() } else { String::new() };
    respond(v1::session_response::Message::Outcome(v1::OutcomeAck {
        task_id: task.get(),
        token: token.get(),
        answer: answer.into(),
        reason,
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
    fn an_unbelievable_round_trip_is_a_failure_that_names_the_field() {
        let seconds = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
        let honest = v1::Measurement {
            rtt: seconds(0, 1_000),
            min: seconds(0, 1_000),
            median: seconds(0, 1_000),
            spread: seconds(0, 0),
            count: 5,
            ..v1::Measurement::default()
        };
        let result = |reported: v1::Measurement| {
            let result = Some(v1::measurement_report::Result::Measurement(reported));
            let report = v1::MeasurementReport { order_id: 1, result, ..v1::MeasurementReport::default() };
            match measurement(report).expect("understood").report.finding {
                ReportContent::Measured { result, .. } => result,
                other => panic!("neither measured nor failed: {other:?}"),
            }
        };
        assert!(result(honest).is_ok());
        for (broken, said) in [
            (v1::Measurement { rtt: seconds(0, 0), ..honest }, "rtt: 0 s and 0 ns is not above 0"),
            (v1::Measurement { rtt: seconds(-1, 0), ..honest }, "rtt: -1 s and 0 ns is not above 0"),
            (v1::Measurement { rtt: seconds(601, 0), ..honest }, "rtt: 601 s and 0 ns is not above 0"),
            (v1::Measurement { rtt: None, ..honest }, "rtt: missing"),
            (v1::Measurement { min: seconds(0, -1), ..honest }, "min: 0 s and -1 ns is not above 0"),
            (v1::Measurement { median: seconds(0, 0), ..honest }, "median: 0 s and 0 ns is not above 0"),
            (v1::Measurement { spread: seconds(0, -5), ..honest }, "spread: missing or negative"),
        ] {
            let failure = result(broken).expect_err("refused");
            assert!(failure.to_string().starts_with(&format!("the prober's report: {said}")), "{failure}");
        }
    }

    #[test]
    fn a_truncated_outcome_must_say_which_budget() {
        let report = v1::OutcomeReport {
            kind: v1::OutcomeKind::Truncated.into(),
            started_at: Some(prost_types::Timestamp { seconds: 1, nanos: 0 }),
            duration: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
            ..v1::OutcomeReport::default()
        };
        assert!(outcome(report.clone()).is_err());
        let named = v1::OutcomeReport { budget: v1::Budget::Bytes.into(), ..report };
        assert_eq!(outcome(named).expect("valid").0.ending, CrawlEnding::Truncated(Budget::Bytes));
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
