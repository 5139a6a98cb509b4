//! Implements the operators' gRPC service for agents and landmarks. Drains, removes and trusts
//! agents, and sets the contact URL.

use landfall_proto::v1;
use landfall_proto::v1::fleet_service_server::{FleetService, FleetServiceServer};
use sqlx::PgConnection;
use tonic::{Request, Response, Status};

use crate::Scheduler;
use crate::grpc::identity::Identity;
use crate::grpc::landmark_choice::{self, ChoiceError};
use crate::grpc::{auth, operator_token};
use crate::model::contact_url::ContactUrl;
use crate::store::agents::drains::{self, DrainError, DrainResult};
use crate::store::agents::removal;
use crate::store::measurements::quarantines;
use crate::store::names::Noun;
use crate::store::{self, settings};

use super::convert::InvalidField;
use super::{agent_details, agent_tags, enrolments, named, reach};

/// Maximum size of a request in bytes.
const MAX_MESSAGE: usize = 4 << 20;

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
        Ok(Response::new(enrolments::create(&self.scheduler, &self.identity, request.into_inner()).await?))
    }

    async fn create_enrolments(
        &self,
        request: Request<v1::CreateEnrolmentsRequest>,
    ) -> Result<Response<v1::CreateEnrolmentsResponse>, Status> {
        Ok(Response::new(enrolments::create_several(&self.scheduler, &self.identity, request.into_inner()).await?))
    }

    async fn list_enrolments(
        &self,
        request: Request<v1::ListEnrolmentsRequest>,
    ) -> Result<Response<v1::ListEnrolmentsResponse>, Status> {
        Ok(Response::new(enrolments::list(&self.scheduler, request.into_inner()).await?))
    }

    async fn revoke_enrolment(
        &self,
        request: Request<v1::RevokeEnrolmentRequest>,
    ) -> Result<Response<v1::RevokeEnrolmentResponse>, Status> {
        Ok(Response::new(enrolments::revoke(&self.scheduler, request.into_inner()).await?))
    }

    async fn list_agents(
        &self,
        request: Request<v1::ListAgentsRequest>,
    ) -> Result<Response<v1::ListAgentsResponse>, Status> {
        Ok(Response::new(agent_details::list(&self.scheduler, request.into_inner()).await?))
    }

    async fn show_agent(
        &self,
        request: Request<v1::ShowAgentRequest>,
    ) -> Result<Response<v1::ShowAgentResponse>, Status> {
        Ok(Response::new(agent_details::show(&self.scheduler, request.into_inner()).await?))
    }

    async fn show_reach(
        &self,
        request: Request<v1::ShowReachRequest>,
    ) -> Result<Response<v1::ShowReachResponse>, Status> {
        Ok(Response::new(reach::show(&self.scheduler, request.into_inner()).await?))
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
        let dimensions = landmark_choice::dimensions(request.dimensions);
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
        let election = landmark_choice::Election::from(request.into_inner());
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
        Ok(Response::new(landmark_choice::list(&mut conn).await?))
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
        Ok(Response::new(operator_token::replace(&self.scheduler, &presented, request.get_ref()).await?))
    }

    async fn set_contact_url(
        &self,
        request: Request<v1::SetContactUrlRequest>,
    ) -> Result<Response<v1::SetContactUrlResponse>, Status> {
        let contact_url = contact_url(request.get_ref())?;
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
    async fn landmarks_changed(&self) -> Result<Response<v1::ListLandmarksResponse>, Status> {
        self.scheduler.wakes.fit.notify_one();
        self.scheduler.wakes.measure.notify_one();
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        Ok(Response::new(landmark_choice::list(&mut conn).await?))
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

fn contact_url(request: &v1::SetContactUrlRequest) -> Result<ContactUrl, InvalidField> {
    request.contact_url.parse().map_err(InvalidField::of("contact_url"))
}

impl From<DrainResult> for v1::DrainAgentResponse {
    fn from(DrainResult { withdrawn, leases, before }: DrainResult) -> Self {
        Self { withdrawn, leases, before }
    }
}

impl From<DrainResult> for v1::RemoveAgentResponse {
    fn from(DrainResult { withdrawn, leases, before }: DrainResult) -> Self {
        Self { withdrawn, leases, before }
    }
}
