//! `lab scheduling`: measures how long sites wait for an agent, and how many probes they get. It
//! compares two cases: only landmarks measure the sites, or all agents do. It also compares round
//! trips by ping (ICMP) with round trips by httping (HTTP requests).
//!
//! The paper argues that landmarks shorten the time from submission to assignment, and that many
//! sites do not answer a ping. The paper measures neither. The real binaries run in the paper's
//! layout, with the default pauses between probes of a site.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use landfall_scheduler::model::stats::{median, quantile};
use sqlx::PgPool;

use crate::cluster::process::interrupted;
use crate::cluster::{Cluster, ClusterOptions};
use crate::evidence::table::text_table;
use crate::world::layout::{Layout, PAPER};
use crate::world::{Grade, World};

const BATCH: &str = "scheduling";
const PATIENCE: Duration = Duration::from_secs(900);
/// Time between two requests of a crawl. It is long, because crawls are not part of the experiment.
const REQUEST_INTERVAL: &str = "10s";

/// Arguments of `lab scheduling`.
#[derive(Debug, Clone, Args)]
pub struct SchedulingArgs {
    /// What carries the packets: rootless, or tun, which takes root; only tun carries pings
    #[arg(long, value_enum, default_value_t = Grade::Rootless)]
    grade: Grade,
    /// Sites
    #[arg(long, value_name = "N", default_value_t = 203, value_parser = clap::value_parser!(u16).range(1..=2000))]
    sites: u16,
    /// Draws the sites
    #[arg(long, value_name = "N", default_value_t = 2011)]
    seed: u64,
}

/// A way to measure the sites.
struct Contender {
    name: &'static str,
    /// Number of agents that measure every site.
    probers: usize,
    /// The scheduler's setting `measure.metric`.
    metric: &'static str,
}

const CONTENDERS: [Contender; 3] = [
    Contender { name: "9 landmarks", probers: 9, metric: "ttfb" },
    Contender { name: "all agents", probers: 30, metric: "ttfb" },
    Contender { name: "9 landmarks, ping", probers: 9, metric: "icmp" },
];

/// The measured round trips in milliseconds, by the names of the agent and of the site. `None` if
/// no sample was answered.
type RoundTrips = BTreeMap<(String, String), Option<f64>>;

struct Measured {
    /// Seconds from submission to the first assignment of each site, in ascending order.
    waits_s: Vec<f64>,
    samples: i64,
    requests: i64,
    round_trips: RoundTrips,
}

