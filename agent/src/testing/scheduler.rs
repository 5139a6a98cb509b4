//! A scheduler for tests: a tonic server whose sessions the test controls.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use landfall_proto::v1::agent_service_server::{AgentService, AgentServiceServer};
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::session_response::Message as Down;
use landfall_proto::v1::{
    BeaconFailure, CheckRequest, CheckResponse, EnrolRequest, EnrolResponse, HeldLease, PermitAnswer, PermitRequest,
    Register, SessionRequest, SessionResponse, Welcome, session_request,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

/// Time limit for a session or message. The limit is longer than any wait in a test.
const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const TOKEN: &str = "good-token";
pub(crate) const CREDENTIAL: &str = "the-credential";

/// A running scheduler, which stops when it is dropped.
pub(crate) struct TestScheduler {
    pub(crate) addr: SocketAddr,
    sessions: mpsc::Receiver<TestSession>,
}

/// The scheduler's side of one session.
pub(crate) struct TestSession {
    inbound: Streaming<SessionRequest>,
    outbound: mpsc::Sender<Result<SessionResponse, Status>>,
    /// The other schedulers that the welcome reports.
    pub(crate) others: Vec<String>,
}

impl TestScheduler {
    pub(crate) async fn start(identity: Option<Identity>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (opened, sessions) = mpsc::channel(8);
        let mut server = Server::builder();
        if let Some(identity) = identity {
            server = server.tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
        }
        let serving = server.add_service(AgentServiceServer::new(TestService { opened }));
        tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { addr, sessions }
    }

    /// Waits for the next session. Returns it with the agent's registration.
    pub(crate) async fn session(&mut self) -> (TestSession, Register) {
        let next = tokio::time::timeout(PATIENCE, self.sessions.recv()).await;
        let mut session = next.expect("no agent connected").expect("the server ended");
        match session.next().await {
            Some(Up::Register(register)) => (session, register),
            other => panic!("registered with {other:?}"),
        }
    }
}

impl TestSession {
    /// Waits for the next message that is not a request for a permit, and grants the requests that
    /// come before this message. Returns `None` if the agent closed the stream.
    pub(crate) async fn next(&mut self) -> Option<session_request::Message> {
        loop {
            match self.next_or_permit_request().await {
                Some(Up::Permit(request)) => self.answer(request, true).await,
                other => return other,
            }
        }
    }

    /// Waits for a request for a permit, and grants it.
    pub(crate) async fn permit(&mut self) {
        loop {
            match self.next_or_permit_request().await {
                Some(Up::Permit(request)) => return self.answer(request, true).await,
                Some(_) => {}
                None => panic!("the agent disconnected"),
            }
        }
    }

    pub(crate) async fn answer(&self, request: PermitRequest, granted: bool) {
        let PermitRequest { task_id, token, history, address } = request;
        let reason = if granted { String::new() } else { "others are crawled there".to_owned() };
        self.send(Down::Permit(PermitAnswer { task_id, token, history, address, granted, reason })).await;
    }

    pub(crate) async fn next_or_permit_request(&mut self) -> Option<session_request::Message> {
        let message = tokio::time::timeout(PATIENCE, self.inbound.message()).await.expect("the agent said nothing");
        message.ok().flatten().and_then(|request| request.message)
    }

    /// Waits for the next message that is not a heartbeat.
    pub(crate) async fn next_but_heartbeats(&mut self) -> Option<session_request::Message> {
        loop {
            match self.next().await {
                Some(Up::Heartbeat(_)) => {}
                other => return other,
            }
        }
    }

    pub(crate) async fn send(&self, message: Down) {
        assert!(self.offer(message).await, "the agent disconnected");
    }

    /// Sends a message, unless the agent has disconnected. Returns whether it was sent.
    pub(crate) async fn offer(&self, message: Down) -> bool {
        self.outbound.send(Ok(SessionResponse { message: Some(message) })).await.is_ok()
    }

    /// Ends the session with this status.
    pub(crate) async fn fail(self, status: Status) {
        self.outbound.send(Err(status)).await.unwrap();
    }

    pub(crate) async fn welcome(&self, interval: Duration, life: Duration, kept: Vec<HeldLease>, contact_url: &str) {
        let welcome = Welcome {
            agent_id: 1,
            incarnation: 1,
            heartbeat_interval: Some(interval.try_into().unwrap()),
            lease_life: Some(life.try_into().unwrap()),
            kept,
            contact_url: contact_url.to_owned(),
            other_scheduler_urls: self.others.clone(),
        };
        self.send(Down::Welcome(welcome)).await;
    }
}

struct TestService {
    opened: mpsc::Sender<TestSession>,
}

#[tonic::async_trait]
impl AgentService for TestService {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<SessionResponse, Status>> + Send>>;

    async fn enrol(&self, request: Request<EnrolRequest>) -> Result<Response<EnrolResponse>, Status> {
        if request.into_inner().token != TOKEN {
            return Err(Status::permission_denied("this token was used or has expired"));
        }
        Ok(Response::new(EnrolResponse {
            agent_id: 7,
            credential: CREDENTIAL.to_owned(),
            name: "harbin-cernet".to_owned(),
            city: "Harbin".to_owned(),
            carrier: "CERNET".to_owned(),
            country: "CN".to_owned(),
        }))
    }

    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        admit(&request)?;
        let message = "the guard refuses 198.18.0.5".to_owned();
        Ok(Response::new(CheckResponse {
            name: "harbin-cernet".to_owned(),
            now: Some(crate::machine::clock::wall().into()),
            contact_url: "https://example.org/bot".to_owned(),
            reached_by: 1,
            tried_by: 2,
            not_reached_by: Some(BeaconFailure { agent: "tokyo-iij".to_owned(), message: message.clone() }),
            tries: 2,
            not_reached: Some(BeaconFailure { agent: "tokyo-iij".to_owned(), message }),
            ..CheckResponse::default()
        }))
    }

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        admit(&request)?;
        let (outbound, responses) = mpsc::channel(16);
        self.opened.send(TestSession { inbound: request.into_inner(), outbound, others: Vec::new() }).await.unwrap();
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}

fn admit<T>(request: &Request<T>) -> Result<(), Status> {
    let bearer = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
    if bearer != Some(&format!("Bearer {CREDENTIAL}")) {
        return Err(Status::unauthenticated("unknown credential"));
    }
    Ok(())
}
