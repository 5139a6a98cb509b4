//! The gRPC service for agents: exchanges an agent's token for a credential, answers an agent that
//! asks for its own state, and opens sessions. An agent's first message must be its registration,
//! which is validated here; afterwards the agent is welcomed, and its session runs as an async
//! task.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, Stream};
use landfall_proto::v1;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use super::fields::{MAX_CAPACITY, clip, lease_key, respond};
use super::group_commit::OutcomeCommits;
use super::heartbeats::Heartbeats;
use super::inbox;
use super::outbound::OutboundQueue;
use super::patience::OPEN_PATIENCE;
use super::session::Session;
use crate::Scheduler;
use crate::config::LeaseConfig;
use crate::grpc::auth;
use crate::grpc::operator::convert::{count, duration, timestamp};
use crate::grpc::port::guesses::Guess;
use crate::grpc::port::refusals::Refused;
use crate::machine::secret::SecretHash;
use crate::model::{AgentId, LeaseToken};
use crate::store::agents::issued_tokens::{self, RedeemError, RedeemResult};
use crate::store::agents::refusals::{self, Refusal};
use crate::store::agents::sessions::{self, OpenedSession, Registration, SessionTerms};
use crate::store::agents::{self, CredentialHolder};
use crate::store::db::{MayConflict, conflict_in};
use crate::store::measurements::reach::{self, ReachDirection, ReachFilter, Reachability};
use crate::store::schema::histories::Histories;
use crate::store::{self, embeddings};

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
        let peer = auth::peer(request.extensions());
        let token = request.into_inner().token;
        let secret = SecretHash::of(token.trim());
        let redeeming = enrol(&self.scheduler, &token);
        let guesses = &self.scheduler.port.guesses;
        Ok(Response::new(guesses.check(Refused::EnrolmentToken, peer, &secret, redeeming).await?))
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        let auth::Agent { holder, .. } = auth::caller(&request)?;
        Ok(Response::new(check(&self.scheduler, holder).await?))
    }

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let auth::Agent { holder, credential } = auth::caller(&request)?;
        let peer = auth::peer(request.extensions());
        let mut inbound = request.into_inner();
        let register = first_message(&mut inbound).await?;
        let scheduler = &self.scheduler;
        let mut held = register.held.clone();
        let (opened, histories) = open(scheduler, (&holder, credential), peer, register).await?;
        // A lost lease may have the numbers of a lease that the agent keeps.
        held.retain(|held| histories.contain(LeaseToken::new(held.token), held.history));
        let contact_url = contact_url(scheduler).await?;
        let (outbound, responses) = OutboundQueue::new();
        let others = scheduler.wakes.others();
        let agent = holder.agent;
        let named = (agent, holder.name.clone(), opened.session);
        let known = (contact_url.clone(), histories.clone());
        let heartbeats = Heartbeats::new(scheduler, named, outbound.clone(), known);
        let (queue, inbox) = inbox::new();
        let session = Session::new(scheduler, &self.recordings, holder, opened.session, outbound, inbox, histories);
        let welcome = welcome(agent, (&opened, held), &scheduler.config.lease, contact_url, others);
        session.send(welcome).await?;
        let shutdown = self.shutdown.clone();
        self.sessions.spawn(session.run(heartbeats, queue, inbound, shutdown));
        Ok(Response::new(Box::pin(responses)))
    }
}

/// Opens the session of an agent that registered. Wakes the jobs that may use the agent. Also returns
/// the database's histories. The agent keeps no lease that a lost history granted.
pub(super) async fn open(
    scheduler: &Scheduler,
    (CredentialHolder { agent, name, .. }, credential): (&CredentialHolder, auth::Credential),
    peer: Option<IpAddr>,
    register: v1::Register,
) -> Result<(sessions::OpenedSession, Histories), Status> {
    let agent = *agent;
    let held = register.held.clone();
    let registration = registration(register, peer)?;
    let terms = terms(&scheduler.config.lease);
    let (db, held, registration, credential) =
        (scheduler.db.with_patience(OPEN_PATIENCE), &held, &registration, &credential);
    let opening = db.tx("open a session", |tx| {
        async move {
            let histories = Histories::load(tx).await?;
            let held = held.iter().filter(|held| histories.contain(LeaseToken::new(held.token), held.history));
            let held = held.map(|held| lease_key(held.task_id, held.token)).collect();
            let registration = Registration { held, ..registration.clone() };
            let opened = sessions::open(tx, agent, &registration, terms).await?;
            // The credential is checked again, because another machine may have been enrolled as
            // this agent in the meantime. `sessions::open` has locked the agent's row until the
            // commit.
            credential.agent(tx).await?;
            Ok::<_, RefusedSession>((opened, histories))
        }
        .boxed()
    });
    let (opened, histories) = match opening.await {
        Ok(opened) => opened,
        Err(RefusedSession::Open(error)) => return Err(refused(scheduler, agent, error).await?),
        Err(RefusedSession::Credential(error)) => return Err(error.into()),
    };
    tracing::info!(
        agent.name = name,
        session.id = %opened.session,
        incarnation = %opened.incarnation,
        kept = opened.kept.len(),
        "an agent connected"
    );
    let wakes = &scheduler.wakes;
    // Wakes the stream of the session that the new session supersedes, so that the stream ends.
    wakes.wake_agents([agent]);
    wakes.measure.notify_one();
    wakes.fit.notify_one();
    wakes.assign.notify_one();
    Ok((opened, histories))
}

