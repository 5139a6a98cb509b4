//! Measures the response times of `landfall status`, of the dashboard's pages and of the metrics,
//! and the cost of browsers that watch pages. There are a million unfinished sites and a thousand
//! connected agents. Status is requested through gRPC, and pages through HTTP. The real `landfall`
//! binary runs with its own Postgres on this machine.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use landfall_proto::v1;
use landfall_proto::v1::status_service_client::StatusServiceClient;
use sqlx::{Executor as _, PgPool};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Endpoint;

use super::bench_scheduler::{self, BenchScheduler, authorized};
use super::line::Line;
use crate::machine::{family_processor_s, load_average, processor_s};

const AGENTS: usize = 1_000;
const SITES: u64 = 1_000_000;
const CALLS: usize = 100;
const MOST_MS: f64 = 100.0;

/// The measured pages, and the maximum 95th percentile of the response time of each page, in
/// milliseconds.
const PAGES: [&str; 6] = ["/", "/map", "/fleet", "/batches", "/trends", "/api/v1/status"];
const MOST_PAGE_MS: f64 = 100.0;
const PAGE_CALLS: usize = 30;

/// Maximum time of a scrape of the metrics, in milliseconds. After a scrape, the scheduler repeats
/// the same answer for a time that is shorter than [`SCRAPE_INTERVAL`], so each scrape gets a new
/// answer.
const MOST_SCRAPE_MS: f64 = 10.0;
const SCRAPE_INTERVAL: Duration = Duration::from_millis(2_100);
const SCRAPES: usize = 10;

/// Number of browsers that watch pages, the duration of the observation, and the maximum cost in
/// per cent of a core.
const VIEWERS: usize = 50;
const VIEWED: Duration = Duration::from_secs(60);
const MOST_VIEWERS_PERCENT: f64 = 5.0;

pub(super) async fn run() -> anyhow::Result<Vec<Line>> {
    let mut bench = BenchScheduler::start(AGENTS).await?;
    bench_scheduler::seed_assigned(&bench.pool, SITES).await?;
    measure(&bench.pool).await?;
    let (mut process, url) = bench.serve().await?;
    let channel = Endpoint::from_shared(url.clone())?.connect().await?;
    let (mut client, token) = (StatusServiceClient::new(channel), bench.token()?);
    let mut lines = vec![Line::plain("load average at the start", load_average()?)];
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let request = authorized(v1::ShowStatusRequest::default(), &token)?;
        let began = Instant::now();
        let status = client.show_status(request).await.context("status")?.into_inner();
        times.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(status.batches.iter().map(|batch| batch.sites).sum::<u64>() == SITES, "{:?}", status.batches);
        let fleet = status.fleet.context("a fleet")?;
        ensure!(fleet.agents.iter().map(|count| count.agents).sum::<u32>() == u32::try_from(AGENTS)?, "{fleet:?}");
    }
    let first = times.first().copied().unwrap_or(f64::NAN);
    times.sort_by(f64::total_cmp);
    let what = |what: &str| format!("1,000,000 sites, 1,000 agents: {what}, ms");
    lines.push(Line::at_most(what("the first call"), first, MOST_MS));
    lines.push(Line::plain(what("median"), format!("{:.1}", times[CALLS / 2])));
    lines.push(Line::at_most(what("95th percentile"), times[CALLS * 95 / 100], MOST_MS));
    let address = url.trim_start_matches("http://");
    for path in PAGES {
        let (mut times, bytes) = page(address, path, &token, PAGE_CALLS, Duration::ZERO).await?;
        times.sort_by(f64::total_cmp);
        let slowest = times[PAGE_CALLS - 1];
        let what = format!("{path}, {} kB, slowest {slowest:.0} ms: 95th percentile, ms", bytes / 1000);
        lines.push(Line::at_most(what, times[PAGE_CALLS * 95 / 100], MOST_PAGE_MS));
    }
    let (times, bytes) = page(address, "/metrics", &token, SCRAPES, SCRAPE_INTERVAL).await?;
    let slowest = times.into_iter().fold(0.0, f64::max);
    lines.push(Line::at_most(
        format!("a scrape, {} kB: the slowest of {SCRAPES}, ms", bytes / 1000),
        slowest,
        MOST_SCRAPE_MS,
    ));
    let (scheduler, postmaster) = (process.pid().context("the scheduler runs")?, bench.postgres().pid()?);
    let spent = || Ok::<f64, anyhow::Error>(processor_s(scheduler)?.0 + family_processor_s(postmaster)?);
    let idle = observed(&spent).await?;
    let mut viewers = Vec::with_capacity(VIEWERS);
    for number in 0..VIEWERS {
        viewers.push(view(address, PAGES[number % 5], &token).await?);
    }
    // Wait until each page was rendered once, because the first rendering is not part of the cost
    // of watching.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let viewed = observed(&spent).await?;
    drop(viewers);
    lines.push(Line::plain("scheduler and Postgres without viewers, % of a core", format!("{idle:.2}")));
    let what = format!("{VIEWERS} viewers of five pages add, % of a core");
    lines.push(Line::at_most(what, viewed - idle, MOST_VIEWERS_PERCENT));
    lines.push(Line::plain("load average at the end", load_average()?));
    bench.end(&mut process).await?;
    bench.close().await?;
    Ok(lines)
}

