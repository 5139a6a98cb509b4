//! Elects landmarks, submits the sites, and waits until the batch has ended.

use std::time::Duration;

use anyhow::{Context, ensure};

use super::args::DemoArgs;
use super::progress::Stages;
use crate::cluster::Cluster;

/// The name of the demo's batch.
pub(super) const BATCH: &str = "demo";
/// Time between two requests of a crawl to a site. A time this short is acceptable only because the
/// lab owns the sites.
const REQUEST_INTERVAL: &str = "250ms";
/// Maximum number of links from the start page to a crawled page.
pub(super) const MAX_DEPTH: u32 = 8;
/// Minimum number of agents for electing landmarks. In a smaller fleet, the demo elects no
/// landmarks.
const FLEET_WITH_LANDMARKS: usize = 10;
const MESH_PATIENCE: Duration = Duration::from_secs(120);
const PAIRS: &str = "select count(*) from mesh_measurements";
const ENDED: &str = "select count(*) from tasks where state in ('done', 'failed')";

/// Elects landmarks, submits the sites, and waits until the batch has ended.
pub(super) async fn elect_and_crawl(args: &DemoArgs, cluster: &mut Cluster, stages: &mut Stages) -> anyhow::Result<()> {
    let pool = cluster.pool.clone();
    let (agents, sites) = (cluster.world.scenario().agents.len(), cluster.world.scenario().sites.len());
    if agents >= FLEET_WITH_LANDMARKS {
        let pairs = agents * (agents - 1);
        stages
            .follow(
                "round trips between agents measured",
                (pool.clone(), PAIRS, pairs),
                cluster.await_mesh(MESH_PATIENCE),
            )
            .await?;
        let count = args.landmarks.to_string();
        let dims = args.dims.map(|dims| dims.to_string());
        let mut elect = vec!["landmarks", "elect", "--count", &count];
        if let Some(dims) = &dims {
            elect.extend(["--dims", dims]);
        }
        let elected = cluster.operate(&elect).await?;
        stages.done(&format!("{count} of the agents elected as landmarks"));
        if args.verbose {
            print!("{elected}");
        }
    }
    let list = cluster.write_site_list()?;
    let mut submit = cluster.landfall();
    submit.args(["sites", "submit"]).arg(&list).args([
        "--batch",
        BATCH,
        "--watch",
        "--strategy",
        &args.strategy.to_string(),
    ]);
    submit.args(["--request-interval", REQUEST_INTERVAL, "--max-depth", &MAX_DEPTH.to_string()]);
    let crawling = async {
        let output = submit.output().await.context("run landfall sites submit")?;
        // Exit code 3 means that the crawls of some sites failed, which the checks judge later.
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            matches!(output.status.code(), Some(0 | 3)),
            "landfall sites submit ended with {}: {}",
            output.status,
            said.trim()
        );
        Ok(())
    };
    stages.follow(&format!("{sites} sites measured, located and crawled"), (pool, ENDED, sites), crawling).await
}
