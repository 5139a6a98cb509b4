//! Collects what the checks of the demo compare with the database's record of the batch.

use std::time::Duration;

use super::elect_and_crawl::MAX_DEPTH;
use crate::cluster::Cluster;
use crate::evidence::batch_record::BatchRecord;
use crate::evidence::check::Evidence;
use crate::world::site_servers::Access;

/// Minimum time between two probes of a site, which is the scheduler's default.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The input of the checks, without the database's record of the batch. `with` adds this record,
/// and returns an [`Evidence`].
pub(super) struct CheckInput {
    pub(super) sites: Vec<String>,
    agents: Vec<String>,
    log: Vec<Access>,
}

pub(super) fn check_input(cluster: &Cluster) -> CheckInput {
    CheckInput { sites: cluster.site_names(), agents: cluster.agent_names(), log: cluster.world.log.entries() }
}

impl CheckInput {
    pub(super) fn with<'a>(&'a self, record: &'a BatchRecord, cluster: &'a Cluster) -> Evidence<'a> {
        Evidence {
            record,
            sites: &self.sites,
            agents: &self.agents,
            webs: &cluster.world.webs,
            log: &self.log,
            max_depth: MAX_DEPTH,
            probe_interval: cluster.world.probe_gap(PROBE_INTERVAL),
        }
    }
}
