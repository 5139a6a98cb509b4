//! Runs the cells of a layout and a seed in the lab, and makes their rows of the results. The
//! cluster is surveyed once and then frozen. Every cell starts from the frozen state, with the real
//! binaries.
//!
//! The survey is the whole measuring phase: mesh, election of landmarks, map, and location of every
//! site. The factors of the experiment affect only crawls, and the survey crawls nothing, so all
//! cells share one survey. Each cell starts from the same frozen files in a new emulated network,
//! so that no strategy profits from earlier crawls. Times are counted from the first lease of the
//! batch.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use landfall_scheduler::model::Strategy;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, ClusterDatabase, ClusterOptions};
use crate::evidence::batch_record;
use crate::evidence::figures::float;
use crate::experiments::sweep::batch::{BodyArrival, Growth};
use crate::experiments::sweep::results::Row;
use crate::experiments::sweep::settings::{Cell, LayoutData, Point, Settings};
use crate::experiments::sweep::survey::LayoutMeasurements;
use crate::machine::CpuTime;
use crate::world::World;
use crate::world::scenario::AgentNode;
use crate::world::too_busy;

const SURVEY: &str = "survey";
const BATCH: &str = "paper";
/// Time between probes of a site. This time is short, because the sites belong to the lab, but long
/// enough that probes of 203 sites do not keep the machine busy.
pub const SITE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of attempts to cancel the survey's batch.
const CANCELS: u32 = 3;
/// Time limit of a survey or a cell. Without other load, a survey takes one minute, and the longest
/// cell takes ten minutes (Seattle, where one agent may be nearest to many sites).
const PATIENCE: Duration = Duration::from_secs(1800);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabResult {
    pub makespan_s: f64,
    pub growth: Growth,
    /// The bytes and the crawl time in seconds of each site.
    pub sites: Vec<(i64, f64)>,
    /// Number of sites per agent, in descending order.
    pub per_agent: Vec<usize>,
    /// Why the timing is void; `None` if it is valid.
    pub void: Option<String>,
    pub machine: MachineFigures,
    /// The measurements of the survey. With the measurements and the task numbers, a simulation
    /// makes the same random choices as the scheduler.
    pub measurements: LayoutMeasurements,
    /// The task number of the first site.
    pub first_task: u64,
}

/// The load of the machine, and delays during a cell. The constants of the simulation were chosen
/// from these figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MachineFigures {
    /// Mean number of requests per second, from the first lease to the last outcome.
    pub requests_per_s: f64,
    /// The idle fraction of processor time.
    pub idle: f64,
    /// The 99th percentile of the emulated network's lateness, in milliseconds.
    pub late_ms: f64,
    /// Mean time from a grant to the first request, in milliseconds.
    pub lease_ms: f64,
    /// Mean time from the last byte to the recorded outcome, in milliseconds, including the last
    /// request interval.
    pub outcome_ms: f64,
    /// Mean time from a body's last byte to the arrival of the next request, in milliseconds,
    /// including the request interval.
    pub request_ms: f64,
    /// Time from the first grant until the number of grants equals the number of agents, in
    /// milliseconds.
    pub begin_ms: f64,
}

/// A cell of the lab, and its result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FinishedCell {
    pub(super) cell: Cell,
    pub(super) result: LabResult,
}

impl FinishedCell {
    pub(super) fn row(&self) -> Row {
        Row {
            cell: self.cell.clone(),
            mb_per_min: self.result.growth.mb_per_min,
            makespan_s: self.result.makespan_s,
            busy_variation: None,
            void: self.result.void.is_some(),
        }
    }
}

pub struct SurveyedCluster<'a> {
    settings: &'a Settings,
    layout: &'a LayoutData,
    seed: u64,
    cluster: Cluster,
    measurements: Option<LayoutMeasurements>,
}

impl<'a> SurveyedCluster<'a> {
    /// Starts a cluster, measures the mesh and all sites, and freezes the cluster. `site_interval`
    /// is the time between probes of a site, usually [`SITE_INTERVAL`].
    pub async fn survey(
        settings: &'a Settings,
        layout: &'a LayoutData,
        seed: u64,
        site_interval: Duration,
    ) -> anyhow::Result<Self> {
        let world = World::start(settings.scenario(layout, seed, settings.base)?).await?;
        let database = ClusterDatabase::Private;
        let options = ClusterOptions { scheduler: scheduler(site_interval), capacity: 1, logs: None, database };
        let cluster = Cluster::start(world, &options).await?;
        let mut surveyed = Self { settings, layout, seed, cluster, measurements: None };
        match surveyed.measure().await {
            Ok(()) => Ok(surveyed),
            Err(error) => {
                // If stopping the cluster fails, too, the second error is only logged, because the
                // survey's error is returned.
                if let Err(later) = surveyed.cluster.stop().await {
                    tracing::warn!(%later, "the cluster did not stop either");
                }
                Err(error)
            }
        }
    }

