//! A session records all outcomes that have arrived on its stream in one transaction, and
//! acknowledges each outcome after the commit. Afterwards the session sends the leases that the
//! same transaction granted.

use std::sync::Arc;

use futures_util::FutureExt as _;
use landfall_proto::v1;
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::fields::respond;
use super::group_commit::{self, FILLED_AT_ONCE, OutcomeBatch, RecordedOutcome};
use super::inbox::Queued;
use super::patience::Unhandled;
use super::received::{Outcome, Work};
use super::session::Session;
use crate::model::SiteId;
use crate::store::agents::refusals::{self, Refusal};
use crate::store::leases::outcomes::OutcomeAnswer;
use crate::store::leases::{FreeSlots, Grant};
use crate::store::sites::names_and_origins;

impl Session {
    /// Records outcomes in one transaction. An outcome whose task is locked is parked.
    pub(super) async fn record_outcomes(
        &mut self,
        reports: Vec<Outcome>,
        rooms: Vec<OwnedSemaphorePermit>,
    ) -> Result<(), Status> {
        let reports: Arc<[Outcome]> = reports.into();
        let batch = OutcomeBatch { agent: self.agent, reports: Arc::clone(&reports), free: self.fillable() };
        let RecordedOutcome { answers, origins, grants, slots } = match self.recordings.ask(&self.db, batch).await {
            Ok(recorded) => recorded,
            Err(Unhandled::Later) => {
                let all = reports.iter().zip(rooms);
                self.parked.extend(all.map(|(outcome, room)| Queued { work: Work::Outcome(outcome.clone()), room }));
                return Ok(());
            }
            Err(Unhandled::Ends(status)) => return Err(status),
        };
        self.settle(&origins).await;
        self.note(&answers);
        for ((outcome, answer), room) in reports.iter().zip(answers).zip(rooms) {
            match outcome_ack(&key(outcome), answer) {
                Some(ack) => self.send(ack).await?,
                None => self.parked.push_back(Queued { work: Work::Outcome(outcome.clone()), room }),
            }
        }
        self.filled(grants, slots).await
    }

    /// Records an outcome in its own transaction, which grants no leases.
    pub(super) async fn record_alone(&mut self, outcome: &Outcome) -> Result<(), Unhandled> {
        let alone = OutcomeBatch { agent: self.agent, reports: [outcome.clone()].into(), free: None };
        let RecordedOutcome { answers, origins, .. } = group_commit::alone(&self.db, &alone).await?;
        self.settle(&origins).await;
        self.note(&answers);
        let ack = answers.into_iter().find_map(|answer| outcome_ack(&key(outcome), answer)).ok_or(Unhandled::Later)?;
        Ok(self.send(ack).await?)
    }

    /// Counts the freed slots, and wakes the jobs that use recorded outcomes.
    fn note(&mut self, answers: &[OutcomeAnswer]) {
        self.free = self.free.saturating_add(group_commit::freed(answers));
        self.scheduler.wakes.crawls.notify_one();
        if answers.iter().any(|answer| matches!(answer, OutcomeAnswer::Accepted { waited_for: true, .. })) {
            // Tasks on hold wait for the address of an ended crawl. The assignment job is woken at
            // once, because the address stays idle until another crawl begins there.
            self.scheduler.wakes.assign.notify_one();
        }
    }

    /// Stores the origins at which crawls found their sites. The outcomes are recorded already. If
    /// this fails, the next measurement or crawl of the site reports its origin again.
    async fn settle(&self, origins: &[(SiteId, String)]) {
        for (site, origin) in origins {
            let settling = self.db.tx("settle a site", |tx| names_and_origins::settle(tx, *site, origin).boxed());
            if let Err(error) = settling.await {
                tracing::warn!(site.id = %site, error = &error as &dyn std::error::Error, "an origin was not stored");
            }
        }
    }

    /// Refuses an outcome that names another history than its lease can have. Another task may have
    /// the same number in this history, so nothing is read from the store.
    pub(super) async fn refuse_lost(&self, key: &v1::HeldLease) -> Result<(), Unhandled> {
        let refusal = Refusal::LostHistory;
        let v1::HeldLease { task_id, token, history } = key;
        let (agent, detail) = (self.agent, format!("task {task_id}, token {token}, history {history}: {refusal}"));
        self.db.tx("count a lost lease", |tx| refusals::count(tx, agent, refusal, &detail).boxed()).await?;
        let ack = outcome_ack(key, OutcomeAnswer::Refused(refusal)).ok_or(Unhandled::Later)?;
        Ok(self.send(ack).await?)
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

/// The lease as the agent named it.
const fn key(Outcome { report, history, .. }: &Outcome) -> v1::HeldLease {
    v1::HeldLease { task_id: report.task.get(), token: report.token.get(), history: *history }
}

/// The answer to the outcome of a lease; `None` if the task was locked, so that the outcome has no
/// answer yet.
fn outcome_ack(
    &v1::HeldLease { task_id, token, history }: &v1::HeldLease,
    said: OutcomeAnswer,
) -> Option<v1::SessionResponse> {
    let answer = match said {
        OutcomeAnswer::Accepted { .. } => v1::outcome_ack::Answer::Accepted,
        // The first outcome stays stored. A contradicting outcome also gets the answer
        // `Duplicate`, so that the agent does not send this outcome again.
        OutcomeAnswer::Duplicate | OutcomeAnswer::Refused(Refusal::Contradiction) => v1::outcome_ack::Answer::Duplicate,
        OutcomeAnswer::Refused(Refusal::LostHistory) => v1::outcome_ack::Answer::LostHistory,
        OutcomeAnswer::Refused(_) => v1::outcome_ack::Answer::Stale,
        OutcomeAnswer::Busy => return None,
    };
    let reason = if let OutcomeAnswer::Refused(refusal) = said { refusal.to_string() } else { String::new() };
    Some(respond(v1::session_response::Message::Outcome(v1::OutcomeAck {
        task_id,
        token,
        history,
        answer: answer.into(),
        reason,
    })))
}
