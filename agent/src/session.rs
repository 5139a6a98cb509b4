//! The agent's side of a session: connect, register, serve, drain; and again whenever it breaks.
//!
//! One task owns everything: the stream, and the [`Work`] that outlives it. Crawls go on while the scheduler is away,
//! until the deadline passes that the last acknowledged heartbeat bought, counted from when it was *sent*; then the agent stops
//! them by itself, since their leases may be another's by now. Outcomes are kept and offered until acknowledged.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::session_response::Message as Down;
use landfall_proto::v1::{HeldLease, Leave, Register, SessionRequest, SessionResponse, Welcome};
use rand::{Rng, RngExt};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Status, Streaming};

use crate::backoff::Backoff;
use crate::clock::BootTime;
use crate::config::SchedulerUrl;
use crate::enrol;
use crate::outbox::LeaseKey;
use work::{Finished, Work};

pub mod wire;
pub mod work;

/// Messages on their way to the transport; more wait in [`Serving::pending`].
const OUTBOUND_MESSAGES: usize = 64;
/// Messages that may wait for the transport: what an agent of the largest capacity can owe, and some more. A scheduler
/// that orders and orders and never reads gets no further.
const PENDING_MESSAGES: usize = 32_768;
/// Heartbeats that may wait for their acknowledgement; older ones no longer matter.
const UNACKNOWLEDGED_HEARTBEATS: usize = 64;
/// How long the scheduler may take to welcome an agent.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(20);
/// A dead peer is noticed by HTTP/2 pings as well as by missing acknowledgements.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How far a heartbeat strays from its interval, each way.
const JITTER: f64 = 0.2;
/// How long stopped crawls may take to end, and outcomes to be acknowledged, when the agent stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(8);

/// The wait between two attempts to connect.
const RECONNECT_FLOOR: Duration = Duration::from_millis(250);
/// Also what a scheduler that restarts sees of its fleet at worst.
const RECONNECT_CEILING: Duration = Duration::from_secs(15);

/// How the scheduler is reached, and what the agent says of itself.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Where.
    pub scheduler: SchedulerUrl,
    /// The authority that signed its certificate (PEM).
    pub ca: Option<String>,
    /// The credential.
    pub credential: MetadataValue<Ascii>,
    /// The source address.
    pub bind: Option<IpAddr>,
    /// What the agent says of itself; `held` is filled in.
    pub register: Register,
}

/// A credential that cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("{0} holds no credential: enrol the agent again")]
pub struct BadCredential(pub PathBuf);

/// The metadata value that carries a credential.
///
/// # Errors
/// When it holds what a header may not.
pub fn bearer(credential: &str, file: &std::path::Path) -> Result<MetadataValue<Ascii>, BadCredential> {
    let text = credential.trim();
    let mut value = MetadataValue::try_from(format!("Bearer {text}")).map_err(|_| BadCredential(file.to_owned()))?;
    if text.is_empty() {
        return Err(BadCredential(file.to_owned()));
    }
    value.set_sensitive(true);
    Ok(value)
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    /// The agent was asked to stop.
    #[error("stopped")]
    Stopped,
    /// No connection.
    #[error("connect the scheduler: {0}")]
    Connect(String),
    /// The scheduler does not take this agent.
    #[error("the scheduler refused this agent: {0}")]
    Refused(String),
    /// The stream broke.
    #[error("the session broke: {0}")]
    Broken(String),
    /// No heartbeat was acknowledged within the lease's life.
    #[error("no heartbeat was acknowledged in time")]
    Silent,
}