    async fn measure(&mut self) -> anyhow::Result<()> {
        let cluster = &mut self.cluster;
        cluster.await_mesh(PATIENCE).await?;
        cluster.operate(&["landmarks", "elect", "--count", &self.settings.landmarks.to_string()]).await?;
        let names = cluster.agent_names();
        for name in &names {
            cluster.operate(&["agents", "drain", name]).await?;
        }
        let list = cluster.write_site_list()?;
        let list = list.to_str().context("the site list's path is text")?;
        cluster.operate(&["sites", "submit", list, "--batch", SURVEY]).await?;
        let located = "select count(*) from tasks where state = 'located'";
        cluster.await_count("every site to be located", located, self.settings.sites, PATIENCE).await?;
        // Cancelling may conflict with the background task that records why tasks wait. After a
        // conflict, the error message tells the operator to try again.
        for left in (0..CANCELS).rev() {
            match cluster.operate(&["batches", "cancel", SURVEY]).await {
                Err(error) if left > 0 => tracing::warn!(%error, "the survey's batch was not cancelled"),
                cancelled => {
                    cancelled?;
                    break;
                }
            }
        }
        for name in &names {
            cluster.operate(&["agents", "resume", name]).await?;
        }
        cluster.freeze().await?;
        let read = cluster.read_frozen(async |pool| {
            Ok((batch_record::batch_record(pool, SURVEY).await?, batch_record::agents(pool).await?))
        });
        let (record, by_rank) = read.await?;
        if let Some(alarm) = &record.trust.alarm {
            eprintln!("{alarm}; so every strategy draws agents at random");
        }
        self.measurements = Some(LayoutMeasurements::by(&record, &by_rank, &names, &cluster.site_names())?);
        Ok(())
    }

    /// Runs a cell, and once more if its timing is void.
    pub async fn crawl_cell(&mut self, point: Point, strategy: Strategy) -> anyhow::Result<LabResult> {
        let result = self.crawl_cell_once(point, strategy).await?;
        let Some(reason) = &result.void else { return Ok(result) };
        eprintln!("void, and run once more: {reason}");
        self.crawl_cell_once(point, strategy).await
    }

    async fn crawl_cell_once(&mut self, point: Point, strategy: Strategy) -> anyhow::Result<LabResult> {
        let world = self.cluster.world.start_again(self.settings.scenario(self.layout, self.seed, point)?).await?;
        self.cluster.begin_again(world, self.settings.slots(point.per_site_rps)).await?;
        let finished = self.crawl(point, strategy).await;
        let halted = self.cluster.halt().await;
        let result = finished?;
        halted?;
        Ok(result)
    }

    async fn crawl(&mut self, point: Point, strategy: Strategy) -> anyhow::Result<LabResult> {
        let cluster = &mut self.cluster;
        let list = cluster.write_site_list()?;
        let list = list.to_str().context("the site list's path is text")?;
        let interval = Duration::from_secs_f64(point.per_site_rps.interval_s());
        let interval = format!("{}ms", interval.as_millis());
        let depth = self.settings.web.max_depth.to_string();
        let busy_from = CpuTime::now();
        let strategy = strategy.to_string();
        let mut submit = vec!["sites", "submit", list, "--batch", BATCH, "--strategy", &strategy];
        submit.extend(["--request-interval", &interval, "--max-depth", &depth]);
        cluster.operate(&submit).await?;
        let ended = "select count(*) from tasks t join batches b on b.id = t.batch_id \
                     where b.name = 'paper' and t.state in ('done', 'failed')";
        cluster.await_count("every site to be crawled", ended, self.settings.sites, PATIENCE).await?;
        let idle = CpuTime::now().zip(busy_from).map_or(1.0, |(now, from)| now.idle_since(from));
        let since = batch_record::since_first_grant(&cluster.pool, BATCH).await?;
        let first = Instant::now().checked_sub(since).context("the first lease is older than the machine")?;
        let crawled = batch_record::crawls(&cluster.pool, BATCH).await?;
        ensure!(
            crawled.len() == self.settings.sites,
            "{} of {} sites were crawled",
            crawled.len(),
            self.settings.sites
        );
        let makespan_s = crawled.iter().map(|crawl| crawl.ended_s).fold(0.0, f64::max);
        let world = &cluster.world;
        let void = not_whole(&crawled).or_else(|| world.too_late()).or_else(|| too_busy(idle));
        let machine = MachineFigures { idle, ..machine(world, &crawled, first, makespan_s) };
        Ok(LabResult {
            makespan_s,
            growth: Growth::of(arrived(world, first), self.settings.growth_share),
            sites: crawled.iter().map(|crawl| (crawl.bytes, crawl.took_s)).collect(),
            per_agent: per_agent(&crawled, &world.scenario().agents),
            void,
            machine,
            measurements: self.measurements.clone().context("nothing was surveyed")?,
            first_task: batch_record::first_task(&cluster.pool, BATCH).await?,
        })
    }

    pub async fn end(self) -> anyhow::Result<()> {
        self.cluster.stop().await
    }
}

