//! The gRPC service for agents: passes each call on, and runs each session as an async task.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use landfall_proto::v1;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use super::outbound_queue::OutboundQueue;
use super::outcome_commits::OutcomeCommits;
use super::session_state::Session;
use super::{check, enrolment, registration, session_opening};
use crate::Scheduler;
use crate::grpc::auth;

/// Maximum size in bytes of a message from an agent. A crawl's checkpoint takes up to 1 MiB, an
/// outcome with a thousand hosts takes less than 300 KiB, a registration with ten thousand held
/// leases takes less than 256 KiB, and any other message takes less than 4 KiB.
pub(in crate::grpc) const MAX_AGENT_MESSAGE: usize = 2 << 20;

#[derive(Debug, Clone)]
pub(in crate::grpc) struct AgentDesk {
    scheduler: Scheduler,
    recordings: Arc<OutcomeCommits>,
    sessions: TaskTracker,
    shutdown: CancellationToken,
}

impl AgentDesk {
    /// Creates the service. Each session runs as an async task, which `sessions` tracks and
    /// `shutdown` ends.
    pub(in crate::grpc) fn new(scheduler: Scheduler, sessions: TaskTracker, shutdown: CancellationToken) -> Self {
        Self { scheduler, recordings: Arc::default(), sessions, shutdown }
    }
}

#[tonic::async_trait]
impl v1::agent_service_server::AgentService for AgentDesk {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<v1::SessionResponse, Status>> + Send>>;

    async fn enrol(&self, request: Request<v1::EnrolRequest>) -> Result<Response<v1::EnrolResponse>, Status> {
        Ok(Response::new(enrolment::enrol(&self.scheduler, &request.into_inner().token).await?))
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        let auth::Agent { holder, .. } = auth::caller(&request)?;
        Ok(Response::new(check::check(&self.scheduler, holder).await?))
    }

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let auth::Agent { holder, credential } = auth::caller(&request)?;
        let peer = request.remote_addr().map(|address| address.ip());
        let mut inbound = request.into_inner();
        let register = registration::first_message(&mut inbound).await?;
        let scheduler = &self.scheduler;
        let opened = session_opening::open(scheduler, (&holder, credential), peer, register).await?;
        let contact_url = session_opening::contact_url(scheduler).await?;
        let (outbound, responses) = OutboundQueue::new();
        let others = scheduler.wakes.others();
        let agent = holder.agent;
        let session = Session::new(scheduler, &self.recordings, holder, opened.session, outbound, contact_url.clone());
        let welcome = session_opening::welcome(agent, &opened, &scheduler.config.lease, contact_url, others);
        session.send(welcome).await?;
        let shutdown = self.shutdown.clone();
        self.sessions.spawn(session.run(inbound, shutdown));
        Ok(Response::new(Box::pin(responses)))
    }
}
