//! The messages of agents, validated: numbers are clamped to their range, and an invalid field gives
//! an `InvalidArgument` that names the field.

use std::time::Duration;

use landfall_proto::v1;
use landfall_proto::v1::session_request::Message;
use tonic::Status;

use super::fields::{LONGEST_PAUSE, clip, lease_key, rtt};
use crate::grpc::operator::convert::{moment, plain};
use crate::model::site_name::SiteName;
use crate::model::{
    AgentId, Blocker, Budget, CrawlEnding, LeaseToken, MAX_HOSTS, OrderId, ReasonKind, SessionId, TaskId,
};
use crate::store::leases::checkpoints::{self, Checkpoint, RateState};
use crate::store::leases::outcomes::OutcomeReport;
use crate::store::measurements::results_and_failures::Failure;
use crate::store::measurements::{Measured, MeasurementReport, ReportContent};
use crate::store::schema::histories::Histories;
use crate::store::sites::addresses::PermitRequest;

/// A validated message of an agent.
#[derive(Debug)]
pub(super) enum Work {
    Outcome(Outcome),
    Measurement(MeasurementAnswer),
    Release(Released),
    Checkpoint(Checkpoint),
    Permit(v1::PermitRequest, PermitRequest),
    /// The outcome of a lease of a history that the database has lost.
    LostOutcome(v1::HeldLease),
    /// Another message about such a lease.
    Lost(v1::HeldLease),
    /// The agent is stopping.
    Leave,
}

/// Validates a message that is no heartbeat. A message about a lost lease is not validated further,
/// because another lease may have the same numbers in the database's present history.
pub(super) fn work(
    message: Message,
    agent: AgentId,
    session: SessionId,
    histories: &Histories,
) -> Result<Work, Status> {
    if let Some(lease) = lease(&message)
        && !histories.contain(LeaseToken::new(lease.token), lease.history)
    {
        let is_outcome = matches!(message, Message::Outcome(_));
        return Ok(if is_outcome { Work::LostOutcome(lease) } else { Work::Lost(lease) });
    }
    Ok(match message {
        Message::Measurement(report) => Work::Measurement(measurement(report)?),
        Message::Outcome(report) => Work::Outcome(outcome(report)?),
        Message::Release(release) => Work::Release(released_by(release)),
        Message::Checkpoint(checkpoint) => Work::Checkpoint(checkpoint_of(checkpoint)?),
        Message::Permit(asked) => {
            let request = permit_request(&asked, agent, session)?;
            Work::Permit(asked, request)
        }
        Message::Leave(_) => Work::Leave,
        Message::Register(_) | Message::Heartbeat(_) => {
            return Err(Status::invalid_argument("`register` comes once, as the first message"));
        }
    })
}

/// The lease about which a message is; `None` if the message is about no lease.
const fn lease(message: &Message) -> Option<v1::HeldLease> {
    let (task_id, token, history) = match message {
        Message::Outcome(report) => (report.task_id, report.token, report.history),
        Message::Release(release) => (release.task_id, release.token, release.history),
        Message::Checkpoint(checkpoint) => (checkpoint.task_id, checkpoint.token, checkpoint.history),
        Message::Permit(asked) => (asked.task_id, asked.token, asked.history),
        Message::Register(_) | Message::Heartbeat(_) | Message::Measurement(_) | Message::Leave(_) => return None,
    };
    Some(v1::HeldLease { task_id, token, history })
}

/// A validated outcome.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) report: OutcomeReport,
    /// The origin at which the agent found the site.
    pub(super) origin: Option<String>,
    /// The history that the agent named, which the answer repeats.
    pub(super) history: i64,
}