/// Keeps a session until the agent is stopped.
pub async fn run(terms: &Terms, mut work: Work, stop: &CancellationToken, rng: &mut impl Rng) {
    let mut backoff = Backoff::try_new(RECONNECT_FLOOR, RECONNECT_CEILING).expect("the floor is below the ceiling");
    let mut failures: u32 = 0;
    loop {
        let mut welcomed = false;
        let ended = one_session(terms, &mut work, stop, rng, &mut welcomed).await;
        work.abandon_orders();
        if welcomed {
            backoff.reset();
            failures = 0;
        }
        match &ended {
            Ended::Stopped => return,
            Ended::Refused(_) => tracing::error!(error = %ended, "session not opened; trying again"),
            _ if failures == 0 => tracing::warn!(error = %ended, "session ended; trying again"),
            _ => tracing::debug!(error = %ended, failures, "session not opened; trying again"),
        }
        failures = failures.saturating_add(1);
        // A refusal is the operator's to mend, so there is no hurry.
        let wait = if matches!(ended, Ended::Refused(_)) { RECONNECT_CEILING } else { backoff.wait(rng) };
        if meanwhile(&mut work, stop, tokio::time::sleep(wait)).await.is_none() {
            return;
        }
    }
}

/// Waits for something while the work goes on; `None` when the agent is to stop.
async fn meanwhile<T>(work: &mut Work, stop: &CancellationToken, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    loop {
        tokio::select! {
            output = &mut future => return Some(output),
            () = stop.cancelled() => return None,
            // Outcomes are in the outbox; what else ends here is told by the leases the next session no longer claims.
            _ = work.next() => {}
        }
    }
}

async fn one_session(
    terms: &Terms,
    work: &mut Work,
    stop: &CancellationToken,
    rng: &mut impl Rng,
    welcomed: &mut bool,
) -> Ended {
    let registered = BootTime::now();
    let (inbound, outbound, welcome) = match meanwhile(work, stop, connect(terms, work.held())).await {
        None => return Ended::Stopped,
        Some(Err(ended)) => return ended,
        Some(Ok(opened)) => opened,
    };
    *welcomed = true;
    let mut serving = Serving::new(outbound, &welcome, registered, work, rng);
    match serving.serve(inbound, work, stop, rng).await {
        Ok(inbound) => serving.drain(inbound, work).await,
        Err(ended) => ended,
    }
}

type Opened = (Streaming<SessionResponse>, mpsc::Sender<SessionRequest>, Welcome);

/// Connects, registers, and waits for the welcome.
async fn connect(terms: &Terms, held: Vec<HeldLease>) -> Result<Opened, Ended> {
    let broken = |error: tonic::transport::Error| Ended::Connect(enrol::root_cause(&error));
    let endpoint = enrol::endpoint(&terms.scheduler, terms.ca.as_deref()).map_err(broken)?;
    let endpoint = endpoint.local_address(terms.bind).http2_keep_alive_interval(KEEP_ALIVE).keep_alive_while_idle(true);
    let channel = endpoint.connect().await.map_err(broken)?;
    let (outbound, requests) = mpsc::channel(OUTBOUND_MESSAGES);
    let register = Register { held, ..terms.register.clone() };
    let first = SessionRequest { message: Some(Up::Register(register)) };
    outbound.try_send(first).expect("the channel is new and empty");
    let mut request = tonic::Request::new(ReceiverStream::new(requests));
    request.metadata_mut().insert("authorization", terms.credential.clone());
    let opening = async {
        let mut inbound = AgentServiceClient::new(channel).session(request).await?.into_inner();
        let first = inbound.message().await?;
        Ok::<_, Status>((inbound, first))
    };
    let (inbound, first) = match tokio::time::timeout(WELCOME_TIMEOUT, opening).await {
        Err(_) => return Err(Ended::Connect(format!("no welcome within {WELCOME_TIMEOUT:?}"))),
        Ok(Err(status)) => return Err(refused_or_broken(&status)),
        Ok(Ok(opened)) => opened,
    };
    match first.and_then(|response| response.message) {
        Some(Down::Welcome(welcome)) => Ok((inbound, outbound, welcome)),
        _ => Err(Ended::Broken("the first answer was no welcome".to_owned())),
    }
}

