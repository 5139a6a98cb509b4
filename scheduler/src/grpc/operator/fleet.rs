//! Implements the operators' gRPC service for agents and landmarks.

use landfall_proto::v1;
use landfall_proto::v1::fleet_service_server::{FleetService, FleetServiceServer};
use sqlx::PgConnection;
use tonic::{Request, Response, Status};

use crate::Scheduler;
use crate::gnp;
use crate::grpc::landmark_choice::{self, ChoiceError};
use crate::store::agents::drains::{self, DrainError};
use crate::store::agents::enrolments::{self, CreateError, Enrolment, RevokeError, State};
use crate::store::agents::{self, refusals, removal, sessions};
use crate::store::embeddings::{self, landmarks};
use crate::store::measurements::quarantines;
use crate::store::measurements::reach::{self, ReachFilter};
use crate::store::names::Noun;
use crate::store::reports::events::{self, Filter};
use crate::store::{self, leases, settings};

use super::convert::enrolments::{self as enrolment_messages, MOST_ENROLMENTS};
use super::convert::filters::{self, Places};
use super::convert::{fleet as convert, landmarks as landmark_messages, reports, timestamp};
use super::{agent_tags, named};
use crate::grpc::identity::Identity;
use crate::grpc::{auth, errors};

/// Maximum size of a request in bytes.
const MAX_MESSAGE: usize = 4 << 20;

/// Maximum number of events shown with an agent.
const EVENTS_SHOWN: i64 = 20;

#[derive(Debug, Clone)]
pub(crate) struct FleetDesk {
    scheduler: Scheduler,
    identity: Identity,
}

impl FleetDesk {
    pub(in crate::grpc) fn new(scheduler: Scheduler, identity: Identity) -> Self {
        Self { scheduler, identity }
    }

    pub(in crate::grpc) fn server(self) -> FleetServiceServer<Self> {
        FleetServiceServer::new(self).max_decoding_message_size(MAX_MESSAGE)
    }
}

#[tonic::async_trait]
impl FleetService for FleetDesk {
    async fn create_enrolment(
        &self,
        request: Request<v1::CreateEnrolmentRequest>,
    ) -> Result<Response<v1::CreateEnrolmentResponse>, Status> {
        let wanted = request.into_inner().try_into()?;
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let made = enrolments::create(&mut tx, &[wanted]).await?;
        let made = self.handed_out(&mut tx, made).await?.pop().unwrap_or_default();
        store::commit(tx).await?;
        Ok(Response::new(made))
    }

    async fn create_enrolments(
        &self,
        request: Request<v1::CreateEnrolmentsRequest>,
    ) -> Result<Response<v1::CreateEnrolmentsResponse>, Status> {
        let v1::CreateEnrolmentsRequest { enrolments: asked, dry_run } = request.into_inner();
        if asked.len() > MOST_ENROLMENTS {
            let found = asked.len();
            return Err(Status::invalid_argument(format!(
                "enrolments: {found}, but one request may have at most {MOST_ENROLMENTS}"
            )));
        }
        let (places, wanted, mut problems) = enrolment_messages::several(asked);
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let made = match enrolments::create(&mut tx, &wanted).await {
            Ok(made) => made,
            Err(CreateError::Refused(refused)) => {
                problems.extend(
                    refused.iter().map(|(index, refusal)| enrolment_messages::problem(places[*index], refusal)),
                );
                problems.sort_by_key(|problem| problem.index);
                Vec::new()
            }
            Err(error) => return Err(error.into()),
        };
        if dry_run || !problems.is_empty() {
            // Dropping the transaction rolls all changes back.
            return Ok(Response::new(v1::CreateEnrolmentsResponse { enrolments: Vec::new(), problems }));
        }
        let enrolments = self.handed_out(&mut tx, made).await?;
        store::commit(tx).await?;
        Ok(Response::new(v1::CreateEnrolmentsResponse { enrolments, problems }))
    }

