//! A simulated agent that crawls nothing. It accepts leases, and its [`Mode`] determines when it
//! reports outcomes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use landfall_proto::v1;
use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::session_response::Message as Down;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use crate::cluster::process::until;

/// Maximum number of messages that wait for the transport.
const OUTBOUND: usize = 1024;

/// Time limit for the grants and for the acknowledgements of all agents.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// When a simulated agent reports the outcomes of its leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Keeps all leases, and reports nothing.
    Pause,
    /// Sends the outcomes of all leases immediately, and the outcome of a new lease as soon as the
    /// lease arrives.
    Answer,
    /// Sends the outcome of the oldest lease at random times, as independent crawls would. The
    /// value is the mean interval.
    FreeOneEvery(Duration),
}

/// A running simulated agent. Dropping it stops the agent.
pub(super) struct SimulatedAgent {
    mode: watch::Sender<Mode>,
    counts: Arc<Counts>,
    running: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    acknowledged: AtomicU64,
    waits: Mutex<Vec<Duration>>,
}

struct AgentLoop {
    outbound: mpsc::Sender<v1::SessionRequest>,
    mode: watch::Receiver<Mode>,
    held: VecDeque<(i64, i64)>,
    /// For each free slot, the time when it became free.
    freed: VecDeque<Instant>,
    granted: Arc<AtomicU64>,
    counts: Arc<Counts>,
}

impl SimulatedAgent {
    pub(super) async fn start(
        url: &str,
        credential: &str,
        capacity: u32,
        granted: Arc<AtomicU64>,
    ) -> anyhow::Result<Self> {
        let channel = Endpoint::from_shared(url.to_owned())?.tcp_nodelay(true).connect().await.context("connect")?;
        let (outbound, requests) = mpsc::channel(OUTBOUND);
        let register = v1::Register {
            city: "Harbin".to_owned(),
            carrier: "CERNET".to_owned(),
            capacity,
            version: "bench".to_owned(),
            ..Default::default()
        };
        outbound.send(up(Up::Register(register))).await.context("register")?;
        let mut request = tonic::Request::new(ReceiverStream::new(requests));
        request.metadata_mut().insert("authorization", format!("Bearer {credential}").parse()?);
        let inbound = AgentServiceClient::new(channel).session(request).await.context("open a session")?.into_inner();
        let (mode, mode_changes) = watch::channel(Mode::Pause);
        let counts = Arc::<Counts>::default();
        let running = AgentLoop {
            outbound,
            mode: mode_changes,
            held: VecDeque::new(),
            freed: VecDeque::new(),
            granted,
            counts: Arc::clone(&counts),
        };
        Ok(Self { mode, counts, running: tokio::spawn(running.run(inbound)) })
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    pub(super) fn sent(&self) -> u64 {
        self.counts.sent.load(Ordering::Relaxed)
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.counts.acknowledged.load(Ordering::Relaxed)
    }

    /// For each slot that was filled since the previous call: how long the slot had been free.
    pub(super) fn waits(&self) -> Vec<Duration> {
        std::mem::take(&mut self.counts.waits.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for SimulatedAgent {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// Waits until agents have been granted `wanted` leases in total.
pub(super) async fn await_grants(granted: &AtomicU64, wanted: u64) -> anyhow::Result<()> {
    until("enough grants", PATIENCE, async || Ok((granted.load(Ordering::Relaxed) >= wanted).then_some(()))).await
}

impl AgentLoop {
    async fn run(mut self, mut inbound: Streaming<v1::SessionResponse>) {
        let mut next = tokio::time::Instant::now();
        loop {
            let mode = *self.mode.borrow();
            let due = async {
                match mode {
                    Mode::FreeOneEvery(_) if !self.held.is_empty() => tokio::time::sleep_until(next).await,
                    Mode::Answer if !self.held.is_empty() => {}
                    _ => std::future::pending().await,
                }
            };
            let outbound = self.outbound.clone();
            tokio::select! {
                message = inbound.message() => match message {
                    Ok(Some(v1::SessionResponse { message: Some(message) })) => self.receive(message),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return,
                },
                changed = self.mode.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.freed.clear();
                    next = tokio::time::Instant::now();
                }
                // The wait for room in the queue is a branch of `select!`, so that the agent
                // continues to read messages.
                Ok(permit) = async { due.await; outbound.reserve().await } => {
                    let Some((task_id, token)) = self.held.pop_front() else { continue };
                    if let Mode::FreeOneEvery(pause) = mode {
                        // The ends of independent crawls are a Poisson process, whose gaps are
                        // exponentially distributed.
                        next += pause.mul_f64(-(1.0 - rand::random::<f64>()).ln());
                        self.freed.push_back(Instant::now());
                    }
                    self.counts.sent.fetch_add(1, Ordering::Relaxed);
                    permit.send(up(Up::Outcome(outcome(task_id, token))));
                }
            }
        }
    }

    fn receive(&mut self, message: Down) {
        match message {
            Down::Crawl(order) => {
                self.granted.fetch_add(1, Ordering::Relaxed);
                self.held.push_back((order.task_id, order.token));
                if let Some(freed) = self.freed.pop_front() {
                    self.counts.waits.lock().unwrap_or_else(PoisonError::into_inner).push(freed.elapsed());
                }
            }
            Down::Outcome(_) => {
                self.counts.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

fn up(message: Up) -> v1::SessionRequest {
    v1::SessionRequest { message: Some(message) }
}

fn outcome(task_id: i64, token: i64) -> v1::OutcomeReport {
    v1::OutcomeReport {
        task_id,
        token,
        kind: v1::OutcomeKind::Complete.into(),
        pages: 3,
        bytes: 4096,
        started_at: Some(Default::default()),
        duration: Some(Default::default()),
        // A typical value, consistent with the measurements of the sites.
        rtt: Duration::from_millis(20).try_into().ok(),
        origin: "http://bench.test".to_owned(),
        ..Default::default()
    }
}
