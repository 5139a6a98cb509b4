//! The struct that implements the operators' gRPC services. The services for agents, landmarks,
//! sites and batches are implemented here: each call is passed on to the file of its subject. The
//! files `embeddings`, `events`, `reports` and `status` implement the other services.

use std::pin::Pin;

use futures_util::Stream;
use landfall_proto::v1;
use landfall_proto::v1::fleet_service_server::FleetService;
use landfall_proto::v1::site_service_server::SiteService;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::batches::cancel_retry_remove::{self, ChangeWatch};
use super::batches::list_show_watch::{self, BatchWatch};
use super::batches::submissions;
use super::capacity_plan::CapacityPlanner;
use super::settings::{self, Identity};
use super::{agents, enrolments, landmarks, named, sites};
use crate::Scheduler;
use crate::grpc::auth;

/// The operators' services. The dashboard, which runs in this process, calls them too.
#[derive(Debug, Clone)]
pub(crate) struct OperatorServices {
    pub(super) scheduler: Scheduler,
    pub(super) identity: Identity,
    pub(super) planner: CapacityPlanner,
    pub(super) shutdown: CancellationToken,
}

impl OperatorServices {
    /// Creates the services, whose streams end with `shutdown`. Agents that enrol get `identity`,
    /// with which they find and recognise the scheduler.
    pub(in crate::grpc) fn new(scheduler: Scheduler, identity: Identity, shutdown: CancellationToken) -> Self {
        Self { scheduler, identity, planner: CapacityPlanner::default(), shutdown }
    }
}

#[tonic::async_trait]
impl FleetService for OperatorServices {
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
        Ok(Response::new(agents::list(&self.scheduler, request.into_inner()).await?))
    }

    async fn show_agent(
        &self,
        request: Request<v1::ShowAgentRequest>,
    ) -> Result<Response<v1::ShowAgentResponse>, Status> {
        Ok(Response::new(agents::show(&self.scheduler, request.into_inner()).await?))
    }

    async fn show_reach(
        &self,
        request: Request<v1::ShowReachRequest>,
    ) -> Result<Response<v1::ShowReachResponse>, Status> {
        Ok(Response::new(agents::show_reach(&self.scheduler, request.into_inner()).await?))
    }

    async fn drain_agent(
        &self,
        request: Request<v1::DrainAgentRequest>,
    ) -> Result<Response<v1::DrainAgentResponse>, Status> {
        Ok(Response::new(agents::drain(&self.scheduler, request.into_inner()).await?))
    }

    async fn resume_agent(
        &self,
        request: Request<v1::ResumeAgentRequest>,
    ) -> Result<Response<v1::ResumeAgentResponse>, Status> {
        Ok(Response::new(agents::resume(&self.scheduler, request.into_inner()).await?))
    }

    async fn tag_agent(&self, request: Request<v1::TagAgentRequest>) -> Result<Response<v1::TagAgentResponse>, Status> {
        Ok(Response::new(agents::tag(&self.scheduler, request.into_inner()).await?))
    }

    async fn remove_agent(
        &self,
        request: Request<v1::RemoveAgentRequest>,
    ) -> Result<Response<v1::RemoveAgentResponse>, Status> {
        Ok(Response::new(agents::remove(&self.scheduler, request.into_inner()).await?))
    }

    async fn set_landmarks(
        &self,
        request: Request<v1::SetLandmarksRequest>,
    ) -> Result<Response<v1::ListLandmarksResponse>, Status> {
        Ok(Response::new(landmarks::set(&self.scheduler, request.into_inner()).await?))
    }

    async fn elect_landmarks(
        &self,
        request: Request<v1::ElectLandmarksRequest>,
    ) -> Result<Response<v1::ListLandmarksResponse>, Status> {
        Ok(Response::new(landmarks::elect(&self.scheduler, request.into_inner()).await?))
    }

    async fn list_landmarks(
        &self,
        _: Request<v1::ListLandmarksRequest>,
    ) -> Result<Response<v1::ListLandmarksResponse>, Status> {
        Ok(Response::new(landmarks::list(&self.scheduler).await?))
    }

    async fn trust_agent(
        &self,
        request: Request<v1::TrustAgentRequest>,
    ) -> Result<Response<v1::TrustAgentResponse>, Status> {
        Ok(Response::new(agents::trust(&self.scheduler, request.into_inner()).await?))
    }

    async fn replace_operator_token(
        &self,
        request: Request<v1::ReplaceOperatorTokenRequest>,
    ) -> Result<Response<v1::ReplaceOperatorTokenResponse>, Status> {
        let auth::Operator(presented) = auth::caller(&request)?;
        Ok(Response::new(settings::replace_operator_token(&self.scheduler, &presented, request.get_ref()).await?))
    }

    async fn set_contact_url(
        &self,
        request: Request<v1::SetContactUrlRequest>,
    ) -> Result<Response<v1::SetContactUrlResponse>, Status> {
        Ok(Response::new(settings::set_contact_url(&self.scheduler, request.get_ref()).await?))
    }

    async fn show_contact_url(
        &self,
        _: Request<v1::ShowContactUrlRequest>,
    ) -> Result<Response<v1::ShowContactUrlResponse>, Status> {
        Ok(Response::new(settings::show_contact_url(&self.scheduler).await?))
    }

    async fn show_scheduler(
        &self,
        _: Request<v1::ShowSchedulerRequest>,
    ) -> Result<Response<v1::ShowSchedulerResponse>, Status> {
        Ok(Response::new(v1::ShowSchedulerResponse { version: crate::VERSION.to_owned() }))
    }
}

