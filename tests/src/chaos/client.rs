//! The client in a run of `lab chaos`. It submits each list of sites repeatedly until a scheduler
//! acknowledges the list, and records the sites of acknowledged lists. The first half of the sites
//! is surveyed: it is submitted and measured before the faults begin.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::process::Command;
use tokio::sync::Notify;

use crate::cluster::Cluster;

pub const BATCH: &str = "chaos";
/// Time between two attempts to submit a list.
const REST: Duration = Duration::from_millis(300);
/// Time limit of one attempt.
const PATIENCE: Duration = Duration::from_secs(30);

/// The acknowledged sites, and the number of acknowledged lists. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct AcknowledgedSites {
    sites: Arc<Mutex<Vec<String>>>,
    lists: Arc<AtomicUsize>,
}

impl AcknowledgedSites {
    pub fn sites(&self) -> Vec<String> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn lists(&self) -> usize {
        self.lists.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub struct Client {
    lists: Vec<(Vec<String>, PathBuf)>,
    binary: PathBuf,
    data_dirs: Vec<PathBuf>,
    request_interval: String,
    acknowledged: AcknowledgedSites,
}

impl Client {
    /// Divides the sites into lists, and writes each list to a file. The first list has half of the
    /// sites, and `others` lists have the other half.
    pub fn new(cluster: &Cluster, others: usize, request_interval: &str) -> anyhow::Result<Self> {
        let sites = cluster.site_names();
        let (first, rest) = sites.split_at(sites.len().div_ceil(2));
        let each = rest.len().div_ceil(others.max(1)).max(1);
        let mut lists = Vec::new();
        for (number, part) in std::iter::once(first).chain(rest.chunks(each)).enumerate() {
            let file = cluster.folder().join(format!("list-{number}.txt"));
            std::fs::write(&file, part.join("\n")).with_context(|| format!("write {}", file.display()))?;
            lists.push((part.to_vec(), file));
        }
        let data_dirs = cluster.schedulers.iter().map(|scheduler| scheduler.data_dir().to_owned()).collect();
        Ok(Self {
            lists,
            binary: cluster.binary(),
            data_dirs,
            request_interval: request_interval.to_owned(),
            acknowledged: AcknowledgedSites::default(),
        })
    }

    pub fn acknowledged(&self) -> AcknowledgedSites {
        self.acknowledged.clone()
    }

    pub fn lists(&self) -> usize {
        self.lists.len()
    }

    /// Submits a list to the schedulers in turn until one acknowledges it.
    pub async fn submit(&self, list: usize) {
        let Some((sites, file)) = self.lists.get(list) else { return };
        for attempt in list.. {
            let mut command = Command::new(&self.binary);
            command.arg("--data-dir").arg(&self.data_dirs[attempt % self.data_dirs.len()]);
            command.args(["sites", "submit"]).arg(file).args([
                "--batch",
                BATCH,
                "--request-interval",
                &self.request_interval,
            ]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
            let ended = tokio::time::timeout(PATIENCE, command.status()).await;
            if ended.is_ok_and(|status| status.is_ok_and(|status| status.success())) {
                break;
            }
            tokio::time::sleep(REST).await;
        }
        self.acknowledged.sites.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(sites);
        self.acknowledged.lists.fetch_add(1, Ordering::Relaxed);
    }

    /// Submits all lists except the first, one for each signal from `next`.
    pub async fn submit_rest(self, next: Arc<Notify>) {
        for list in 1..self.lists.len() {
            next.notified().await;
            self.submit(list).await;
        }
    }
}

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