/// Runs the contenders one after the other, and prints their results.
pub async fn scheduling(args: SchedulingArgs) -> anyhow::Result<()> {
    let header = [
        "measured by",
        "seconds to an agent: median",
        "last site",
        "samples",
        "requests",
        "error of round trips: median",
        "95 %",
        "without answer",
    ];
    let mut rows = Vec::new();
    let mut by_http = RoundTrips::new();
    let mut lines = Vec::new();
    for contender in CONTENDERS {
        if contender.metric == "icmp" && args.grade != Grade::Tun {
            lines.push(format!("{}: left out, because only --grade tun carries pings", contender.name));
            continue;
        }
        eprintln!("{}", contender.name);
        let (measured, errors) = tokio::select! {
            ran = one(&args, &contender) => ran.with_context(|| contender.name)?,
            () = interrupted() => bail!("interrupted"),
        };
        let percent =
            |share: f64| quantile(&errors, share).map_or("-".to_owned(), |error| format!("{:.1} %", error * 100.0));
        let silent = measured.round_trips.values().filter(|rtt| rtt.is_none()).count();
        rows.push(vec![
            contender.name.to_owned(),
            median(measured.waits_s.clone()).map_or("-".to_owned(), |wait| format!("{wait:.1}")),
            measured.waits_s.last().map_or("-".to_owned(), |wait| format!("{wait:.1}")),
            measured.samples.to_string(),
            measured.requests.to_string(),
            percent(0.5),
            percent(0.95),
            format!("{silent} of {}", measured.round_trips.len()),
        ]);
        if contender.metric == "icmp" {
            lines.extend(agreement(&by_http, &measured.round_trips));
        } else {
            by_http.extend(measured.round_trips);
        }
    }
    print!("{}", text_table(&header, &rows));
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Compares the round trips by ping and by httping of each pair of agent and site.
fn agreement(http: &RoundTrips, ping: &RoundTrips) -> Option<String> {
    let ratio = |(pair, ping): (&(String, String), &Option<f64>)| Some((*ping)? / (*http.get(pair)?)?);
    let mut ratios: Vec<f64> = ping.iter().filter_map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |share| quantile(&ratios, share);
    let (low, middle, high) = (at(0.05)?, at(0.5)?, at(0.95)?);
    let pairs = ratios.len();
    Some(format!("ping / httping in {pairs} pairs measured by both: 5 % {low:.3}, median {middle:.3}, 95 % {high:.3}"))
}

/// Runs one contender. Returns also the relative errors of its round trips, in ascending order.
async fn one(args: &SchedulingArgs, contender: &Contender) -> anyhow::Result<(Measured, Vec<f64>)> {
    let mut layout = Layout::parse(PAPER, "paper.toml")?;
    layout.seed = args.seed;
    let world = World::start_on(args.grade, layout.scenario(None, Some(usize::from(args.sites)))?).await?;
    let scheduler = format!("[measure]\nmesh_interval = '100ms'\nmetric = '{}'\n", contender.metric);
    let options = ClusterOptions { scheduler, capacity: 32, logs: None, sharing: 0 };
    let mut cluster = Cluster::start(world, &options).await?;
    let ran = measure(&mut cluster, contender).await;
    let errors = ran.as_ref().map(|measured| errors(&cluster, &measured.round_trips)).unwrap_or_default();
    let stopped = cluster.stop().await;
    let measured = ran?;
    stopped?;
    Ok((measured, errors))
}

async fn measure(cluster: &mut Cluster, contender: &Contender) -> anyhow::Result<Measured> {
    cluster.await_mesh(PATIENCE).await?;
    cluster.operate(&["landmarks", "elect", "--count", &contender.probers.to_string()]).await?;
    let list = cluster.write_site_list()?;
    let list = list.to_str().context("the site list's path is text")?;
    let submit = ["sites", "submit", list, "--batch", BATCH, "--request-interval", REQUEST_INTERVAL];
    cluster.operate(&submit).await?;
    let assigned = "select count(distinct task_id) from assignments";
    let sites = cluster.world.scenario().sites.len();
    cluster.await_count("every site to be assigned", assigned, sites, PATIENCE).await?;
    read(&cluster.pool, sites).await
}

async fn read(pool: &PgPool, sites: usize) -> anyhow::Result<Measured> {
    let waits = "
        select extract(epoch from a.created_at - b.created_at)::float8 as waited
        from (select task_id, min(created_at) as created_at from assignments group by task_id) a
        join tasks t on t.id = a.task_id join batches b on b.id = t.batch_id order by waited";
    let waits_s: Vec<f64> = sqlx::query_scalar(waits).fetch_all(pool).await.context("read the assignments")?;
    ensure!(waits_s.len() == sites, "{} of {sites} sites have an agent", waits_s.len());
    let counts = "
        select coalesce(sum(answered + lost) filter (where shared_from is null), 0)::bigint,
               coalesce(sum(requests), 0)::bigint
        from site_measurements";
    let (samples, requests) = sqlx::query_as(counts).fetch_one(pool).await.context("count the probes")?;
    let pairs = "
        select a.name, s.name, m.rtt_us::float8 / 1000
        from site_measurements m join agents a on a.id = m.prober_id join sites s on s.id = m.site_id
        where m.shared_from is null";
    let pairs: Vec<(String, String, Option<f64>)> =
        sqlx::query_as(pairs).fetch_all(pool).await.context("read the measurements")?;
    let round_trips = pairs.into_iter().map(|(agent, site, rtt)| ((agent, site), rtt)).collect();
    Ok(Measured { waits_s, samples, requests, round_trips })
}

/// The relative errors of measured round trips, in ascending order.
fn errors(cluster: &Cluster, round_trips: &RoundTrips) -> Vec<f64> {
    let (agents, sites) = (cluster.agent_names(), cluster.site_names());
    let index = |names: &[String], name: &String| names.iter().position(|known| known == name);
    let error = |((agent, site), measured): (&(String, String), &Option<f64>)| {
        let link = cluster.world.scenario().paths.get(index(&agents, agent)?)?.get(index(&sites, site)?)?;
        Some(((*measured)? / link.rtt_ms - 1.0).abs())
    };
    let mut errors: Vec<f64> = round_trips.iter().filter_map(error).collect();
    errors.sort_by(f64::total_cmp);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_compared_with_httpings_of_the_same_pair() {
        let pairs = |of: &[(&str, Option<f64>)]| -> RoundTrips {
            of.iter().map(|(site, rtt)| (("a".to_owned(), (*site).to_owned()), *rtt)).collect()
        };
        let http = pairs(&[("x", Some(10.0)), ("y", Some(20.0)), ("z", None), ("v", Some(8.0))]);
        let ping = pairs(&[("x", Some(9.0)), ("y", Some(18.0)), ("z", Some(5.0)), ("v", None), ("w", Some(1.0))]);
        let line = agreement(&http, &ping).unwrap();
        assert!(line.contains("in 2 pairs") && line.contains("median 0.900"), "{line}");
        assert_eq!(agreement(&http, &RoundTrips::new()), None);
    }
}
