//! A proxy for the stream between one agent and one scheduler. The proxy can hold, delay and
//! duplicate messages, and break streams. The proxy also records grants and acknowledgements.
//!
//! The proxy forwards whole messages. Held messages are delivered when the hold ends, even if the
//! agent has long since opened a new stream.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::Stream;
use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::agent_service_server::{AgentService, AgentServiceServer};
use landfall_proto::v1::{
    CheckRequest, CheckResponse, EnrolRequest, EnrolResponse, SessionRequest, SessionResponse, outcome_ack,
    session_request, session_response,
};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

/// Maximum number of messages in transit per direction. When the maximum is reached, the sender
/// waits.
const UNDER_WAY: usize = 4096;
/// Time limit for opening a connection or a session.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionRules {
    pub held: bool,
    pub delay: Duration,
    /// Whether messages are sent twice. Messages that begin or end a session are never sent twice.
    pub twice: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProxyRules {
    pub up: DirectionRules,
    pub down: DirectionRules,
}

/// A grant or an acknowledgement from a scheduler to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyNotice {
    /// The time when the proxy received the message.
    pub at: Instant,
    pub task: i64,
    pub token: i64,
    /// True for the acknowledgement of an outcome, false for the grant of a lease.
    pub accepted: bool,
}

#[derive(Debug, Clone)]
pub struct StreamProxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
}

#[derive(Debug)]
struct ProxyState {
    rules: watch::Sender<ProxyRules>,
    /// Number of calls to `break_streams`.
    broken: watch::Sender<u64>,
    upstream: Channel,
    /// No code holds the lock across an await.
    notices: Mutex<Vec<ProxyNotice>>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl StreamProxy {
    /// Starts a proxy to a scheduler on a free loopback port.
    pub async fn start(
        scheduler: SocketAddr,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("listen for an agent's stream")?;
        let address = listener.local_addr().context("ask for the proxy's address")?;
        let upstream = Endpoint::from_shared(format!("http://{scheduler}")).context("a scheduler's address")?;
        let state = Arc::new(ProxyState {
            rules: watch::Sender::default(),
            broken: watch::Sender::default(),
            upstream: upstream.connect_timeout(PATIENCE).connect_lazy(),
            notices: Mutex::default(),
            tasks: tasks.clone(),
            shutdown: shutdown.clone(),
        });
        let service = AgentServiceServer::new(ProxyService(Arc::clone(&state)));
        let ended = shutdown.clone().cancelled_owned();
        tasks.spawn(async move {
            let serving = Server::builder().add_service(service);
            if let Err(error) = serving.serve_with_incoming_shutdown(TcpListenerStream::new(listener), ended).await {
                tracing::error!(%error, "a stream proxy ended");
            }
        });
        Ok(Self { address, state })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sets the rules, which also apply to messages in transit.
    pub fn rule(&self, rules: ProxyRules) {
        self.state.rules.send_replace(rules);
    }

    /// Closes all open streams. The agent can open new streams.
    pub fn break_streams(&self) {
        self.state.broken.send_modify(|times| *times += 1);
    }

    pub fn notices(&self) -> Vec<ProxyNotice> {
        self.state.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
struct ProxyService(Arc<ProxyState>);

#[tonic::async_trait]
impl AgentService for ProxyService {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<SessionResponse, Status>> + Send>>;

    async fn enrol(&self, request: Request<EnrolRequest>) -> Result<Response<EnrolResponse>, Status> {
        AgentServiceClient::new(self.0.upstream.clone()).enrol(request).await
    }

    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        AgentServiceClient::new(self.0.upstream.clone()).check(request).await
    }

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (metadata, _, inbound) = request.into_parts();
        let (up, upward) = mpsc::channel(UNDER_WAY);
        let (down, downward) = mpsc::channel(UNDER_WAY);
        let state = Arc::clone(&self.0);
        // Forwarding starts before `client.session` is called, because the scheduler answers this
        // call only after the agent's first message.
        self.0.spawn(pump(Arc::clone(&state), inbound, up, |rules| rules.up, |_, _| {}, may_repeat));
        let mut outgoing = Request::new(ReceiverStream::new(upward).filter_map(Result::ok));
        *outgoing.metadata_mut() = metadata;
        let mut client = AgentServiceClient::new(state.upstream.clone());
        let opened = tokio::time::timeout(PATIENCE, client.session(outgoing)).await;
        let opened = opened.map_err(|_| Status::unavailable("the way to the scheduler is cut")).flatten();
        let responses = opened?.into_inner();
        self.0.spawn(pump(state, responses, down, |rules| rules.down, ProxyState::note, |_| true));
        Ok(Response::new(Box::pin(ReceiverStream::new(downward))))
    }
}

/// Whether a message may be sent twice. Messages that begin or end a session must not be repeated.
fn may_repeat(request: &SessionRequest) -> bool {
    use session_request::Message;
    !matches!(request.message, Some(Message::Register(_) | Message::Leave(_)))
}

impl ProxyState {
    fn spawn(&self, pumping: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.shutdown.clone().run_until_cancelled_owned(pumping));
    }

    fn note(&self, response: &SessionResponse) {
        use session_response::Message;
        let (task, token, accepted) = match &response.message {
            Some(Message::Crawl(order)) => (order.task_id, order.token, false),
            Some(Message::Outcome(ack)) if ack.answer() == outcome_ack::Answer::Accepted => {
                (ack.task_id, ack.token, true)
            }
            _ => return,
        };
        let notices = ProxyNotice { at: Instant::now(), task, token, accepted };
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(notices);
    }
}

/// Forwards the messages of one direction according to the rules.
async fn pump<M: Clone + Send + 'static>(
    state: Arc<ProxyState>,
    mut from: Streaming<M>,
    to: mpsc::Sender<Result<M, Status>>,
    rule: impl Fn(&ProxyRules) -> DirectionRules + Send + 'static,
    note: impl Fn(&ProxyState, &M) + Send + 'static,
    may_repeat: impl Fn(&M) -> bool + Send + 'static,
) {
    let (read, mut waiting) = mpsc::channel(UNDER_WAY);
    let reading = Arc::clone(&state);
    state.spawn(async move {
        while let Some(message) = from.next().await {
            if let Ok(message) = &message {
                note(&reading, message);
            }
            if read.send((Instant::now(), message)).await.is_err() {
                return;
            }
        }
    });
    let (mut rules, mut broken) = (state.rules.subscribe(), state.broken.subscribe());
    broken.mark_unchanged();
    let carrying = async {
        while let Some((at, message)) = waiting.recv().await {
            // `wait_for` fails only if the sender of the rules is dropped, but the sender outlives
            // this task.
            let delay =
                rules.wait_for(|rules| !rule(rules).held).await.map_or(Duration::ZERO, |rules| rule(&rules).delay);
            tokio::time::sleep_until((at + delay).into()).await;
            let again = match &message {
                Ok(message) if rule(&rules.borrow()).twice && may_repeat(message) => Some(message.clone()),
                _ => None,
            };
            if to.send(message).await.is_err() {
                return;
            }
            if let Some(again) = again
                && to.send(Ok(again)).await.is_err()
            {
                return;
            }
        }
    };
    tokio::select! {
        () = carrying => {}
        _ = broken.changed() => drop(to.try_send(Err(Status::unavailable("the stream was cut")))),
    }
}
