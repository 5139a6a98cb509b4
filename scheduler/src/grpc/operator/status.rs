//! Implements the operators' gRPC service that shows the state of the whole system.

use std::time::Duration;

use futures_util::future::join_all;
use landfall_proto::v1;
use landfall_proto::v1::status_service_server::StatusService;
use tonic::{Request, Response, Status};

use super::batches::facts::{self, STATUS_PATIENCE};
use super::convert::{InvalidField, count, duration, timestamp};
use super::services::OperatorServices;
use crate::Scheduler;
use crate::status::{
    Attention, BatchStatus, DatabaseStatus, DiskSpace, FleetSummary, LandmarkStatus, MapStatus, SchedulerStatus,
    Status as SystemStatus, attention,
};
use crate::store::reports::status;

/// Default and maximum number of batches shown.
const BATCHES: u32 = 20;
const MOST_BATCHES: u32 = 1_000;

impl OperatorServices {
    /// The state of the system, with at most `batches` batches, shared by all callers who accept its
    /// age. The batches have no estimates.
    async fn shared_status(&self, batches: u32, max_age: Duration) -> Result<SystemStatus, Status> {
        let read = || {
            let scheduler = self.scheduler.clone();
            async move {
                let mut tx = scheduler.operators.snapshot("show the status").await?;
                Ok(status::read(&mut tx, batches).await?)
            }
        };
        let Scheduler { answers, wakes, .. } = &self.scheduler;
        answers.status.ask(wakes, batches, |_| max_age, read).await
    }

    /// The state of the system without estimates, at most `max_age` old.
    pub(crate) async fn read_status(&self, batches: u32, max_age: Duration) -> Result<v1::ShowStatusResponse, Status> {
        Ok(self.status_message(self.shared_status(batches, max_age).await?))
    }

    fn status_message(&self, mut status: SystemStatus) -> v1::ShowStatusResponse {
        // A scheduler that answers runs, even if it could not renew its row in time.
        let answering = status.schedulers.iter_mut().find(|one| one.url == self.identity.scheduler_url);
        answering.into_iter().for_each(|one| one.running = true);
        let attention = attention(&status);
        let response = v1::ShowStatusResponse::from(status);
        let attention = attention.into_iter().map(Into::into).collect();
        let answering_url = self.identity.scheduler_url.clone();
        v1::ShowStatusResponse { answering_url, attention, ..response }
    }
}

#[tonic::async_trait]
impl StatusService for OperatorServices {
    async fn show_status(
        &self,
        request: Request<v1::ShowStatusRequest>,
    ) -> Result<Response<v1::ShowStatusResponse>, Status> {
        let batches = match request.get_ref().batches {
            0 => BATCHES,
            batches @ 1..=MOST_BATCHES => batches,
            _ => return Err(InvalidField::new("batches", format!("must be at most {MOST_BATCHES}")).into()),
        };
        let mut status = self.shared_status(batches, Duration::ZERO).await?;
        let estimates = status.batches.iter().map(|batch| facts::estimate(&self.scheduler, batch.id, STATUS_PATIENCE));
        let estimates = join_all(estimates).await;
        for (batch, estimate) in status.batches.iter_mut().zip(estimates) {
            batch.estimate = estimate;
        }
        Ok(Response::new(self.status_message(status)))
    }
}

impl From<SystemStatus> for v1::ShowStatusResponse {
    /// Makes the response without the URL of the answering scheduler, and without the problems that
    /// need attention.
    fn from(status: SystemStatus) -> Self {
        Self {
            now: Some(timestamp(status.now)),
            answering_url: String::new(),
            schedulers: status.schedulers.into_iter().map(Into::into).collect(),
            database: Some(status.database.into()),
            fleet: Some(fleet(FleetSummary::of(&status.agents), status.open_enrolments)),
            landmarks: Some(landmarks(&status.landmarks)),
            map: status.map.map(Into::into),
            batches: status.batches.into_iter().map(Into::into).collect(),
            more_batches: status.more_batches,
            attention: Vec::new(),
        }
    }
}

fn fleet(FleetSummary { agents, slots, leases }: FleetSummary, open_enrolments: u64) -> v1::FleetStatus {
    let agents = agents
        .into_iter()
        .map(|(service, agents)| v1::AgentCount { service: v1::ServiceState::from(service).into(), agents })
        .collect();
    v1::FleetStatus { agents, slots, leases, open_enrolments }
}

fn landmarks(landmarks: &[LandmarkStatus]) -> v1::LandmarksStatus {
    v1::LandmarksStatus {
        landmarks: count(landmarks.len()),
        connected: count(landmarks.iter().filter(|landmark| landmark.away_for.is_none()).count()),
        by_hand: count(landmarks.iter().filter(|landmark| landmark.by_hand).count()),
    }
}

impl From<SchedulerStatus> for v1::SchedulerStatus {
    fn from(scheduler: SchedulerStatus) -> Self {
        Self {
            url: scheduler.url,
            version: scheduler.version,
            started_at: Some(timestamp(scheduler.started_at)),
            running: scheduler.running,
            roles: scheduler.roles,
            disk: scheduler.disk.map(Into::into),
        }
    }
}

impl From<DiskSpace> for v1::DiskSpace {
    fn from(disk: DiskSpace) -> Self {
        Self { free_bytes: disk.free, size_bytes: disk.size }
    }
}

impl From<DatabaseStatus> for v1::DatabaseStatus {
    fn from(database: DatabaseStatus) -> Self {
        let DatabaseStatus { version, size, read_only } = database;
        Self { version, size_bytes: size, read_only }
    }
}

impl From<MapStatus> for v1::MapStatus {
    fn from(map: MapStatus) -> Self {
        let MapStatus { epoch, fitted_at, error, agents, landmarks, dimensions } = map;
        Self { epoch, fitted_at: Some(timestamp(fitted_at)), error, agents, landmarks, dimensions }
    }
}

impl From<BatchStatus> for v1::BatchStatus {
    fn from(batch: BatchStatus) -> Self {
        Self {
            name: batch.name,
            strategy: batch.strategy.to_string(),
            sites: batch.sites,
            ended: batch.ended,
            failed: batch.failed,
            crawling: batch.crawling,
            unmet: batch.unmet,
            sites_per_minute: batch.sites_per_minute,
            megabytes_per_minute: batch.megabytes_per_minute,
            estimate: batch.estimate.map(Into::into),
            idle: Some(duration(batch.idle)),
        }
    }
}

impl From<Attention> for v1::Attention {
    fn from(attention: Attention) -> Self {
        let Attention { kind, urgent, count, message, command } = attention;
        Self { kind: v1::AttentionKind::from(kind).into(), urgent, count, message, command }
    }
}