fn refused_or_broken(status: &Status) -> Ended {
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument | Code::Unimplemented => {
            Ended::Refused(status.message().to_owned())
        }
        _ => Ended::Broken(status.message().to_owned()),
    }
}

/// An open session.
struct Serving {
    outbound: mpsc::Sender<SessionRequest>,
    /// What waits for the transport: reading must go on while writing waits, or two full pipes wait for each other.
    pending: VecDeque<SessionRequest>,
    interval: Duration,
    life: Duration,
    next_beat: Instant,
    sequence: u64,
    sent: VecDeque<(u64, BootTime)>,
}

impl Serving {
    fn new(
        outbound: mpsc::Sender<SessionRequest>,
        welcome: &Welcome,
        registered: BootTime,
        work: &mut Work,
        rng: &mut impl Rng,
    ) -> Self {
        let (interval, life) = wire::rhythm(welcome);
        tracing::info!(agent.id = welcome.agent_id, incarnation = welcome.incarnation, "session opened");
        work.welcome(welcome, registered.after(life));
        let pending = work.offers().map(|outcome| up(Up::Outcome(outcome))).collect();
        let next_beat = Instant::now() + jittered(interval, rng);
        Self { outbound, pending, interval, life, next_beat, sequence: 0, sent: VecDeque::new() }
    }

    /// Serves until the agent is to stop; then the stream is still open.
    async fn serve(
        &mut self,
        mut inbound: Streaming<SessionResponse>,
        work: &mut Work,
        stop: &CancellationToken,
        rng: &mut impl Rng,
    ) -> Result<Streaming<SessionResponse>, Ended> {
        let outbound = self.outbound.clone();
        loop {
            if self.pending.len() > PENDING_MESSAGES {
                return Err(Ended::Broken("the scheduler does not read".to_owned()));
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(inbound),
                received = inbound.message() => self.receive(received, work)?,
                () = tokio::time::sleep_until(self.next_beat) => self.beat(work, rng),
                // Whatever waits already: the deadline is in it.
                finished = work.next() => {
                    if matches!(finished, Finished::DeadlinePassed) {
                        return Err(Ended::Silent);
                    }
                    self.tell(finished);
                }
                permit = outbound.reserve(), if !self.pending.is_empty() => {
                    flush(&mut self.pending, permit)?;
                }
            }
        }
    }

    fn receive(&mut self, received: Result<Option<SessionResponse>, Status>, work: &mut Work) -> Result<(), Ended> {
        let message = match received {
            Err(status) => return Err(refused_or_broken(&status)),
            Ok(None) => return Err(Ended::Broken("the scheduler ended it".to_owned())),
            Ok(Some(response)) => response.message,
        };
        match message {
            Some(Down::Heartbeat(ack)) => self.acknowledged(ack.sequence, work),
            Some(Down::Measure(order)) => {
                self.pending.extend(work.measure(order).map(|report| up(Up::Measurement(report))));
            }
            Some(Down::Crawl(order)) => {
                if work.look_at_disk() {
                    // What is handed back next must not be granted again.
                    self.heartbeat(work);
                }
                self.pending.extend(work.crawl(order).map(up));
            }
            Some(Down::Outcome(ack)) => {
                tracing::debug!(task.id = ack.task_id, token = ack.token, answer = ?ack.answer(), "outcome answered");
                work.acknowledge(LeaseKey { task_id: ack.task_id, token: ack.token });
            }
            Some(Down::Cancel(order)) => work.cancel(LeaseKey { task_id: order.task_id, token: order.token }),
            // A second welcome says nothing new, and what is not known is from a newer scheduler.
            Some(Down::Welcome(_)) | None => tracing::debug!("message ignored"),
        }
        Ok(())
    }