#[tonic::async_trait]
impl SiteService for OperatorServices {
    type RemoveBatchStream = Pin<Box<dyn Stream<Item = Result<v1::RemoveBatchProgress, Status>> + Send>>;
    type WatchChangeStream = Pin<Box<dyn Stream<Item = Result<v1::BatchChange, Status>> + Send>>;
    type WatchBatchStream = Pin<Box<dyn Stream<Item = Result<v1::BatchProgress, Status>> + Send>>;

    async fn submit(
        &self,
        request: Request<Streaming<v1::SubmitRequest>>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        Ok(Response::new(submissions::submit(&self.scheduler, &self.shutdown, request.into_inner()).await?))
    }

    async fn watch_batch(
        &self,
        request: Request<v1::WatchBatchRequest>,
    ) -> Result<Response<Self::WatchBatchStream>, Status> {
        let mut conn = self.scheduler.operators.read("find a batch to watch").await?;
        let batch = named::batch(&mut conn, &request.get_ref().batch).await?;
        let watch = BatchWatch::new(self.scheduler.clone(), self.shutdown.clone(), batch.id, batch.name);
        Ok(Response::new(Box::pin(watch.messages())))
    }

    async fn cancel_tasks(
        &self,
        request: Request<v1::CancelTasksRequest>,
    ) -> Result<Response<v1::CancelTasksResponse>, Status> {
        Ok(Response::new(cancel_retry_remove::cancel(&self.scheduler, request.into_inner()).await?))
    }

    async fn retry_tasks(
        &self,
        request: Request<v1::RetryTasksRequest>,
    ) -> Result<Response<v1::RetryTasksResponse>, Status> {
        Ok(Response::new(cancel_retry_remove::retry(&self.scheduler, request.into_inner()).await?))
    }

    async fn list_open_circuits(
        &self,
        request: Request<v1::ListOpenCircuitsRequest>,
    ) -> Result<Response<v1::ListOpenCircuitsResponse>, Status> {
        Ok(Response::new(sites::list_open_circuits(&self.scheduler, request.into_inner()).await?))
    }

    async fn reopen_sites(
        &self,
        request: Request<v1::ReopenSitesRequest>,
    ) -> Result<Response<v1::ReopenSitesResponse>, Status> {
        Ok(Response::new(sites::reopen(&self.scheduler, request.into_inner()).await?))
    }

    async fn remove_batch(
        &self,
        request: Request<v1::RemoveBatchRequest>,
    ) -> Result<Response<Self::RemoveBatchStream>, Status> {
        let v1::RemoveBatchRequest { batch, cancel } = request.into_inner();
        let watch = ChangeWatch::removal(self.scheduler.clone(), self.shutdown.clone(), &batch, cancel).await?;
        Ok(Response::new(Box::pin(watch.messages())))
    }

    async fn watch_change(
        &self,
        request: Request<v1::WatchChangeRequest>,
    ) -> Result<Response<Self::WatchChangeStream>, Status> {
        let batch = request.into_inner().batch;
        let watch = ChangeWatch::newest(self.scheduler.clone(), self.shutdown.clone(), &batch).await?;
        Ok(Response::new(Box::pin(watch.messages())))
    }

    async fn list_batches(
        &self,
        request: Request<v1::ListBatchesRequest>,
    ) -> Result<Response<v1::ListBatchesResponse>, Status> {
        Ok(Response::new(list_show_watch::list(&self.scheduler, request.into_inner()).await?))
    }

    async fn show_batch(
        &self,
        request: Request<v1::ShowBatchRequest>,
    ) -> Result<Response<v1::ShowBatchResponse>, Status> {
        Ok(Response::new(list_show_watch::show(&self.scheduler, request.into_inner()).await?))
    }

    async fn show_site(&self, request: Request<v1::ShowSiteRequest>) -> Result<Response<v1::ShowSiteResponse>, Status> {
        Ok(Response::new(sites::show(&self.scheduler, request.into_inner()).await?))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        Ok(Response::new(sites::explain(&self.scheduler, request.into_inner()).await?))
    }
}
