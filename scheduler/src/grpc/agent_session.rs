//! The gRPC service for agents. It enrols agents and opens their sessions. Each session runs as an
//! async task (`stream`).

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use landfall_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

mod checkpoints;
pub(super) mod convert;
mod group_commit;
mod heartbeats;
mod orders;
mod outcome_commits;
mod outcomes;
mod permits;
mod returned_leases;
mod session;
mod stream;

use outcome_commits::OutcomeCommits;
use session::{OUTBOUND_MESSAGES, Session};

use crate::Scheduler;
use crate::grpc::auth;
use crate::grpc::operator::convert::{reach as wire_reach, timestamp};
use crate::model::AgentId;
use crate::store::agents::refusals::{self, Refusal};
use crate::store::agents::{self, CredentialHolder, enrolments, sessions};
use crate::store::measurements::reach::{self, ReachFilter};
use crate::store::{self, embeddings};

/// Maximum size in bytes of a message from an agent. A crawl's checkpoint takes up to 1 MiB, an
/// outcome with a thousand hosts takes less than 300 KiB, a registration with ten thousand held
/// leases takes less than 256 KiB, and any other message takes less than 4 KiB.
pub(super) const MAX_AGENT_MESSAGE: usize = 2 << 20;
/// Maximum time from the start of the stream to the agent's registration.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(super) struct AgentDesk {
    scheduler: Scheduler,
    recordings: Arc<OutcomeCommits>,
    sessions: TaskTracker,
    shutdown: CancellationToken,
}

impl AgentDesk {
    /// Creates the service. Each session runs as an async task, which `sessions` tracks and
    /// `shutdown` ends.
    pub(super) fn new(scheduler: Scheduler, sessions: TaskTracker, shutdown: CancellationToken) -> Self {
        Self { scheduler, recordings: Arc::default(), sessions, shutdown }
    }
}

#[tonic::async_trait]
impl v1::agent_service_server::AgentService for AgentDesk {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<v1::SessionResponse, Status>> + Send>>;

    async fn enrol(&self, request: Request<v1::EnrolRequest>) -> Result<Response<v1::EnrolResponse>, Status> {
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let max_crashes = self.scheduler.config.lease.max_crashes;
        let token = request.into_inner().token;
        let redeemed = enrolments::redeem(&mut tx, &token, max_crashes).await?;
        store::commit(tx).await?;
        let (agent, name) = (redeemed.agent, &redeemed.name);
        if redeemed.replaced {
            tracing::info!(agent.name = name, "an agent enrolled in the place of another machine");
            // Ends the session of the replaced machine at once.
            self.scheduler.wakes.wake_agents([agent]);
            self.scheduler.wakes.assign.notify_one();
        } else {
            tracing::info!(agent.name = name, "an agent enrolled");
        }
        Ok(Response::new(convert::enrolled(redeemed)))
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let auth::Agent { holder, .. } = auth::caller(&request)?;
        let config = &self.scheduler.config.measure;
        let asked = ReachFilter {
            agent: holder.agent,
            other: None,
            max_age: config.mesh_max_age,
            max_peers: config.max_mesh_peers,
        };
        let ways = reach::ways(&mut conn, &asked).await?;
        let agent = agents::show(&mut conn, &holder.name).await?;
        let now = embeddings::clock(&mut conn).await?;
        let contact_url = store::settings::contact_url(&mut conn).await?;
        let connected = agent.is_some_and(|agent| agent.connected && !agent.disconnected);
        let standing = v1::CheckResponse {
            name: holder.name,
            now: Some(timestamp(now)),
            connected,
            contact_url: contact_url.unwrap_or_default(),
            ..v1::CheckResponse::default()
        };
        Ok(Response::new(wire_reach::with_ways(standing, &ways)))
    }

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let auth::Agent { holder, credential } = auth::caller(&request)?;
        let peer = request.remote_addr().map(|address| address.ip());
        let mut inbound = request.into_inner();
        let register = first_message(&mut inbound).await?;
        let opened = self.open((&holder, credential), peer, register).await?;
        let contact_url = self.contact_url().await?;
        let (outbound, responses) = mpsc::channel(OUTBOUND_MESSAGES);
        let others = self.scheduler.wakes.others();
        let agent = holder.agent;
        let session =
            Session::new(&self.scheduler, &self.recordings, holder, opened.session, outbound, contact_url.clone());
        session.send(convert::welcome(agent, &opened, &self.scheduler.config.lease, contact_url, others)).await?;
        let shutdown = self.shutdown.clone();
        self.sessions.spawn(session.run(inbound, shutdown));
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}

impl AgentDesk {
    async fn open(
        &self,
        (CredentialHolder { agent, name, .. }, credential): (&CredentialHolder, auth::Credential),
        peer: Option<IpAddr>,
        register: v1::Register,
    ) -> Result<sessions::OpenedSession, Status> {
        let agent = *agent;
        let registration = convert::registration(register, peer)?;
        let terms = convert::terms(&self.scheduler.config.lease);
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let opened = match sessions::open(&mut tx, agent, &registration, terms).await {
            Ok(opened) => opened,
            Err(error) => {
                tx.rollback().await.map_err(store::Error::from)?;
                return Err(self.refused(agent, error).await?);
            }
        };
        // The credential is checked again, because another machine may have been enrolled as this
        // agent in the meantime. `sessions::open` has locked the agent's row until the commit.
        credential.agent(&mut tx).await?;
        store::commit(tx).await?;
        tracing::info!(
            agent.name = name,
            session.id = %opened.session,
            incarnation = %opened.incarnation,
            kept = opened.kept.len(),
            "an agent connected"
        );
        let wakes = &self.scheduler.wakes;
        // Wakes the stream of the session that the new session supersedes, so that the stream ends.
        wakes.wake_agents([agent]);
        wakes.measure.notify_one();
        wakes.fit.notify_one();
        wakes.assign.notify_one();
        Ok(opened)
    }

    /// Returns the status for an agent whose session is refused. Counts the refusals caused by two
    /// processes that share a credential, so that the operator sees them.
    async fn refused(&self, agent: AgentId, error: sessions::OpenError) -> Result<Status, Status> {
        let refusal = match &error {
            sessions::OpenError::Flapping { .. } => Some(Refusal::Flapping),
            sessions::OpenError::Taken(_) => Some(Refusal::Twin),
            sessions::OpenError::Removed | sessions::OpenError::Store(_) => None,
        };
        if let Some(refusal) = refusal {
            let mut conn = store::acquire(&self.scheduler.pool).await?;
            refusals::count(&mut conn, agent, refusal, &error.to_string()).await?;
        }
        Ok(error.into())
    }

    async fn contact_url(&self) -> Result<Option<String>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        Ok(store::settings::contact_url(&mut conn).await?)
    }
}

/// Reads the first message, which must be the registration.
async fn first_message(inbound: &mut Streaming<v1::SessionRequest>) -> Result<v1::Register, Status> {
    let first = tokio::time::timeout(REGISTER_TIMEOUT, inbound.message())
        .await
        .map_err(|_| Status::deadline_exceeded("the first message did not come in time"))??;
    match first.and_then(|request| request.message) {
        Some(v1::session_request::Message::Register(register)) => Ok(register),
        _ => Err(Status::invalid_argument("the first message must be `register`")),
    }
}
