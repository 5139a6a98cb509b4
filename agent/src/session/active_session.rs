//! An open session: sends heartbeats and reports, and carries out the scheduler's messages. When
//! the agent stops, hands back the leases, and waits until the outcomes are acknowledged.

use std::collections::HashSet;
use std::time::Duration;

use landfall_proto::v1::outcome_ack::Answer;
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::session_response::Message as Down;
use landfall_proto::v1::{CrawlCheckpoint, Leave, SessionRequest, SessionResponse, Welcome};
use rand::Rng;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::convert;
use super::heartbeats::Heartbeats;
use super::opening::{SessionEnd, refused_or_broken};
use super::outgoing::OutgoingQueue;
use super::permits_and_events::WorkEvent;
use super::work::Work;
use crate::disk::crawl_files::LeaseKey;
use crate::machine::clock::BootTime;
use crate::metrics::{METRICS, MessageDirection};

pub(super) struct ActiveSession {
    pub(super) outbound: mpsc::Sender<SessionRequest>,
    /// Messages that wait for room in the transport. The agent continues to read while messages
    /// wait, because the agent and the scheduler could otherwise deadlock when both directions are
    /// full.
    pub(super) pending: OutgoingQueue,
    heartbeats: Heartbeats,
}

impl ActiveSession {
    pub(super) fn new(
        outbound: mpsc::Sender<SessionRequest>,
        welcome: &Welcome,
        registered: BootTime,
        work: &mut Work,
        rng: &mut impl Rng,
    ) -> Self {
        let heartbeats = Heartbeats::new(welcome, rng);
        work.welcome(welcome, registered.after(heartbeats.lease_life()));
        let mut pending = OutgoingQueue::default();
        pending.extend(work.outbox.offers().cloned().map(Up::Outcome));
        pending.extend(work.permits.unanswered().map(|(key, address)| convert::permit_request(key, address)));
        Self { outbound, pending, heartbeats }
    }

    /// Reports crawls that ended after the session had reported their leases. Without these reports
    /// the scheduler would keep the leases forever.
    pub(super) fn report_ended(&mut self, ended: Vec<WorkEvent>, welcome: &Welcome) {
        let kept: HashSet<LeaseKey> = welcome.kept.iter().map(LeaseKey::from).collect();
        for event in ended.into_iter().filter(|one| one.ends().is_some_and(|key| kept.contains(&key))) {
            self.report(event);
        }
    }

    /// Handles messages and work events until the agent must stop. The stream stays open.
    pub(super) async fn serve(
        &mut self,
        mut inbound: Streaming<SessionResponse>,
        work: &mut Work,
        stop: &CancellationToken,
        rng: &mut impl Rng,
    ) -> Result<Streaming<SessionResponse>, SessionEnd> {
        let outbound = self.outbound.clone();
        loop {
            if self.pending.is_too_long() {
                return Err(SessionEnd::Broken("the scheduler reads no messages".to_owned()));
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(inbound),
                received = inbound.message() => self.receive(received, work)?,
                () = tokio::time::sleep_until(self.heartbeats.next_at()) => self.beat(work, rng),
                // Await `work` even while the transport is full: its events include the deadline.
                event = work.next() => match event {
                    WorkEvent::DeadlinePassed => return Err(SessionEnd::Silent),
                    WorkEvent::SpaceChecked => self.heartbeat(work),
                    event => self.report(event),
                },
                permit = outbound.reserve(), if !self.pending.is_empty() => {
                    self.pending.send_next(permit)?;
                }
            }
        }
    }

    fn beat(&mut self, work: &mut Work, rng: &mut impl Rng) {
        work.check_disk();
        self.heartbeat(work);
        self.heartbeats.plan_next(rng);
    }

    fn heartbeat(&mut self, work: &Work) {
        let sequence = self.heartbeats.begin();
        // The heartbeat overtakes all queued messages, so that leases are renewed in time.
        self.pending.push_first(Up::Heartbeat(work.heartbeat(sequence)));
    }

