//! Measures `landfall status` and the pages of the dashboard for a million sites under way at a
//! thousand connected agents. Calls go through gRPC, pages through HTTP. The real `landfall` binary runs with its own Postgres on this machine.

use std::time::Instant;

use anyhow::{Context, ensure};
use landfall_proto::v1;
use landfall_proto::v1::status_service_client::StatusServiceClient;
use sqlx::{Executor as _, PgPool};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::transport::Endpoint;

use super::Line;
use super::leases::{BenchScheduler, authorized, load, seed};

const AGENTS: usize = 1_000;
const SITES: u64 = 1_000_000;
const CALLS: usize = 100;
/// Maximum time of a status, in milliseconds.
const MOST_MS: f64 = 100.0;

/// The measured pages, and the maximum of their 95th percentiles, in milliseconds.
const PAGES: [&str; 7] = ["/", "/map", "/fleet", "/batches", "/trends", "/metrics", "/api/v1/status"];
const MOST_PAGE_MS: f64 = 100.0;
const PAGE_CALLS: usize = 30;

/// Runs the section.
pub(super) async fn run() -> anyhow::Result<Vec<Line>> {
    let bench = BenchScheduler::start(AGENTS).await?;
    seed::assigned(&bench.pool, SITES).await?;
    measure(&bench.pool).await?;
    let (mut process, url) = bench.serve().await?;
    let channel = Endpoint::from_shared(url.clone())?.connect().await?;
    let (mut client, token) = (StatusServiceClient::new(channel), bench.token()?);
    let mut lines = vec![Line::plain("load average at the start", load()?)];
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
        lines.push(page(address, path, &token).await.with_context(|| format!("the page {path}"))?);
    }
    lines.push(Line::plain("load average at the end", load()?));
    bench.end(&mut process).await?;
    bench.close().await?;
    Ok(lines)
}

/// Times a page, each on a new connection.
async fn page(address: &str, path: &str, token: &str) -> anyhow::Result<Line> {
    let (mut times, mut bytes) = (Vec::with_capacity(PAGE_CALLS), 0);
    for _ in 0..PAGE_CALLS {
        let began = Instant::now();
        let mut stream = TcpStream::connect(address).await?;
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        bytes = answer.len();
    }
    times.sort_by(f64::total_cmp);
    let what = format!("{path}, {} kB: 95th percentile, ms", bytes / 1000);
    Ok(Line::at_most(what, times[PAGE_CALLS * 95 / 100], MOST_PAGE_MS))
}

/// Adds round trips between the agents, a hundred each.
async fn measure(pool: &PgPool) -> anyhow::Result<()> {
    let text = "
        insert into mesh_measurements (prober_id, agent_id, rtt_us, answered, lost, reached_us, reached_at)
        select a.id, b.id, 20000, 8, 0, 20000, now()
        from agents a join agents b on b.id <> a.id and (b.id - a.id + 100000) % 10 = 0;
        analyze;";
    pool.acquire().await.context("connect")?.execute(text).await.context("add round trips")?;
    Ok(())
}
