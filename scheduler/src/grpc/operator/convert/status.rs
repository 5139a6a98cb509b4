//! Converts the state of the whole system to a message of the protocol.

use landfall_proto::v1;

use crate::status::{
    Attention, BatchStatus, DatabaseStatus, DiskSpace, FleetSummary, LandmarkStatus, MapStatus, SchedulerStatus, Status,
};

use super::{count, duration, timestamp};

impl From<Status> for v1::ShowStatusResponse {
    /// Makes the response without the URL of the answering scheduler, and without the problems that
    /// need attention.
    fn from(status: Status) -> Self {
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
        Self { version: database.version, size_bytes: database.size }
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
