//! Measures `landfall status` for a million sites under way at a thousand connected agents. Each
//! call goes through gRPC. The real `landfall` binary runs with its own Postgres on this machine.

use std::time::Instant;

use anyhow::{Context, ensure};
use landfall_proto::v1;
use landfall_proto::v1::status_service_client::StatusServiceClient;
use sqlx::{Executor as _, PgPool};
use tonic::transport::Endpoint;

use super::Line;
use super::leases::{BenchScheduler, authorized, load, seed};

const AGENTS: usize = 1_000;
const SITES: u64 = 1_000_000;
const CALLS: usize = 100;
/// Maximum time of a status, in milliseconds.
const MOST_MS: f64 = 100.0;

/// Runs the section.
pub(super) async fn run() -> anyhow::Result<Vec<Line>> {
    let bench = BenchScheduler::start(AGENTS).await?;
    seed::assigned(&bench.pool, SITES).await?;
    measure(&bench.pool).await?;
    let (mut process, url) = bench.serve().await?;
    let channel = Endpoint::from_shared(url)?.connect().await?;
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
    lines.push(Line::plain("load average at the end", load()?));
    bench.end(&mut process).await?;
    bench.close().await?;
    Ok(lines)
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
