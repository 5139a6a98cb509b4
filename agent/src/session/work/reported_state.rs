//! What the agent reports about its work: to the scheduler in heartbeats, and in metrics.

use landfall_proto::v1::{Heartbeat, HeldLease};

use super::agent_work::Work;
use crate::machine::clock;
use crate::metrics::WorkState;

impl Work {
    pub(in crate::session) fn heartbeat(&self, sequence: u64) -> Heartbeat {
        let disk = self.disks.fullest();
        Heartbeat {
            sequence,
            active_crawls: self.active_crawls(),
            paused: self.disks.paused().unwrap_or_default().to_owned(),
            free_slots: Some(u32::try_from(self.free_slots()).unwrap_or(u32::MAX)),
            outcomes_waiting: u32::try_from(self.outbox.len()).unwrap_or(u32::MAX),
            sent_at: Some(clock::wall().into()),
            disk_free_bytes: disk.map(|disk| disk.free),
            disk_size_bytes: disk.map(|disk| disk.size),
        }
    }

    /// Number of running crawls, including those that are being stopped.
    pub(in crate::session) fn active_crawls(&self) -> u32 {
        u32::try_from(self.running.len()).unwrap_or(u32::MAX)
    }

    /// The leases that this agent holds: those of running crawls and of unacknowledged outcomes.
    pub(in crate::session) fn held(&self) -> Vec<HeldLease> {
        self.running.unstopped().chain(self.outbox.keys()).map(HeldLease::from).collect()
    }

    pub(crate) fn state(&self) -> WorkState {
        WorkState {
            slots: self.capacity,
            leases: self.running.len(),
            outcomes_waiting: self.outbox.len(),
            paused: self.disks.paused().is_some(),
            disk: self.disks.fullest(),
        }
    }
}
