//! A session records all outcomes that have arrived on its stream in one transaction, and
//! acknowledges each outcome after the commit. Afterwards the session sends the leases that the
//! same transaction granted.

use futures_util::FutureExt as _;
use landfall_proto::v1;
use landfall_proto::v1::session_request::Message;
use tokio_stream::StreamExt as _;
use tonic::{Status, Streaming};

use super::convert;
use super::outcome_commits::{self, FILLED_AT_ONCE, HOSTS_PER_ROW, OutcomeBatch, RecordedOutcome};
use super::session::Session;
use crate::store::leases::outcomes::OutcomeAnswer;
use crate::store::leases::{FreeSlots, Grant};

/// Maximum number of outcomes from one stream that are recorded at once. The maximum is high enough
/// to share the cost of the commit, and low enough for a transaction that takes only tens of
/// milliseconds.
const MOST_AT_ONCE: usize = 512;

/// Adds the outcomes that have already arrived to `reports`, beginning with `request`. Returns the
/// next message if it is of another kind, or the error that broke the stream.
pub(super) fn gather(
    request: v1::SessionRequest,
    inbound: &mut Streaming<v1::SessionRequest>,
    reports: &mut Vec<v1::OutcomeReport>,
) -> Option<Result<v1::SessionRequest, Status>> {
    let (mut next, mut rows) = (Some(Ok(request)), 0);
    loop {
        match next {
            Some(Ok(v1::SessionRequest { message: Some(Message::Outcome(report)) })) => {
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

impl Session {
    pub(super) async fn record_outcomes(&mut self, reports: Vec<v1::OutcomeReport>) -> Result<(), Status> {
        let mut converted = Vec::with_capacity(reports.len());
        let mut wrong = None;
        for report in reports {
            match convert::outcome(report) {
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
        let RecordedOutcome { answers, grants, slots } = self.recordings.ask(&self.scheduler.pool, recording).await?;
        self.free = self.free.saturating_add(outcome_commits::freed(&answers));
        self.scheduler.wakes.crawls.notify_one();
        if answers.iter().any(|answer| matches!(answer, OutcomeAnswer::Accepted { waited_for: true, .. })) {
            // Tasks on hold wait for the address of an ended crawl. The assignment job is woken at
            // once, because the address stays idle until another crawl begins there.
            self.scheduler.wakes.assign.notify_one();
        }
        for ((task, token), answer) in keys.into_iter().zip(answers) {
            self.send(convert::outcome_ack(task, token, answer)).await?;
        }
        self.filled(grants, slots).await?;
        wrong.map_or(Ok(()), Err)
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