    async fn list_enrolments(
        &self,
        request: Request<v1::ListEnrolmentsRequest>,
    ) -> Result<Response<v1::ListEnrolmentsResponse>, Status> {
        let asked = request.get_ref();
        let states = filters::enrolment_states(&asked.states)?;
        let all = asked.all || states.iter().any(|state| *state != State::Open);
        let places = Places::new(&asked.cities, &asked.carriers, &asked.countries);
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let (tokens, older) = enrolments::list(&mut conn, all).await?;
        let wanted = tokens.into_iter().filter(|token| {
            places.include(&token.city, &token.carrier, &token.country)
                && (states.is_empty() || states.contains(&token.state))
        });
        let enrolments = wanted.map(Into::into).collect();
        Ok(Response::new(v1::ListEnrolmentsResponse { enrolments, older }))
    }

    async fn revoke_enrolment(
        &self,
        request: Request<v1::RevokeEnrolmentRequest>,
    ) -> Result<Response<v1::RevokeEnrolmentResponse>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let revoked = match enrolments::revoke(&mut conn, &request.get_ref().named).await {
            Err(error @ RevokeError::Unknown(_)) => {
                return Err(named::inexact(&mut conn, Noun::Token, &request.get_ref().named, error.into()).await);
            }
            revoked => revoked?,
        };
        Ok(Response::new(v1::RevokeEnrolmentResponse { name: revoked.name, before: revoked.before }))
    }

    async fn list_agents(
        &self,
        request: Request<v1::ListAgentsRequest>,
    ) -> Result<Response<v1::ListAgentsResponse>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let agents = agents::list(&mut conn).await?;
        let asked = request.get_ref();
        let places = Places::new(&asked.cities, &asked.carriers, &asked.countries);
        let wanted = agents.into_iter().filter(|agent| reports::is_asked_for(agent, asked, &places));
        let open_enrolments = enrolments::open_tokens(&mut conn).await?;
        let (agents, more) = reports::first(wanted.map(Into::into).collect(), asked.limit);
        Ok(Response::new(v1::ListAgentsResponse { agents, open_enrolments, more }))
    }

    async fn show_agent(
        &self,
        request: Request<v1::ShowAgentRequest>,
    ) -> Result<Response<v1::ShowAgentResponse>, Status> {
        let v1::ShowAgentRequest { name } = request.into_inner();
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let agent = named::former_agent(&mut conn, &name).await?;
        let session = sessions::newest(&mut conn, agent.id).await?;
        let held = leases::held(&mut conn, agent.id).await?;
        let refused = refusals::of_agent(&mut conn, agent.id).await?;
        let filter = Filter { agents: Some(vec![agent.id]), ..Filter::default() };
        let events = events::newest(&mut conn, &filter, EVENTS_SHOWN).await?;
        Ok(Response::new(convert::shown(agent, session, held, refused, events.events)))
    }

    async fn show_reach(
        &self,
        request: Request<v1::ShowReachRequest>,
    ) -> Result<Response<v1::ShowReachResponse>, Status> {
        let v1::ShowReachRequest { agent, other } = request.into_inner();
        if agent == other {
            return Err(convert::itself("other", &agent).into());
        }
        let config = &self.scheduler.config.measure;
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let agent = named::agent(&mut conn, &agent).await?;
        let other = if other.is_empty() { None } else { Some(named::agent(&mut conn, &other).await?) };
        if other.as_ref() == Some(&agent) {
            return Err(convert::itself("other", &agent.name).into());
        }
        let asked = ReachFilter {
            agent: agent.id,
            other: other.map(|other| other.id),
            max_age: config.mesh_max_age,
            max_peers: config.max_mesh_peers,
        };
        let mut ways = reach::ways(&mut conn, &asked).await?;
        if asked.other.is_some() {
            ways.sort_by_key(|way| way.prober != agent.name);
        }
        Ok(Response::new(v1::ShowReachResponse { ways: ways.into_iter().map(Into::into).collect() }))
    }

    async fn drain_agent(
        &self,
        request: Request<v1::DrainAgentRequest>,
    ) -> Result<Response<v1::DrainAgentResponse>, Status> {
        let v1::DrainAgentRequest { name } = request.into_inner();
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let drained = drains::drain(&mut tx, &name).await;
        let drained = known(&mut tx, drained).await?;
        store::commit(tx).await?;
        tracing::info!(agent.name = name, drained.withdrawn, drained.leases, "an agent is draining");
        self.scheduler.wakes.assign.notify_one();
        Ok(Response::new(drained.into()))
    }

    async fn resume_agent(
        &self,
        request: Request<v1::ResumeAgentRequest>,
    ) -> Result<Response<v1::ResumeAgentResponse>, Status> {
        let v1::ResumeAgentRequest { name } = request.into_inner();
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let resumed = drains::resume(&mut tx, &name).await;
        let resumed = known(&mut tx, resumed).await?;
        store::commit(tx).await?;
        tracing::info!(agent.name = name, resumed, "an agent is in service again");
        self.scheduler.wakes.assign.notify_one();
        Ok(Response::new(v1::ResumeAgentResponse { resumed }))
    }

    async fn tag_agent(&self, request: Request<v1::TagAgentRequest>) -> Result<Response<v1::TagAgentResponse>, Status> {
        let v1::TagAgentRequest { name, add, remove } = request.into_inner();
        let tags = agent_tags::change(&self.scheduler.pool, &name, &add, &remove).await?;
        tracing::info!(agent.name = name, tags = tags.join(" "), "an agent was tagged");
        self.scheduler.wakes.assign.notify_one();
        Ok(Response::new(v1::TagAgentResponse { tags }))
    }

    async fn remove_agent(
        &self,
        request: Request<v1::RemoveAgentRequest>,
    ) -> Result<Response<v1::RemoveAgentResponse>, Status> {
        let v1::RemoveAgentRequest { name, force } = request.into_inner();
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let removed = removal::remove(&mut tx, &name, force, self.scheduler.config.lease.max_crashes).await;
        let removed = known(&mut tx, removed).await?;
        store::commit(tx).await?;
        tracing::info!(agent.name = name, removed.withdrawn, removed.leases, "an agent was removed");
        let wakes = &self.scheduler.wakes;
        for wake in [&wakes.assign, &wakes.measure, &wakes.landmarks, &wakes.fit] {
            wake.notify_one();
        }
        Ok(Response::new(removed.into()))
    }

    async fn set_landmarks(
        &self,
        request: Request<v1::SetLandmarksRequest>,
    ) -> Result<Response<v1::ListLandmarksResponse>, Status> {
        let request = request.into_inner();
        let dimensions = landmark_messages::dimensions(request.dimensions);
        let mut tx = store::begin(&self.scheduler.pool).await?;
        match landmark_choice::set(&mut tx, &request.names, dimensions).await {
            Err(ChoiceError::UnknownAgent(name)) => {
                let unknown = ChoiceError::UnknownAgent(name.clone()).into();
                return Err(named::inexact(&mut tx, Noun::Agent, &name, unknown).await);
            }
            set => set?,
        }
        store::commit(tx).await?;
        self.landmarks_changed().await
    }

    async fn elect_landmarks(
        &self,
        request: Request<v1::ElectLandmarksRequest>,
    ) -> Result<Response<v1::ListLandmarksResponse>, Status> {
        let election = landmark_messages::Election::from(request.into_inner());
        let peers = self.scheduler.config.measure.max_mesh_peers;
        let mut tx = store::begin(&self.scheduler.pool).await?;
        landmark_choice::elect(&mut tx, election.count, election.dimensions, peers).await?;
        let explained = landmark_choice::explain(&mut tx).await?;
        store::commit(tx).await?;
        let mut answer = self.landmarks_changed().await?;
        answer.get_mut().explanation = Some(explained.into());
        Ok(answer)
    }

    async fn list_landmarks(
        &self,
        _: Request<v1::ListLandmarksRequest>,
    ) -> Result<Response<v1::ListLandmarksResponse>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        listed(&mut conn).await
    }

    async fn trust_agent(
        &self,
        request: Request<v1::TrustAgentRequest>,
    ) -> Result<Response<v1::TrustAgentResponse>, Status> {
        let v1::TrustAgentRequest { name } = request.into_inner();
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let agent = named::exact_agent(&mut conn, &name).await?;
        let released = quarantines::release(&mut conn, agent).await?;
        self.scheduler.wakes.fit.notify_one();
        self.scheduler.wakes.measure.notify_one();
        Ok(Response::new(v1::TrustAgentResponse { released }))
    }

    async fn replace_operator_token(
        &self,
        request: Request<v1::ReplaceOperatorTokenRequest>,
    ) -> Result<Response<v1::ReplaceOperatorTokenResponse>, Status> {
        let auth::Operator(presented) = auth::caller(&request)?;
        let (hash, grace) = convert::new_token(request.get_ref())?;
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let replaced = settings::replace_operator_token(&mut conn, &presented, &hash, grace).await;
        let until = replaced?.ok_or_else(errors::former_token)?;
        tracing::warn!(former_until = %until, "the operator's token was replaced");
        let other_scheduler_urls = self.scheduler.wakes.others();
        let former_until = Some(timestamp(until));
        Ok(Response::new(v1::ReplaceOperatorTokenResponse { former_until, other_scheduler_urls }))
    }

    async fn set_contact_url(
        &self,
        request: Request<v1::SetContactUrlRequest>,
    ) -> Result<Response<v1::SetContactUrlResponse>, Status> {
        let contact_url = convert::contact_url(request.get_ref())?;
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        settings::set_contact_url(&mut conn, contact_url.as_str()).await?;
        self.scheduler.wakes.measure.notify_one();
        Ok(Response::new(v1::SetContactUrlResponse {}))
    }

    async fn show_contact_url(
        &self,
        _: Request<v1::ShowContactUrlRequest>,
    ) -> Result<Response<v1::ShowContactUrlResponse>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let contact_url = settings::contact_url(&mut conn).await?.unwrap_or_default();
        Ok(Response::new(v1::ShowContactUrlResponse { contact_url }))
    }

    async fn show_scheduler(
        &self,
        _: Request<v1::ShowSchedulerRequest>,
    ) -> Result<Response<v1::ShowSchedulerResponse>, Status> {
        Ok(Response::new(v1::ShowSchedulerResponse { version: crate::VERSION.to_owned() }))
    }
}

