//! A session records all outcomes that have arrived on its stream in one transaction, and
//! acknowledges each outcome after the commit. Afterwards the session sends the leases that the
//! same transaction granted.

use futures_util::FutureExt as _;
use landfall_proto::v1;
use tonic::Status;

use super::group_commit::{self, FILLED_AT_ONCE, OutcomeBatch, RecordedOutcome};
use super::session::{Session, clip, lease_key, respond, rtt};
use crate::grpc::operator::convert::{moment, plain};
use crate::model::site_name::SiteName;
use crate::model::{Blocker, Budget, CrawlEnding, LeaseToken, MAX_HOSTS, ReasonKind, SiteId, TaskId};
use crate::store::agents::refusals::Refusal;
use crate::store::leases::outcomes::{OutcomeAnswer, OutcomeReport};
use crate::store::leases::{FreeSlots, Grant};
use crate::store::sites::names_and_origins;

impl Session {
    pub(super) async fn record_outcomes(&mut self, reports: Vec<v1::OutcomeReport>) -> Result<(), Status> {
        let mut converted = Vec::with_capacity(reports.len());
        let mut wrong = None;
        for report in reports {
            match outcome(report) {
                Ok(report) => converted.push(report),
                // The outcomes before the error are still recorded.
                Err(status) => {
                    wrong = Some(status);
                    break;
                }
            }
        }
        let keys: Vec<_> = converted.iter().map(|(report, _)| (report.task, report.token)).collect();
        // An invalid outcome ends the session, which then gets no more leases.
        let free = if wrong.is_none() { self.fillable() } else { None };
        let recording = OutcomeBatch { agent: self.agent, reports: converted, free };
        let RecordedOutcome { answers, origins, grants, slots } =
            self.recordings.ask(&self.scheduler.pool, recording).await?;
        self.settle(&origins).await;
        self.free = self.free.saturating_add(group_commit::freed(&answers));
        self.scheduler.wakes.crawls.notify_one();
        if answers.iter().any(|answer| matches!(answer, OutcomeAnswer::Accepted { waited_for: true, .. })) {
            // Tasks on hold wait for the address of an ended crawl. The assignment job is woken at
            // once, because the address stays idle until another crawl begins there.
            self.scheduler.wakes.assign.notify_one();
        }
        for ((task, token), answer) in keys.into_iter().zip(answers) {
            self.send(outcome_ack(task, token, answer)).await?;
        }
        self.filled(grants, slots).await?;
        wrong.map_or(Ok(()), Err)
    }

    /// Stores the origins at which crawls found their sites. The outcomes are recorded already. If
    /// this fails, the next measurement or crawl of the site reports its origin again.
    async fn settle(&self, origins: &[(SiteId, String)]) {
        for (site, origin) in origins {
            let settling =
                self.scheduler.db.tx("settle a site", |tx| names_and_origins::settle(tx, *site, origin).boxed());
            if let Err(error) = settling.await {
                tracing::warn!(site.id = %site, error = &error as &dyn std::error::Error, "an origin was not stored");
            }
        }
    }

    /// The free slots to fill in the transaction that records outcomes; `None` if no lease can be
    /// granted.
    fn fillable(&self) -> Option<FreeSlots> {
        (self.waits && self.may_grant()).then_some(FreeSlots {
            agent: self.agent,
            session: self.session,
            slots: self.free,
        })
    }

    /// Sends the leases of a transaction that was allowed to fill at most `slots` free slots.
    async fn filled(&mut self, grants: Vec<Grant>, slots: i64) -> Result<(), Status> {
        if slots > 0 {
            let granted = i64::try_from(grants.len()).unwrap_or(i64::MAX);
            self.waits = granted >= slots;
            if granted == FILLED_AT_ONCE {
                self.wake.notify_one();
            }
        }
        self.send_orders(grants).await
    }
}

fn outcome(report: v1::OutcomeReport) -> Result<(OutcomeReport, Option<String>), Status> {
    let (task, token) = lease_key(report.task_id, report.token);
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
    Ok((report, origin))
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

fn outcome_ack(task: TaskId, token: LeaseToken, said: OutcomeAnswer) -> v1::SessionResponse {
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
        assert_eq!(outcome(named).expect("valid").0.ending, CrawlEnding::Truncated(Budget::Bytes));
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
}
