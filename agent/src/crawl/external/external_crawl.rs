//! One crawl by the operator's command: its lease, its target, and when it started.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::crawl::fetch::site_address::AddressPermits;
use crate::crawl::job::Job;
use crate::disk::lease_key::LeaseKey;
use crate::net::origin::Origin;
use crate::net::request_context::RequestContext;

/// A leased crawl for an [`super::ExternalCrawler`].
#[derive(Debug)]
pub struct ExternalCrawl {
    pub(crate) key: LeaseKey,
    pub(crate) job: Job,
    /// Whether the policy requires pages to be stored.
    pub(crate) stores_pages: bool,
    pub(crate) permits: AddressPermits,
    pub(crate) context: Arc<RequestContext>,
    /// Cancelled when the scheduler wants the lease back for another agent.
    pub(crate) preempted: CancellationToken,
}

/// When a crawl started, by the wall clock and by the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Started {
    pub(super) at: SystemTime,
    pub(super) began: Instant,
}

/// What the command crawls, and until when.
#[derive(Debug)]
pub(super) struct Target<'a> {
    pub(super) origin: &'a Origin,
    /// The site's address, to which the scheduler permits requests.
    pub(super) address: IpAddr,
    pub(super) started: Started,
    pub(super) deadline: Instant,
}

impl Target<'_> {
    /// The deadline as wall-clock time.
    pub(super) fn deadline_at(&self) -> SystemTime {
        let Started { at, began } = self.started;
        at.checked_add(self.deadline - began).unwrap_or(at)
    }
}
