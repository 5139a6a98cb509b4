//! Measures concurrent crawls: one process crawls 200 sites at 200 addresses. The number of
//! requests is compared with the number that the request intervals allow.
//!
//! The crawls run as in an agent, but without a scheduler: on a runtime of two threads, with one
//! `RequestContext`, one `RobotsCache` and one page store. Each crawl saves its progress in its own
//! file. The server of the sites is a separate process, which delays each response by 20 ms to
//! emulate a round trip. Each page fits into TCP's initial window, so a real round trip would also
//! delay a page only once. There is no TLS.
//!
//! The sites count requests for ten seconds, during which all crawls are running.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use futures_util::stream::{FuturesUnordered, StreamExt};
use landfall_agent::config::StoreConfig;
use landfall_agent::crawl::{self, AddressPermits, CrawlStorage, Job, PathFilter, Policy, RobotsCache};
use landfall_agent::net::dns::Resolver;
use landfall_agent::net::guard::Guard;
use landfall_agent::net::request_context::{RequestContext, tls_config};
use landfall_agent::net::user_agent::UserAgent;
use landfall_agent::warc::Store;
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::bench_site::{ServedSites, Server, SitePlan, addresses};
use super::line::{Line, median};
use crate::machine::{peak_memory, processor_s};

/// The site of `bench crawl`, which is so large that no crawl ends during the measurement.
const PLAN: SitePlan = super::crawl::PLAN;
const SITES: u8 = 200;
const LATE_MS: u64 = 20;
/// The request intervals in milliseconds, which allow 2,000 and 4,000 requests per second over all
/// sites.
const INTERVALS_MS: [u32; 2] = [100, 50];
const RUNS: usize = 5;
/// Time between the start and the measurement, during which all crawls connect and fetch
/// robots.txt.
const BEFORE: Duration = Duration::from_secs(3);
const WINDOW: Duration = Duration::from_secs(10);
const LEAST_SHARE: f64 = 0.95;

struct Run {
    rate: f64,
    /// Processor time divided by elapsed time.
    busy: f64,
    peak_mib: f64,
}

pub(super) async fn run() -> anyhow::Result<Vec<Line>> {
    let mut server = Server::start(&ServedSites::many(PLAN, SITES, LATE_MS)).await?;
    let mut runs = INTERVALS_MS.map(|interval| (interval, Vec::new()));
    for _ in 0..RUNS {
        for (interval, runs) in &mut runs {
            runs.push(crawl_all(&mut server, *interval).await?);
        }
    }
    let mut lines = Vec::new();
    for (interval, runs) in &runs {
        let what = |what: &str| format!("{SITES} sites, a request each {interval} ms: {what}");
        let figures = |figure: fn(&Run) -> f64| runs.iter().map(figure).collect::<Vec<_>>();
        let allowed = f64::from(SITES) * 1000.0 / f64::from(*interval);
        let rates = figures(|run| run.rate);
        let (least, most) = (rates.iter().copied().fold(f64::MAX, f64::min), rates.iter().copied().fold(0.0, f64::max));
        lines.push(Line::plain(what("requests/s, least - most"), format!("{least:.0} - {most:.0}")));
        lines.push(Line::at_least(what("of what is allowed"), median(rates) / allowed, LEAST_SHARE));
        lines.push(Line::plain(what("processors busy"), format!("{:.2}", median(figures(|run| run.busy)))));
        let peak = figures(|run| run.peak_mib).into_iter().fold(0.0, f64::max);
        lines.push(Line::plain(what("peak memory, MiB"), format!("{peak:.0}")));
    }
    Ok(lines)
}

async fn crawl_all(server: &mut Server, interval: u32) -> anyhow::Result<Run> {
    let folder = tempfile::tempdir()?;
    let port = server.url.trim_end_matches('/').rsplit(':').next().context("a URL with a port")?;
    let mut command = Command::new(std::env::current_exe().context("find the lab's own executable")?);
    command.args(["bench-crowd", "--port", port, "--sites", &SITES.to_string()]);
    command.args(["--interval-ms", &interval.to_string(), "--folder"]).arg(folder.path());
    let mut child = command.stdin(Stdio::null()).kill_on_drop(true).spawn().context("start the crawls")?;
    let pid = Pid::from_raw(i32::try_from(child.id().context("it runs")?)?);
    sleep(BEFORE).await;
    let (before, busy_before, began) = (server.asked().await?.requests, processor_s(pid)?.0, Instant::now());
    sleep(WINDOW).await;
    let (after, busy_after, seconds) = (server.asked().await?.requests, processor_s(pid)?.0, began.elapsed());
    let peak_mib = peak_memory(pid).context("read the crawls' memory")? as f64 / f64::from(1 << 20);
    if let Some(status) = child.try_wait()? {
        bail!("the crawls ended before they were measured: {status}");
    }
    child.kill().await.context("end the crawls")?;
    let seconds = seconds.as_secs_f64();
    let requests = f64::from(u32::try_from(after - before)?);
    Ok(Run { rate: requests / seconds, busy: (busy_after - busy_before) / seconds, peak_mib })
}

/// Arguments of `lab bench-crowd`.
#[derive(Debug, Clone, Args)]
pub struct CrowdArgs {
    /// The port of all sites
    #[arg(long)]
    port: u16,
    /// The number of sites, each at its own address
    #[arg(long)]
    sites: u8,
    /// Minimum interval between two requests to a site, in milliseconds
    #[arg(long)]
    interval_ms: u64,
    /// The folder of the crawls' files and pages
    #[arg(long)]
    folder: PathBuf,
}

/// Crawls all sites concurrently until the process is killed.
pub async fn crowd(args: CrowdArgs) -> anyhow::Result<()> {
    let CrowdArgs { port, sites, interval_ms, folder } = args;
    let context = Arc::new(RequestContext {
        guard: Guard::new(vec!["127.0.0.0/8".parse()?]),
        resolver: Resolver::new(None)?,
        user_agent: UserAgent::new("https://lab.test/crawler")?,
        bind: None,
        tls: tls_config(None)?,
    });
    let robots = Arc::<RobotsCache>::default();
    let store = Store::open(&StoreConfig::in_folder(folder.join("pages")), "crowd")?;
    let policy = Policy {
        max_pages: u32::MAX,
        max_bytes: u64::MAX,
        max_depth: 100,
        max_hosts: 0,
        max_duration: Duration::from_secs(600),
        request_interval: Duration::from_millis(interval_ms),
        shortest_interval: Duration::from_millis(interval_ms),
        sitemaps: true,
        paths: PathFilter::ALL,
    };
    let mut crawls: FuturesUnordered<_> = addresses(sites)
        .map(|address| {
            let name = format!("http://{address}:{port}");
            let storage = kept(&folder, &name, &store);
            let job = Job { name, origin: None, policy: policy.clone(), last_pages: None };
            tokio::spawn(crawl::run(
                job,
                storage,
                AddressPermits::default(),
                Arc::clone(&context),
                Arc::clone(&robots),
                CancellationToken::new(),
            ))
        })
        .collect();
    let ended = crawls.next().await.context("there are sites")??;
    bail!("a crawl ended: {ended:?}")
}

fn kept(folder: &Path, name: &str, store: &Store) -> CrawlStorage {
    let file = folder.join(name.replace(['/', ':'], "-"));
    CrawlStorage { file: Some(file), recorder: Some(store.recorder(name, None)), ..CrawlStorage::default() }
}
