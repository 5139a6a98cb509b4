//! The two kinds of crawlers for leased sites: the agent's own crawler, and the operator's command.
//! Both kinds get a [`LeasedCrawl`], and their crawls end in the same ways.

use std::sync::Arc;

use landfall_proto::v1::CrawlCheckpoint;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::convert::leases;
use crate::crawl::{self, AddressPermits, CrawlEnd, CrawlStorage, ExternalCrawl, ExternalCrawler, Job, RobotsCache};
use crate::disk::crawl_files::CrawlFiles;
use crate::disk::lease_key::LeaseKey;
use crate::net::request_context::RequestContext;
use crate::warc::Store;

/// The crawl of a lease.
pub(super) struct LeasedCrawl {
    pub(super) key: LeaseKey,
    pub(super) job: Job,
    /// The checkpoint from which the crawl can resume; empty if there is none.
    pub(super) checkpoint: Vec<u8>,
    /// Whether the policy wants pages to be stored.
    pub(super) stores_pages: bool,
    pub(super) permits: AddressPermits,
    pub(super) context: Arc<RequestContext>,
    /// Cancelled when the scheduler preempts the lease.
    pub(super) preempted: CancellationToken,
}

pub(super) enum Crawler {
    Own(OwnCrawler),
    External(ExternalCrawler),
}

impl Crawler {
    /// Crawls until the crawl ends or `stop` is cancelled.
    pub(super) async fn crawl(&self, crawl: LeasedCrawl, stop: CancellationToken) -> CrawlEnd {
        match self {
            Self::Own(crawler) => crawler.crawl(crawl, stop).await,
            Self::External(crawler) => {
                let LeasedCrawl { key, job, stores_pages, permits, context, preempted, .. } = crawl;
                let crawl = ExternalCrawl { key, job, stores_pages, permits, context, preempted };
                crawler.crawl(crawl, &stop).await
            }
        }
    }

    /// Removes the files from which the crawl could resume. Call this after its outcome is stored.
    pub(super) async fn forget(&self, key: LeaseKey) {
        match self {
            Self::Own(crawler) => crawler.kept.forget(key).await,
            // An external crawl cannot resume, so there are no files to remove.
            Self::External(_) => {}
        }
    }
}

/// The agent's own crawler. This crawler resumes from its file or a checkpoint, and sends
/// checkpoints from which another agent can resume.
pub(super) struct OwnCrawler {
    pub(super) kept: CrawlFiles,
    pub(super) store: Option<Store>,
    pub(super) robots: Arc<RobotsCache>,
    pub(super) checkpoints: mpsc::Sender<CrawlCheckpoint>,
}

impl OwnCrawler {
    async fn crawl(&self, crawl: LeasedCrawl, stop: CancellationToken) -> CrawlEnd {
        let LeasedCrawl { key, job, checkpoint, stores_pages, permits, context, preempted } = crawl;
        let file = match self.kept.file_of(key).await {
            Ok(file) => file,
            Err(error) => return CrawlEnd::Broken(format!("the folder of crawls: {error}")),
        };
        let checkpoints = self.checkpoints.clone();
        let on_snapshot = Box::new(move |snapshot| {
            // Errors are ignored. If the channel is full, a later checkpoint replaces this one; if
            // it is closed, no checkpoint is needed.
            let _taken = checkpoints.try_send(leases::checkpoint(key, snapshot));
        });
        let store = self.store.as_ref().filter(|_| stores_pages);
        let storage = CrawlStorage {
            file: Some(file),
            checkpoint,
            on_snapshot: Some(on_snapshot),
            recorder: store.map(|store| store.recorder(&job.name, Some(key.task_id))),
            preempted,
            ..CrawlStorage::default()
        };
        crawl::run(job, storage, permits, context, Arc::clone(&self.robots), stop).await
    }
}
