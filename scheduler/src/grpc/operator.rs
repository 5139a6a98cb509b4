//! The gRPC services for operators, and the conversion of their messages to domain values and back.

use tokio_util::sync::CancellationToken;

use super::identity::Identity;
use crate::Scheduler;

mod agent_tags;
mod batch_removal;
mod batch_watch;
pub(super) mod convert;
pub(super) mod embeddings;
pub(super) mod events;
pub(super) mod fleet;
pub(super) mod named;
mod paging;
pub(crate) mod remaining_time;
pub(super) mod reports;
pub(super) mod sites;
pub(super) mod status;
mod submissions;
#[cfg(test)]
pub(super) mod tests;

/// The services. The dashboard, which runs in this process, calls them too.
#[derive(Debug, Clone)]
pub(crate) struct Desks {
    pub(crate) sites: sites::SiteDesk,
    pub(crate) status: status::StatusDesk,
    pub(crate) fleet: fleet::FleetDesk,
    pub(crate) embeddings: embeddings::EmbeddingDesk,
    pub(crate) events: events::EventDesk,
    pub(crate) reports: reports::ReportDesk,
}

impl Desks {
    /// Creates the services, whose streams end with `shutdown`. Agents that enrol get `identity`,
    /// with which they find and recognise the scheduler.
    pub(super) fn new(scheduler: &Scheduler, identity: &Identity, shutdown: &CancellationToken) -> Self {
        Self {
            sites: sites::SiteDesk::new(scheduler.clone(), shutdown.child_token()),
            status: status::StatusDesk::new(scheduler.clone(), identity),
            fleet: fleet::FleetDesk::new(scheduler.clone(), identity.clone()),
            embeddings: embeddings::EmbeddingDesk::new(scheduler.clone()),
            events: events::EventDesk::new(scheduler.clone(), shutdown.child_token()),
            reports: reports::ReportDesk::new(scheduler.clone()),
        }
    }
}
