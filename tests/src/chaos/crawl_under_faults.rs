//! Injects the faults while the client submits further lists of sites, and checks the rules of
//! safety every few seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::args::{ChaosArgs, Format};
use super::await_end::{await_end, ended};
use super::client::{AcknowledgedSites, Client};
use super::inject::Injector;
use super::record::Recorder;
use crate::chaos::judge::{self, Violation};
use crate::cluster::Cluster;

/// Time between two checks of the safety rules during the run.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// Injects faults while the client submits lists of sites. After the last fault, the function waits
/// until all tasks have ended.
pub(super) async fn crawl_under_faults(
    args: &ChaosArgs,
    cluster: &mut Cluster,
    client: Client,
    injector: &mut Injector,
    recorder: &mut Recorder,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<Vec<Violation>> {
    let (lists, acknowledged) = (client.lists(), client.acknowledged());
    let next = Arc::new(Notify::new());
    tasks.spawn(shutdown.clone().run_until_cancelled_owned(client.submit_rest(Arc::clone(&next))));
    let mut next_check = Instant::now() + CHECK_EVERY;
    let mut shown = 0;
    while !injector.is_over() || acknowledged.lists() < lists {
        let wake = injector.step(cluster).await?;
        // Submit lists in proportion to the number of faults that have begun, so that there is
        // always work. After the last fault, submit all remaining lists.
        let wanted = if injector.is_over() {
            lists
        } else {
            injector.begun() * lists / usize::try_from(args.faults)?.max(1) + 1
        };
        if acknowledged.lists() < wanted.min(lists) {
            next.notify_one();
        }
        if Instant::now() >= next_check && !injector.database_suffers(cluster) {
            next_check = Instant::now() + CHECK_EVERY;
            let violations = check_safety(cluster, injector, recorder, &acknowledged).await;
            if !violations.is_empty() {
                injector.cut_short();
                recorder.close(&injector.done, Instant::now());
                return Ok(violations);
            }
            if args.format == Format::Table && injector.begun() >= shown + 50 {
                shown = injector.begun();
                println!("  {shown} faults, {} sites submitted, {} done", acknowledged.sites().len(), ended(recorder));
            }
        }
        tokio::time::sleep_until(wake.into()).await;
    }
    injector.settle().await?;
    let healed = Instant::now();
    await_end(args, cluster, injector, recorder, &acknowledged, healed).await
}

/// Reads new events, and checks the safety rules. If reading fails, the result is empty, because a
/// fault may have stopped the database.
async fn check_safety(
    cluster: &Cluster,
    injector: &Injector,
    recorder: &mut Recorder,
    acknowledged: &AcknowledgedSites,
) -> Vec<Violation> {
    match recorder.advance(cluster, injector.proxies(), &acknowledged.sites()).await {
        Ok(()) => judge::safety(&recorder.history),
        Err(error) => {
            tracing::debug!(error = format!("{error:#}"), "the record waits for the database");
            Vec::new()
        }
    }
}
