//! The agent's side of sessions: connects, registers, handles messages, drains and reconnects.
//!
//! One tokio task owns the stream and the [`Work`], which outlives sessions. While the scheduler is
//! unreachable, crawls continue until the deadline of their leases. The deadline is counted from
//! the time at which the last acknowledged heartbeat was *sent*. At the deadline the agent stops
//! its crawls, because the scheduler may then have granted their leases to other agents. Outcomes
//! are stored, and are reported until they are acknowledged.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::session_response::Message as Down;
use landfall_proto::v1::{CrawlCheckpoint, Leave, SessionRequest, SessionResponse, Welcome};
use rand::Rng;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Status, Streaming};

use crate::disk::lease_key::LeaseKey;
use crate::machine::clock::BootTime;
use crate::metrics::{METRICS, MessageDirection};
use crate::session::backoff::{Backoff, UNHURRIED};
use crate::session::schedulers::Schedulers;
use convert::leases;
use event::WorkEvent;
use heartbeats::Heartbeats;
pub use opening::{AgentReplaced, SessionConfig};
use opening::{SessionEnd, connect, refused_or_broken};
use outgoing::OutgoingQueue;
use work::Work;

pub(crate) mod backoff;
mod convert;
mod deadline;
pub(crate) mod endpoint;
pub(crate) mod enrol;
mod event;
mod heartbeats;
mod leased_crawl;
mod opening;
mod outgoing;
mod permits;
pub(crate) mod schedulers;
pub(crate) mod unreached;
pub mod work;

/// How long a stopping agent waits for its crawls to end and its outcomes to be acknowledged.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(8);

#[derive(Debug, thiserror::Error)]
#[error("{0} contains no credential: enrol the agent again")]
pub struct BadCredential(pub PathBuf);

pub fn bearer(credential: &str, file: &std::path::Path) -> Result<MetadataValue<Ascii>, BadCredential> {
    let text = credential.trim();
    let mut value = MetadataValue::try_from(format!("Bearer {text}")).map_err(|_| BadCredential(file.to_owned()))?;
    if text.is_empty() {
        return Err(BadCredential(file.to_owned()));
    }
    value.set_sensitive(true);
    Ok(value)
}

/// Runs sessions until the agent is stopped. Fails if another machine was enrolled under the same
/// name, because no later attempt could succeed then.
pub async fn run(
    config: &SessionConfig,
    mut work: Work,
    stop: &CancellationToken,
    rng: &mut impl Rng,
) -> Result<(), AgentReplaced> {
    let mut backoff = Backoff::of_sessions();
    let mut failures: u32 = 0;
    let mut yields = false;
    let mut schedulers = config.schedulers.clone();
    loop {
        let mut welcomed = false;
        let ended = one_session(config, &mut schedulers, &mut work, stop, rng, yields, &mut welcomed).await;
        METRICS.session_ended(ended.failure());
        work.deadline.silence().session_ended();
        work.abandon_orders();
        // After any error, move on to the next scheduler, or stay if there is only one.
        schedulers.move_on();
        if welcomed {
            backoff.reset();
            (failures, yields) = (0, false);
        }
        match &ended {
            SessionEnd::Stopped => return Ok(()),
            SessionEnd::Replaced(replaced) => {
                work.give_up();
                return Err(replaced.clone());
            }
            SessionEnd::Refused(_) => tracing::error!(error = %ended, "session not opened; trying again"),
            SessionEnd::Superseded(_) => {
                yields = true;
                // The other process that runs as this agent will start these crawls again, so this
                // process must not report their leases as held.
                work.give_up();
                tracing::error!(error = %ended, "another process runs as this agent");
            }
            _ if failures == 0 => tracing::warn!(error = %ended, "session ended; trying again"),
            _ => tracing::debug!(error = %ended, failures, "session not opened; trying again"),
        }
        failures = failures.saturating_add(1);
        // Only the operator can fix these two errors, so retry slowly.
        let unhurried = matches!(ended, SessionEnd::Refused(_) | SessionEnd::Superseded(_));
        let wait = if unhurried { UNHURRIED } else { backoff.wait(rng) };
        // The events during this wait need not be reported. Outcomes are in the outbox, and the
        // next session does not report the leases of crawls that ended without an outcome.
        if meanwhile(&mut work, stop, &mut Vec::new(), tokio::time::sleep(wait)).await.is_none() {
            return Ok(());
        }
    }
}

/// Awaits a future while the work continues. Returns `None` if the agent must stop. Crawls that end
/// without an outcome meanwhile are added to `ended`.
async fn meanwhile<T>(
    work: &mut Work,
    stop: &CancellationToken,
    ended: &mut Vec<WorkEvent>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = std::pin::pin!(future);
    loop {
        tokio::select! {
            output = &mut future => return Some(output),
            () = stop.cancelled() => return None,
            event = work.next() => ended.extend(Some(event).filter(|event| event.ends().is_some())),
        }
    }
}