    fn tell(&mut self, finished: Finished) {
        match finished {
            Finished::Outcome(report) => self.pending.push_back(up(Up::Outcome(report))),
            Finished::Unfinished(key) => self.pending.push_back(up(wire::release(key))),
            Finished::Crashed(key, crash) => self.pending.push_back(up(wire::crashed(key, &crash))),
            Finished::Measured(report) => self.pending.push_back(up(Up::Measurement(report))),
            Finished::DeadlinePassed => {}
        }
    }

    fn beat(&mut self, work: &mut Work, rng: &mut impl Rng) {
        work.look_at_disk();
        self.heartbeat(work);
        self.next_beat = Instant::now() + jittered(self.interval, rng);
    }

    fn heartbeat(&mut self, work: &Work) {
        self.sequence += 1;
        self.sent.push_back((self.sequence, BootTime::now()));
        if self.sent.len() > UNACKNOWLEDGED_HEARTBEATS {
            self.sent.pop_front();
        }
        // Before everything that waits: what it renews must not queue.
        self.pending.push_front(up(Up::Heartbeat(work.heartbeat(self.sequence))));
    }

    /// The deadline counts from when the heartbeat was sent: the scheduler's begins later.
    fn acknowledged(&mut self, sequence: u64, work: &mut Work) {
        while let Some((number, sent)) = self.sent.front().copied().filter(|(number, _)| *number <= sequence) {
            self.sent.pop_front();
            if number == sequence {
                work.renew(sent.after(self.life));
            }
        }
    }

    /// Takes nothing new, stops the crawls, hands everything over, and closes.
    async fn drain(mut self, mut inbound: Streaming<SessionResponse>, work: &mut Work) -> Ended {
        tracing::info!(crawls = work.active_crawls(), "handing back what is not finished");
        work.stop_all();
        // First, so that nothing handed back is granted to it again.
        self.pending.push_front(up(Up::Leave(Leave {})));
        let outbound = self.outbound.clone();
        let drained = async {
            loop {
                if work.active_crawls() == 0 && work.nothing_to_offer() && self.pending.is_empty() {
                    return;
                }
                tokio::select! {
                    received = inbound.message() => match received {
                        Ok(Some(SessionResponse { message: Some(Down::Outcome(ack)) })) => {
                            work.acknowledge(LeaseKey { task_id: ack.task_id, token: ack.token });
                        }
                        Ok(Some(SessionResponse { message: Some(Down::Crawl(order)) })) => {
                            let key = LeaseKey { task_id: order.task_id, token: order.token };
                            self.pending.push_back(up(wire::release(key)));
                        }
                        Ok(Some(_)) => {}
                        Ok(None) | Err(_) => return,
                    },
                    finished = work.next() => self.tell(finished),
                    permit = outbound.reserve(), if !self.pending.is_empty() => {
                        if flush(&mut self.pending, permit).is_err() {
                            return;
                        }
                    }
                }
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::warn!("not everything was handed back in time");
        }
        drop((outbound, self.outbound));
        // The scheduler ends the stream once it has read everything; dropping it earlier would discard what is under way.
        let closed = async { while matches!(inbound.message().await, Ok(Some(_))) {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, closed).await.is_err() {
            tracing::debug!("the scheduler did not end the session");
        }
        Ended::Stopped
    }
}

fn up(message: Up) -> SessionRequest {
    SessionRequest { message: Some(message) }
}

fn flush(
    pending: &mut VecDeque<SessionRequest>,
    permit: Result<mpsc::Permit<'_, SessionRequest>, mpsc::error::SendError<()>>,
) -> Result<(), Ended> {
    let permit = permit.map_err(|_| Ended::Broken("the stream is closed".to_owned()))?;
    if let Some(message) = pending.pop_front() {
        permit.send(message);
    }
    Ok(())
}

fn jittered(interval: Duration, rng: &mut impl Rng) -> Duration {
    interval.mul_f64(rng.random_range(1.0 - JITTER..=1.0 + JITTER))
}

#[cfg(test)]
mod tests;
