//! Waits after the faults until all tasks have ended, or until no more of them end.

use std::time::{Duration, Instant};

use anyhow::Context;

use super::args::ChaosArgs;
use super::client::AcknowledgedSites;
use super::inject::Injector;
use super::record::Recorder;
use crate::chaos::judge::{self, Violation};
use crate::cluster::Cluster;

/// After the faults, the run fails if no task ends within this time plus ten session lifetimes.
const LEAST_PATIENCE: Duration = Duration::from_secs(60);
/// How often to check whether all tasks have ended. The interval is long, because each check reads
/// ten thousand tasks.
const REST: Duration = Duration::from_secs(1);

/// Waits until all tasks have ended, or until no task has ended for `patience`, and then judges the
/// run.
pub(super) async fn await_end(
    args: &ChaosArgs,
    cluster: &Cluster,
    injector: &Injector,
    recorder: &mut Recorder,
    acknowledged: &AcknowledgedSites,
    healed: Instant,
) -> anyhow::Result<Vec<Violation>> {
    let patience = LEAST_PATIENCE + 10 * Duration::from_micros(recorder.history.lifetime_us.unsigned_abs());
    let (mut last, mut moved) = (0, Instant::now());
    loop {
        let read = recorder.advance(cluster, injector.proxies(), &acknowledged.sites()).await;
        let done = ended(recorder);
        if done > last {
            (last, moved) = (done, Instant::now());
        }
        let all = read.is_ok() && done == recorder.history.tasks.len() && done >= usize::try_from(args.sites)?;
        if all || moved.elapsed() > patience {
            read.context("read the end of the run")?;
            recorder.close(&injector.done, healed);
            return Ok(judge::judge(&recorder.history));
        }
        tokio::time::sleep(REST).await;
    }
}

/// Number of tasks that have ended.
pub(super) fn ended(recorder: &Recorder) -> usize {
    let tasks = recorder.history.tasks.iter();
    tasks.filter(|task| matches!(task.state.as_str(), "done" | "failed" | "cancelled")).count()
}