async fn one_session(
    config: &SessionConfig,
    schedulers: &mut Schedulers,
    work: &mut Work,
    stop: &CancellationToken,
    rng: &mut impl Rng,
    yields: bool,
    welcomed: &mut bool,
) -> SessionEnd {
    let registered = BootTime::now();
    let mut meanwhile_ended = Vec::new();
    let connecting = connect(config, schedulers.current(), work.held(), yields);
    let (inbound, outbound, welcome) = match meanwhile(work, stop, &mut meanwhile_ended, connecting).await {
        None => return SessionEnd::Stopped,
        Some(Err(ended)) => return ended,
        Some(Ok(opened)) => opened,
    };
    *welcomed = true;
    let (name, incarnation) = (&config.register.name, welcome.incarnation);
    tracing::info!(agent.name = name, incarnation, "connected to the scheduler");
    schedulers.learn(&welcome.other_scheduler_urls);
    let mut serving = ActiveSession::new(outbound, &welcome, registered, work, rng);
    serving.report_ended(meanwhile_ended, &welcome);
    match serving.serve(inbound, work, stop, rng).await {
        Ok(inbound) => serving.drain(inbound, work).await,
        Err(ended) => ended,
    }
}

struct ActiveSession {
    outbound: mpsc::Sender<SessionRequest>,
    /// Messages that wait for room in the transport. The agent continues to read while messages
    /// wait, because the agent and the scheduler could otherwise deadlock when both directions are
    /// full.
    pending: OutgoingQueue,
    heartbeats: Heartbeats,
}

impl ActiveSession {
    fn new(
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
        pending.extend(work.permits.unanswered().map(|(key, address)| leases::permit_request(key, address)));
        Self { outbound, pending, heartbeats }
    }

    /// Reports crawls that ended after the session had reported their leases. Without these reports
    /// the scheduler would keep the leases forever.
    fn report_ended(&mut self, ended: Vec<WorkEvent>, welcome: &Welcome) {
        let kept: HashSet<LeaseKey> =
            welcome.kept.iter().map(|held| LeaseKey { task_id: held.task_id, token: held.token }).collect();
        for event in ended.into_iter().filter(|one| one.ends().is_some_and(|key| kept.contains(&key))) {
            self.report(event);
        }
    }

    /// Handles messages and work events until the agent must stop. The stream stays open.
    async fn serve(
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
                tracing::debug!(task.id = ack.task_id, token = ack.token, ?answer, reason, "outcome answered");
                work.outbox.acknowledge(LeaseKey { task_id: ack.task_id, token: ack.token });
            }
            Some(Down::Permit(answer)) => work.permits.answered(answer),
            Some(Down::Cancel(order)) => work.running.cancel(LeaseKey { task_id: order.task_id, token: order.token }),
            Some(Down::Preempt(order)) => {
                work.running.preempt(LeaseKey { task_id: order.task_id, token: order.token }, &order.reason);
            }
            // A second welcome contains nothing new. Unknown messages come from a newer scheduler.
            Some(Down::Welcome(_)) | None => tracing::debug!("message ignored"),
        }
        Ok(())
    }

    fn report(&mut self, event: WorkEvent) {
        match event {
            WorkEvent::Outcome(report) => self.pending.push(Up::Outcome(report)),
            WorkEvent::Unfinished(key, checkpoint) => self.hand_back(checkpoint, leases::release(key)),
            WorkEvent::Paused(key, checkpoint, pause) => self.hand_back(checkpoint, leases::paused(key, pause)),
            WorkEvent::PermitWanted(key, address) => self.pending.push(leases::permit_request(key, address)),
            WorkEvent::Checkpoint(checkpoint) => self.pending.push_checkpoint(checkpoint),
            WorkEvent::Crashed(key, crash) => self.pending.push(leases::crashed(key, &crash)),
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

    /// Stops taking work, stops the crawls, returns their leases, and closes the session.
    async fn drain(mut self, mut inbound: Streaming<SessionResponse>, work: &mut Work) -> SessionEnd {
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
                            work.outbox.acknowledge(LeaseKey { task_id: ack.task_id, token: ack.token });
                        }
                        Ok(Some(SessionResponse { message: Some(Down::Crawl(order)) })) => {
                            let key = LeaseKey { task_id: order.task_id, token: order.token };
                            self.pending.push(leases::release(key));
                        }
                        Ok(Some(_)) => {}
                        Ok(None) | Err(_) => return,
                    },
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

#[cfg(test)]
mod tests;
