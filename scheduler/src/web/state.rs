//! The struct `Web` holds the data that all handlers share.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::page_cache::KeptPages;
use super::pages::map::distance_errors::EpochErrors;
use crate::Scheduler;
use crate::grpc::Desks;

/// The data that all handlers share. Clones are cheap.
#[derive(Debug, Clone)]
pub(crate) struct Web {
    pub(super) scheduler: Scheduler,
    pub(super) desks: Desks,
    /// Whether browsers connect over TLS. Without TLS, the scheduler listens on loopback only.
    pub(super) tls: bool,
    pub(super) kept: Arc<KeptPages>,
    /// The most recently computed errors of the map.
    pub(super) map_errors: Arc<Mutex<Option<EpochErrors>>>,
    pub(super) shutdown: CancellationToken,
}

impl Web {
    pub(crate) fn new(scheduler: Scheduler, desks: Desks, tls: bool, shutdown: CancellationToken) -> Self {
        Self { scheduler, desks, tls, kept: Arc::default(), map_errors: Arc::default(), shutdown }
    }
}
