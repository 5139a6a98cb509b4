//! Submits and measures the first half of the sites before the faults begin.

use std::time::Duration;

use super::client::Client;
use crate::cluster::Cluster;

/// Time limit for measuring the first half of the sites.
const SURVEY_PATIENCE: Duration = Duration::from_secs(600);

/// Submits and measures the first half of the sites, so that there is work when the faults begin.
/// The other half is submitted and measured during the faults. All agents are drained while the
/// first half is measured, so that none of its sites is crawled before all are located.
pub(super) async fn survey(cluster: &mut Cluster, client: &Client, sites: usize) -> anyhow::Result<()> {
    let names = cluster.agent_names();
    for name in &names {
        cluster.operate(&["agents", "drain", name]).await?;
    }
    client.submit(0).await;
    let located = "select count(*) from tasks where state = 'located'";
    cluster.await_count("the first sites to be measured", located, sites, SURVEY_PATIENCE).await?;
    for name in &names {
        cluster.operate(&["agents", "resume", name]).await?;
    }
    Ok(())
}
