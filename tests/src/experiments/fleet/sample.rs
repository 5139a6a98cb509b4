//! The totals of a fleet's processes at one moment: processor time, memory, messages and ended
//! crawls.

use std::time::Instant;

use anyhow::Context;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::cluster::Cluster;
use crate::evidence::machine::{CpuTime, family_processor_s, postmaster, processor_s, resident_memory};

/// The environment variable that sets the address of an agent's metrics.
pub(super) const METRICS: &str = "LANDFALL_AGENT_METRICS";

/// One agent's totals since its start.
#[derive(Debug, Clone, Copy)]
pub(super) struct AgentSample {
    pub(super) processor_s: f64,
    /// The agent's memory at the time of the sample, in bytes.
    pub(super) memory: f64,
    /// Number of messages of the agent's sessions, in both directions.
    pub(super) messages: f64,
    /// Number of lookups of names, including lookups in the cache.
    pub(super) lookups: f64,
}

#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) machine: Option<CpuTime>,
    /// Number of crawls that have ended.
    pub(super) crawls: i64,
    pub(super) scheduler_s: f64,
    pub(super) postgres_s: f64,
    /// The scheduler's memory in bytes, without Postgres.
    pub(super) scheduler_memory: f64,
    /// The running agents.
    pub(super) agents: Vec<AgentSample>,
}

impl Sample {
    pub(super) async fn take(cluster: &Cluster) -> anyhow::Result<Self> {
        let (scheduler, pids) = cluster.pids();
        let scheduler = scheduler.context("the scheduler runs")?;
        let postmaster = postmaster(&cluster.postgres_cluster()).context("Postgres runs")?;
        let mut agents = Vec::with_capacity(pids.len());
        for (index, pid) in pids.into_iter().enumerate() {
            let addresses = cluster.environment.get(&index).context("an agent with metrics")?;
            let (_, address) = addresses.first().context("an agent with metrics")?;
            let metrics = scrape(address).await.with_context(|| format!("read the metrics at {address}"))?;
            agents.push(AgentSample {
                processor_s: processor_s(pid)?.0,
                memory: bytes(resident_memory(pid))?,
                messages: sum(&metrics, "landfall_agent_session_messages_total"),
                lookups: sum(&metrics, "landfall_agent_dns_lookups_total"),
            });
        }
        let crawls = sqlx::query_scalar("select count(*) from outcomes").fetch_one(&cluster.pool).await;
        Ok(Self {
            at: Instant::now(),
            machine: CpuTime::now(),
            crawls: crawls.context("count the outcomes")?,
            scheduler_s: processor_s(scheduler)?.0,
            postgres_s: family_processor_s(postmaster)?,
            scheduler_memory: bytes(resident_memory(scheduler))?,
            agents,
        })
    }
}

fn bytes(memory: Option<u64>) -> anyhow::Result<f64> {
    let kib = memory.context("the process has ended")? / 1024;
    Ok(f64::from(u32::try_from(kib).context("memory")?) * 1024.0)
}

async fn scrape(address: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

/// The sum of a metric over the values of its label.
fn sum(text: &str, metric: &str) -> f64 {
    let values = text.lines().filter_map(|line| line.strip_prefix(metric)?.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_label() {
        let text = "# HELP m_total Of it.\nm_total{a=\"x\"} 2\nm_total{a=\"y\"} 3\nother_total 9\n";
        assert_eq!((sum(text, "m_total"), sum(text, "none")), (5.0, 0.0));
    }
}