/// The scheduler's configuration, with shorter intervals and a longer sample timeout than by
/// default. The timeout is longer, because the first answer takes two round trips in the rootless
/// grade, which are up to ten seconds with the Seattle matrix.
fn scheduler(site_interval: Duration) -> String {
    format!("[measure]\nsite_interval = '{site_interval:?}'\nmesh_interval = '100ms'\nsample_timeout = '20s'\n")
}

fn per_agent(crawled: &[batch_record::TimedCrawl], agents: &[AgentNode]) -> Vec<usize> {
    let count = |agent: &AgentNode| crawled.iter().filter(|crawl| crawl.crawler == agent.name).count();
    let mut counts: Vec<usize> = agents.iter().map(count).collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    counts
}

/// A description of incomplete crawls; `None` if all crawls are complete.
fn not_whole(crawled: &[batch_record::TimedCrawl]) -> Option<String> {
    let odd = || crawled.iter().filter(|crawl| crawl.kind != "complete");
    let first = odd().next()?;
    Some(format!("{} sites were not crawled whole; {}: {} {}", odd().count(), first.site, first.kind, first.message))
}

fn arrived(world: &World, first: Instant) -> Vec<BodyArrival> {
    let deliveries = world.log.deliveries();
    let since = deliveries.iter().filter_map(|body| Some((body.until.checked_duration_since(first)?, body.bytes)));
    since.map(|(at, bytes)| BodyArrival { at_s: at.as_secs_f64(), bytes }).collect()
}

/// The load, and the delays between events at the scheduler, the agents and the sites.
fn machine(world: &World, crawled: &[batch_record::TimedCrawl], first: Instant, makespan_s: f64) -> MachineFigures {
    let entries = world.log.entries();
    let seconds = |at: Instant| at.saturating_duration_since(first).as_secs_f64();
    let sites = world.scenario().sites.len();
    let mut asked: Vec<Vec<f64>> = vec![Vec::new(); sites];
    entries.iter().for_each(|entry| asked[entry.site].push(seconds(entry.at)));
    let mut sent: Vec<Vec<f64>> = vec![Vec::new(); sites];
    world.log.deliveries().iter().for_each(|body| sent[body.site].push(seconds(body.until)));
    let (mut lease, mut outcome, mut request) = (Vec::new(), Vec::new(), Vec::new());
    let names: Vec<String> = (0..sites).map(|site| world.site_name(site)).collect();
    for crawl in crawled {
        let Some(site) = names.iter().position(|name| *name == crawl.site) else { continue };
        // Requests before the grant are ignored, because they came from confirmers.
        let own = |seconds: &[f64]| seconds.iter().copied().filter(|at| *at >= crawl.granted_s).collect::<Vec<f64>>();
        let (asked, sent) = (own(&asked[site]), own(&sent[site]));
        if let Some((asked, sent)) = asked.first().zip(sent.last()) {
            lease.push(asked - crawl.granted_s);
            outcome.push(crawl.ended_s - sent);
        }
        request.extend(sent.iter().zip(asked.iter().skip(1)).map(|(sent, asked)| asked - sent));
    }
    let agents = world.scenario().agents.len();
    let mut granted: Vec<f64> = crawled.iter().map(|crawl| crawl.granted_s).collect();
    granted.sort_by(f64::total_cmp);
    let begin = granted.get(agents.min(granted.len()).saturating_sub(1)).copied().unwrap_or(0.0);
    let millis = |values: Vec<f64>| values.iter().sum::<f64>() / float(values.len().max(1)) * 1e3;
    MachineFigures {
        requests_per_s: float(entries.len()) / makespan_s,
        idle: 1.0,
        late_ms: world.lateness().quantile(0.99).as_secs_f64() * 1e3,
        lease_ms: millis(lease),
        outcome_ms: millis(outcome),
        request_ms: millis(request),
        begin_ms: begin * 1e3,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A finished cell of the paper's layout at the base settings, with the results of two sites.
    pub(in super::super) fn finished(strategy: &str, seed: u64, mb_per_min: f64, void: Option<&str>) -> FinishedCell {
        let point = Settings::committed().unwrap().base;
        let machine = MachineFigures {
            requests_per_s: 1.0,
            idle: 1.0,
            late_ms: 0.1,
            lease_ms: 1.0,
            outcome_ms: 1.0,
            request_ms: 1.0,
            begin_ms: 1.0,
        };
        FinishedCell {
            cell: Cell { layout: "paper".to_owned(), point, strategy: strategy.to_owned(), seed },
            result: LabResult {
                makespan_s: 6000.0 / mb_per_min,
                growth: Growth { mb_per_min, curve: vec![(1.0, 0.5), (60.0, 3.0)] },
                sites: vec![(1_000_000, 60.0), (2_000_000, 30.0)],
                per_agent: vec![1, 1],
                void: void.map(str::to_owned),
                machine,
                measurements: LayoutMeasurements {
                    agents: vec![],
                    landmarks: vec![],
                    epoch: Some(1),
                    mesh: vec![],
                    sites: vec![],
                },
                first_task: 1,
            },
        }
    }
}