fn outcome(report: v1::OutcomeReport) -> Result<Outcome, Status> {
    let (task, token) = lease_key(report.task_id, report.token);
    let history = report.history;
    let ending = ending(&report)?;
    let started_at = report
        .started_at
        .and_then(moment)
        .ok_or_else(|| Status::invalid_argument("started_at: missing or out of range"))?;
    let duration = plain(report.duration).ok_or_else(|| Status::invalid_argument("duration: missing or negative"))?;
    let report_rtt = rtt(report.rtt);
    let origin = Some(clip(report.origin)).filter(|origin| !origin.is_empty());
    let report = OutcomeReport {
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
    Ok(Outcome { report, origin, history })
}

/// The names of other sites that a crawl found. The names come from pages, so invalid names are
/// omitted, and the outcome is still accepted.
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

/// A parsed message with which an agent returns a lease.
#[derive(Debug)]
pub(super) struct Released {
    pub(super) task: TaskId,
    pub(super) token: LeaseToken,
    /// The error with which the crawl crashed, if it crashed.
    pub(super) crash: Option<String>,
    /// The pause that the site requested; always `None` after a crash.
    pub(super) pause: Option<Duration>,
}

fn released_by(release: v1::LeaseRelease) -> Released {
    let (task, token) = lease_key(release.task_id, release.token);
    let crash = Some(clip(release.crash)).filter(|crash| !crash.is_empty());
    let pause = plain(release.not_before).filter(|_| crash.is_none()).map(|pause| pause.min(LONGEST_PAUSE));
    Released { task, token, crash, pause }
}

fn checkpoint_of(checkpoint: v1::CrawlCheckpoint) -> Result<Checkpoint, Status> {
    let v1::CrawlCheckpoint { task_id, token, pages, state, rate_state, .. } = checkpoint;
    if state.len() > checkpoints::MOST_BYTES {
        let most = checkpoints::MOST_BYTES;
        return Err(Status::invalid_argument(format!("state: {} bytes when at most {most} are kept", state.len())));
    }
    let (task, token) = lease_key(task_id, token);
    let rate_state = rate_state.unwrap_or_default();
    let rate_state = RateState {
        interval: plain(rate_state.interval).map(|interval| interval.min(LONGEST_PAUSE)),
        pause: plain(rate_state.pause).map(|pause| pause.min(LONGEST_PAUSE)),
        turned_away: rate_state.turned_away,
        failed_in_a_row: rate_state.failed_in_a_row,
        recent_requests: rate_state.recent_requests,
        recent_errors: rate_state.recent_errors,
        last_error: clip(rate_state.last_error),
    };
    Ok(Checkpoint { task, token, pages, state, rate_state })
}

fn permit_request(asked: &v1::PermitRequest, agent: AgentId, session: SessionId) -> Result<PermitRequest, Status> {
    let (task, token) = lease_key(asked.task_id, asked.token);
    let address = asked.address.parse().map_err(|_| {
        Status::invalid_argument(format!("address: '{}' is not an IP address", clip(asked.address.clone())))
    })?;
    Ok(PermitRequest { agent, session, task, token, address })
}

/// Maximum age of a measurement that a prober reuses for another site.
const OLDEST_SHARED: Duration = Duration::from_secs(24 * 3600);

/// A parsed measurement report.
#[derive(Debug)]
pub(super) struct MeasurementAnswer {
    pub(super) order: OrderId,
    pub(super) report: MeasurementReport,
}

fn measurement(report: v1::MeasurementReport) -> Result<MeasurementAnswer, Status> {
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
        report: MeasurementReport {
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(outcome(named).expect("valid").report.ending, CrawlEnding::Truncated(Budget::Bytes));
    }

    #[test]
    fn a_start_that_postgres_does_not_store_is_refused() {
        let times = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let report = v1::OutcomeReport {
            kind: v1::OutcomeKind::Complete.into(),
            started_at: times(-8_000_000_000_000),
            duration: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
            ..v1::OutcomeReport::default()
        };
        let refused = outcome(report.clone()).expect_err("refused");
        assert_eq!(refused.message(), "started_at: missing or out of range");
        assert!(outcome(v1::OutcomeReport { started_at: times(0), ..report }).is_ok());
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
}