impl FleetDesk {
    /// The messages for new tokens, with all other data that an agent needs to enrol.
    async fn handed_out(
        &self,
        conn: &mut PgConnection,
        made: Vec<Enrolment>,
    ) -> Result<Vec<v1::CreateEnrolmentResponse>, Status> {
        let contact_url = settings::contact_url(conn).await?;
        let others = self.scheduler.wakes.others();
        let response = |made| enrolment_messages::enrolment(made, &self.identity, contact_url.clone(), others.clone());
        Ok(made.into_iter().map(response).collect())
    }

    async fn landmarks_changed(&self) -> Result<Response<v1::ListLandmarksResponse>, Status> {
        self.scheduler.wakes.fit.notify_one();
        self.scheduler.wakes.measure.notify_one();
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        listed(&mut conn).await
    }
}

/// Adds suggestions to the error for an unknown agent.
async fn known<T>(conn: &mut PgConnection, changed: Result<T, DrainError>) -> Result<T, Status> {
    match changed {
        Err(DrainError::Unknown(name)) => {
            let unknown = DrainError::Unknown(name.clone()).into();
            Err(named::inexact(conn, Noun::Agent, &name, unknown).await)
        }
        changed => Ok(changed?),
    }
}

async fn listed(conn: &mut PgConnection) -> Result<Response<v1::ListLandmarksResponse>, Status> {
    let landmarks = landmarks::list(conn).await?;
    let requested = settings::dimensions(conn).await?.map(|requested| usize::try_from(requested).unwrap_or(usize::MAX));
    let dimensions = gnp::dimensions_of_fit(landmarks.len(), requested);
    let embedding = embeddings::latest(conn).await?;
    let fleet = agents::list(conn).await?;
    Ok(Response::new(landmark_messages::landmarks(landmarks, &fleet, dimensions, embedding.as_ref())))
}