/// Requests a page `calls` times, each time on a new connection after a pause. Returns the times in
/// milliseconds, and the size of the response in bytes.
async fn page(
    address: &str,
    path: &str,
    token: &str,
    calls: usize,
    pause: Duration,
) -> anyhow::Result<(Vec<f64>, usize)> {
    let (mut times, mut bytes) = (Vec::with_capacity(calls), 0);
    for _ in 0..calls {
        tokio::time::sleep(pause).await;
        let began = Instant::now();
        let mut stream = request(address, path, token).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(answer.starts_with(b"HTTP/1.1 200"), "{path}: {}", String::from_utf8_lossy(&answer));
        bytes = answer.len();
    }
    Ok((times, bytes))
}

async fn request(address: &str, path: &str, token: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    Ok(stream)
}

/// Watches a page, and reads all data that the scheduler sends, until the returned handle is
/// dropped.
async fn view(address: &str, page: &str, token: &str) -> anyhow::Result<AbortOnDropHandle<()>> {
    let mut stream = request(address, &format!("/live?page={page}"), token).await?;
    let mut first = [0; 12];
    stream.read_exact(&mut first).await?;
    ensure!(first == *b"HTTP/1.1 200", "{page}: {}", String::from_utf8_lossy(&first));
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        let mut rest = [0; 16 << 10];
        while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
    })))
}

/// The processor time spent during [`VIEWED`], in per cent of a core.
async fn observed(spent: &impl Fn() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    let (before, began) = (spent()?, Instant::now());
    tokio::time::sleep(VIEWED).await;
    Ok((spent()? - before) / began.elapsed().as_secs_f64() * 100.0)
}

/// Adds a hundred round trips from each agent to other agents, and a map with all agents and sites.
async fn measure(pool: &PgPool) -> anyhow::Result<()> {
    let text = "
        insert into mesh_measurements (prober_id, agent_id, rtt_us, answered, lost, reached_us, reached_at)
        select a.id, b.id, 20000, 8, 0, 20000, now()
        from agents a join agents b on b.id <> a.id and (b.id - a.id + 100000) % 10 = 0;
        insert into embeddings (dimensions, landmarks, fit_error)
        select 3, array(select id from agents order by id limit 8), 0.05;
        insert into embedding_history (epoch, fitted_at, reason, agents, landmarks, dimensions, fit_error)
        select epoch, created_at, 'seeded', 1000, 8, dimensions, fit_error from embeddings;
        insert into agent_placements (epoch, agent_id, coordinate, fit_error)
        select epoch, a.id, array[a.id % 97, a.id % 89, a.id % 83, 1], 0.05 from embeddings cross join agents a;
        insert into site_placements (site_id, epoch, coordinate, fit_error)
        select s.id, epoch, array[s.id % 97, s.id % 89, s.id % 83, 1], 0.05 from embeddings cross join sites s;
        analyze;";
    pool.acquire().await.context("connect")?.execute(text).await.context("add round trips")?;
    Ok(())
}
