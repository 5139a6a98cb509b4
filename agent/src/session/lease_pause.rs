//! Decides from the agent's disks whether the agent takes leases, and why it takes none. Chooses
//! the disk whose free space heartbeats report.

use std::path::Path;

use crate::crawl::ExternalCrawler;
use crate::disk::outbox::Outbox;
use crate::machine::free_space::{DiskSpace, FullestDisk, LimitedDisk};
use crate::warc::Store;

/// The disks of the outbox, of the store, and of the external crawler's output.
#[derive(Debug)]
pub(super) struct AgentDisks {
    /// Why the agent takes no lease, according to the last check of the disks; `None` if it takes
    /// leases.
    paused: Option<String>,
    /// The disk of the external crawler's output.
    output: Option<LimitedDisk>,
    /// The fullest of the disks. Heartbeats report it.
    fullest: FullestDisk,
}

impl AgentDisks {
    pub(super) fn of(outbox: &Outbox, store: Option<&Store>, external: Option<&ExternalCrawler>) -> Self {
        let stores = store.into_iter().map(Store::folder).chain(external.map(ExternalCrawler::folder));
        let folders: Vec<_> = stores.chain([outbox.folder()]).map(Path::to_owned).collect();
        Self { paused: None, output: external.map(ExternalCrawler::disk), fullest: FullestDisk::of(folders) }
    }

    /// Why the agent takes no lease, in one sentence; `None` if it takes leases.
    pub(super) fn paused(&self) -> Option<&str> {
        self.paused.as_deref()
    }

    /// The free space of the fullest disk; `None` if no disk could be read.
    pub(super) fn fullest(&self) -> Option<DiskSpace> {
        self.fullest.newest()
    }

    /// Starts to check the free space, without waiting for the disks. Returns `true` if the results
    /// so far change whether the agent takes leases.
    pub(super) fn check(&mut self, outbox: &mut Outbox, store: Option<&Store>) -> bool {
        outbox.check_space();
        self.output.iter_mut().for_each(LimitedDisk::begin);
        self.fullest.begin();
        self.note_space(outbox, store)
    }

    /// Waits for the end of the current check of the external crawler's disk. If no check is
    /// running, waits forever. Cancel-safe.
    pub(super) async fn output_checked(&mut self) {
        LimitedDisk::one_ended(self.output.as_mut()).await;
    }

    /// Updates whether the agent takes leases. Returns `true` if that changes.
    pub(super) fn note_space(&mut self, outbox: &mut Outbox, store: Option<&Store>) -> bool {
        let output = || self.output.as_mut().and_then(LimitedDisk::paused);
        let paused = outbox.paused().or_else(output).or_else(|| store.and_then(Store::paused));
        let changed = paused.is_some() != self.paused.is_some();
        match &paused {
            Some(reason) if changed => tracing::warn!(reason, "crawling pauses"),
            None if changed => tracing::info!("crawling resumes"),
            _ => {}
        }
        self.paused = paused;
        changed
    }
}