    fn receive(
        &mut self,
        received: Result<Option<SessionResponse>, Status>,
        work: &mut Work,
    ) -> Result<(), SessionEnd> {
        let message = match received {
            Err(status) => return Err(refused_or_broken(&status)),
            Ok(None) => return Err(SessionEnd::Broken("the scheduler closed the stream".to_owned())),
            Ok(Some(response)) => response.message,
        };
        METRICS.message(MessageDirection::Received);
        match message {
            Some(Down::Heartbeat(ack)) => {
                if let Some(deadline) = self.heartbeats.acknowledge(ack.sequence) {
                    work.deadline.renew(deadline);
                }
            }
            Some(Down::Measure(order)) => {
                self.pending.extend(work.measure(order).map(Up::Measurement));
            }
            Some(Down::Crawl(order)) => {
                if work.check_disk() {
                    // If the disk is full, report that first, or the scheduler could grant this
                    // lease again after the agent has returned it.
                    self.heartbeat(work);
                }
                self.pending.extend(work.crawl(order));
            }
            Some(Down::Outcome(ack)) => {
                let (answer, reason) = (ack.answer(), &ack.reason);
                if answer == Answer::LostHistory {
                    tracing::warn!(task.id = ack.task_id, token = ack.token, reason, "an outcome does not count");
                } else {
                    tracing::debug!(task.id = ack.task_id, token = ack.token, ?answer, reason, "outcome answered");
                }
                work.outbox.acknowledge(LeaseKey::from(&ack));
            }
            Some(Down::Permit(answer)) => work.permits.answered(answer),
            Some(Down::Cancel(order)) => work.running.cancel(LeaseKey::from(&order)),
            Some(Down::Preempt(order)) => {
                work.running.preempt(LeaseKey::from(&order), &order.reason);
            }
            // A second welcome contains nothing new. Unknown messages come from a newer scheduler.
            Some(Down::Welcome(_)) | None => tracing::debug!("message ignored"),
        }
        Ok(())
    }

    pub(super) fn report(&mut self, event: WorkEvent) {
        match event {
            WorkEvent::Outcome(report) => self.pending.push(Up::Outcome(report)),
            WorkEvent::Unfinished(key, checkpoint) => self.hand_back(checkpoint, convert::release(key)),
            WorkEvent::Paused(key, checkpoint, pause) => self.hand_back(checkpoint, convert::paused(key, pause)),
            WorkEvent::PermitWanted(key, address) => self.pending.push(convert::permit_request(key, address)),
            WorkEvent::Checkpoint(checkpoint) => self.pending.push_checkpoint(checkpoint),
            WorkEvent::Crashed(key, crash) => self.pending.push(convert::crashed(key, &crash)),
            WorkEvent::Measured(report) => self.pending.push(Up::Measurement(report)),
            WorkEvent::SpaceChecked | WorkEvent::DeadlinePassed => {}
        }
    }

    /// Sends the checkpoint first, because no checkpoint is accepted after the release.
    fn hand_back(&mut self, checkpoint: Option<CrawlCheckpoint>, release: Up) {
        if let Some(checkpoint) = checkpoint {
            self.pending.push_last_checkpoint(checkpoint);
        }
        self.pending.push(release);
    }
}

/// How long a stopping agent waits for its crawls to end and its outcomes to be acknowledged.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(8);

impl ActiveSession {
    /// Stops taking work, stops the crawls, returns their leases, and closes the session.
    pub(super) async fn drain(
        mut self,
        mut inbound: Streaming<SessionResponse>,
        work: &mut Work,
        rng: &mut impl Rng,
    ) -> SessionEnd {
        tracing::info!(crawls = work.active_crawls(), "handing back unfinished leases");
        work.stop_all();
        // Announce the end first, or this agent could be granted the returned leases again.
        self.pending.push_first(Up::Leave(Leave {}));
        let outbound = self.outbound.clone();
        let limit = DRAIN_TIMEOUT + work.grace();
        let drained = async {
            loop {
                if work.active_crawls() == 0 && work.outbox.is_empty() && self.pending.is_empty() {
                    return work.outbox.removed().await;
                }
                tokio::select! {
                    received = inbound.message() => match received {
                        Ok(Some(SessionResponse { message: Some(Down::Outcome(ack)) })) => {
                            work.outbox.acknowledge(LeaseKey::from(&ack));
                        }
                        Ok(Some(SessionResponse { message: Some(Down::Heartbeat(ack)) })) => {
                            // The leases are being returned, so their deadline is of no interest.
                            self.heartbeats.acknowledge(ack.sequence);
                        }
                        Ok(Some(SessionResponse { message: Some(Down::Crawl(order)) })) => {
                            let key = LeaseKey::from(&order);
                            self.pending.push(convert::release(key));
                        }
                        Ok(Some(_)) => {}
                        Ok(None) | Err(_) => return,
                    },
                    // An external crawler may take longer to stop than the session lasts without a
                    // heartbeat.
                    () = tokio::time::sleep_until(self.heartbeats.next_at()) => self.beat(work, rng),
                    event = work.next() => self.report(event),
                    permit = outbound.reserve(), if !self.pending.is_empty() => {
                        if self.pending.send_next(permit).is_err() {
                            return;
                        }
                    }
                }
            }
        };
        if tokio::time::timeout(limit, drained).await.is_err() {
            tracing::warn!("some leases or outcomes were not handed back in time");
        }
        drop((outbound, self.outbound));
        // The scheduler ends the stream after it has read everything. Dropping the stream earlier
        // would discard unsent messages.
        let closed = async { while matches!(inbound.message().await, Ok(Some(_))) {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, closed).await.is_err() {
            tracing::debug!("the scheduler did not end the session");
        }
        SessionEnd::Stopped
    }
}