/// Why a session is not opened.
#[derive(Debug, thiserror::Error)]
enum RefusedSession {
    #[error(transparent)]
    Open(#[from] sessions::OpenError),
    #[error(transparent)]
    Credential(#[from] auth::AuthError),
}

impl From<store::Error> for RefusedSession {
    fn from(error: store::Error) -> Self {
        Self::Open(error.into())
    }
}

impl MayConflict for RefusedSession {
    fn is_conflict(&self) -> bool {
        conflict_in(self)
    }
}

/// Returns the status for an agent whose session is refused. Counts the refusals caused by two
/// processes that share a credential, so that the operator sees them.
async fn refused(scheduler: &Scheduler, agent: AgentId, error: sessions::OpenError) -> Result<Status, Status> {
    let refusal = match &error {
        sessions::OpenError::Flapping { .. } => Some(Refusal::Flapping),
        sessions::OpenError::Taken(_) => Some(Refusal::Twin),
        sessions::OpenError::Removed | sessions::OpenError::Store(_) => None,
    };
    if let Some(refusal) = refusal {
        let detail = error.to_string();
        let db = scheduler.db.with_patience(OPEN_PATIENCE);
        db.tx("count a refused session", |tx| refusals::count(tx, agent, refusal, &detail).boxed()).await?;
    }
    Ok(error.into())
}

pub(super) async fn contact_url(scheduler: &Scheduler) -> Result<Option<String>, Status> {
    Ok(store::settings::contact_url(&mut *scheduler.db.read("read the contact URL").await?).await?)
}

/// The time limits and other limits that this configuration sets for a session.
fn terms(lease: &LeaseConfig) -> SessionTerms {
    let LeaseConfig { life, grace, max_supersessions, max_crashes, .. } = *lease;
    SessionTerms { lifetime: life + grace, max_supersessions, max_crashes }
}

/// `held` contains the leases that the agent named, without those of lost histories.
pub(super) fn welcome(
    agent: AgentId,
    (opened, held): (&OpenedSession, Vec<v1::HeldLease>),
    lease: &LeaseConfig,
    contact_url: Option<String>,
    others: Vec<String>,
) -> v1::SessionResponse {
    let kept: HashSet<_> = opened.kept.iter().collect();
    respond(v1::session_response::Message::Welcome(v1::Welcome {
        agent_id: agent.get(),
        incarnation: opened.incarnation.get(),
        heartbeat_interval: Some(duration(lease.heartbeat_interval)),
        lease_life: Some(duration(lease.life)),
        kept: held.into_iter().filter(|held| kept.contains(&lease_key(held.task_id, held.token))).collect(),
        contact_url: contact_url.unwrap_or_default(),
        other_scheduler_urls: others,
    }))
}

/// Maximum time from the start of the stream to the agent's registration.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

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

/// An agent's registration, without the leases that it holds. If the agent gives no URL for its
/// beacon, the session's source address is taken as the beacon's address.
pub(super) fn registration(register: v1::Register, peer: Option<IpAddr>) -> Result<Registration, Status> {
    if !(1..=MAX_CAPACITY).contains(&register.capacity) {
        return Err(Status::invalid_argument(format!(
            "capacity: {} is not within 1 to {MAX_CAPACITY}",
            register.capacity
        )));
    }
    let port = u16::try_from(register.beacon_port)
        .map_err(|_| Status::invalid_argument(format!("beacon_port: {} is not a port", register.beacon_port)))?;
    let beacon_url = match (register.beacon_url.is_empty(), port, peer) {
        (false, _, _) => Some(beacon_url(&register.beacon_url)?),
        (true, 0, _) | (true, _, None) => None,
        (true, port, Some(peer)) => Some(format!("http://{}/", SocketAddr::new(peer.to_canonical(), port))),
    };
    Ok(Registration {
        city: clip(register.city),
        carrier: clip(register.carrier),
        country: clip(register.country),
        capacity: register.capacity,
        version: clip(register.version),
        beacon_url,
        address: peer,
        yields: register.yields,
        process: Some(register.process).filter(|process| *process != 0),
        held: Vec::new(),
    })
}

fn beacon_url(text: &str) -> Result<String, Status> {
    let url = url::Url::parse(text).map_err(|error| Status::invalid_argument(format!("beacon_url: {error}")))?;
    if url.scheme() != "http" || url.host_str().is_none() {
        return Err(Status::invalid_argument("beacon_url: must be an http URL with a host"));
    }
    Ok(url.into())
}

impl Guess for RedeemError {
    fn is_wrong(&self) -> bool {
        !matches!(self, Self::Randomness(_) | Self::Store(_))
    }
}

/// Enrols the agent to which the token belongs. Ends the session of a machine that it replaces.
pub(super) async fn enrol(scheduler: &Scheduler, token: &str) -> Result<v1::EnrolResponse, RedeemError> {
    let (db, max_crashes) = (scheduler.db.with_patience(OPEN_PATIENCE), scheduler.config.lease.max_crashes);
    let redeemed = db.tx("enrol an agent", |tx| issued_tokens::redeem(tx, token, max_crashes).boxed()).await?;
    let (agent, name) = (redeemed.agent, &redeemed.name);
    if redeemed.replaced {
        tracing::info!(agent.name = name, "an agent enrolled in the place of another machine");
        // Ends the session of the replaced machine at once.
        scheduler.wakes.wake_agents([agent]);
        scheduler.wakes.assign.notify_one();
    } else {
        tracing::info!(agent.name = name, "an agent enrolled");
    }
    Ok(enrolled(redeemed))
}

fn enrolled(redeemed: RedeemResult) -> v1::EnrolResponse {
    v1::EnrolResponse {
        agent_id: redeemed.agent.get(),
        credential: redeemed.credential,
        name: redeemed.name,
        city: redeemed.city,
        carrier: redeemed.carrier,
        country: redeemed.country,
    }
}

pub(super) async fn check(scheduler: &Scheduler, holder: CredentialHolder) -> Result<v1::CheckResponse, Status> {
    let mut conn = scheduler.db.read("show an agent to itself").await?;
    let config = &scheduler.config.measure;
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
    Ok(with_ways(standing, &ways))
}

/// Adds three facts to an agent's state: how many other agents reach this agent, how many other
/// agents it reaches, and the text of one failure in each direction.
fn with_ways(response: v1::CheckResponse, ways: &[ReachDirection]) -> v1::CheckResponse {
    let counted = |here: &dyn Fn(&ReachDirection) -> bool, there: fn(&ReachDirection) -> &str| {
        let tried = ways.iter().filter(|way| here(way));
        let with_state = |wanted| tried.clone().filter(|way| way.reachability == wanted).count();
        let (reached, failed) = (with_state(Reachability::Reached), with_state(Reachability::Failed));
        let failure = tried.clone().filter(|way| way.reachability == Reachability::Failed).find_map(|way| {
            let failure = &way.failed.as_ref()?.0;
            let message = if failure.said.is_empty() { failure.to_string() } else { failure.said.clone() };
            Some(v1::BeaconFailure { agent: there(way).to_owned(), message })
        });
        (count(reached), count(reached.saturating_add(failed)), failure)
    };
    let name = response.name.clone();
    let (reached_by, tried_by, not_reached_by) = counted(&|way| way.target == name, |way| &way.prober);
    let (reaches, tries, not_reached) = counted(&|way| way.prober == name, |way| &way.target);
    v1::CheckResponse { reached_by, tried_by, not_reached_by, reaches, tries, not_reached, ..response }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register() -> v1::Register {
        v1::Register { name: "a".into(), capacity: 4, beacon_port: 7180, ..v1::Register::default() }
    }

    #[test]
    fn the_beacon_is_where_the_session_comes_from_unless_said_otherwise() {
        let peer = "192.0.2.7".parse().ok();
        let formed = registration(register(), peer).expect("valid").beacon_url;
        assert_eq!(formed.as_deref(), Some("http://192.0.2.7:7180/"));
        let named = v1::Register { beacon_url: "http://b.example:1/".into(), ..register() };
        assert_eq!(registration(named, peer).expect("valid").beacon_url.as_deref(), Some("http://b.example:1/"));
        let none = v1::Register { beacon_port: 0, ..register() };
        assert_eq!(registration(none, peer).expect("valid").beacon_url, None);
    }

    #[test]
    fn nonsense_in_a_registration_is_named() {
        for (broken, field) in [
            (v1::Register { capacity: 0, ..register() }, "capacity"),
            (v1::Register { beacon_port: 70_000, ..register() }, "beacon_port"),
            (v1::Register { beacon_url: "ftp://x".into(), ..register() }, "beacon_url"),
        ] {
            let status = registration(broken, None).expect_err("refused");
            assert!(status.message().starts_with(field), "{status}");
        }
    }
}
