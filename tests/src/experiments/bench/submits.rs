//! Measures the time to submit 100,000 sites after various earlier submissions, and the time to
//! print a report on 100,000 sites.
//!
//! Sites are submitted through gRPC, as `landfall sites submit` does. Reports are printed by the
//! real command into a pipe.

use std::time::Instant;

use anyhow::{Context, ensure};
use landfall_proto::v1;
use landfall_proto::v1::site_service_client::SiteServiceClient;
use sqlx::{Executor as _, PgPool};
use tonic::transport::Channel;
use v1::submit_request::Part;

use super::bench_scheduler::{self, BenchScheduler, authorized};
use super::line::{Line, median};
use crate::machine::load_average;

/// Number of sites in a measured submission.
const SITES: usize = 100_000;
/// Number of small batches that are submitted before a measured submission, and number of sites in
/// each.
const SMALL: (usize, usize) = (12, 21);
/// Number of large batches that are submitted before a measured submission.
const LARGE: usize = 10;
/// The batch that reports list.
const REPORTED: &str = "after-0";
const RUNS: usize = 3;
const MOST_SECONDS: f64 = 3.0;
const MOST_RATIO: f64 = 1.3;
const MOST_TO_FIRST_BYTE: f64 = 0.3;

pub(super) async fn run() -> anyhow::Result<Vec<Line>> {
    let mut lines = vec![Line::plain("load average at the start", load_average()?)];
    let (mut fresh, mut after_small) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let mut setup = SubmitSetup::open().await?;
        fresh.push(setup.submit("first", SITES).await?);
        setup.close().await?;
        let mut setup = SubmitSetup::open().await?;
        setup.small_batches().await?;
        after_small.push(setup.submit("first", SITES).await?);
        setup.close().await?;
    }
    let mut setup = SubmitSetup::open().await?;
    for number in 0..LARGE {
        setup.submit(&format!("before-{number}"), SITES).await?;
    }
    let mut after_large = Vec::new();
    for number in 0..RUNS {
        after_large.push(setup.submit(&format!("after-{number}"), SITES).await?);
    }
    let (fresh, small, large) = (median(fresh), median(after_small), median(after_large));
    lines.push(Line::at_most("100,000 sites, the first there are, s", fresh, MOST_SECONDS));
    lines.push(Line::at_most("after 12 small batches and an analyze, s", small, MOST_SECONDS));
    lines.push(Line::at_most("after ten batches of 100,000, s", large, MOST_SECONDS));
    lines.push(Line::at_most("after small batches / the first", small / fresh, MOST_RATIO));
    lines.push(Line::at_most("after large batches / the first", large / fresh, MOST_RATIO));
    assign(&setup.bench.pool).await?;
    bench_scheduler::seed_crawled(&setup.bench.pool).await?;
    let before = setup.process.resident_memory()?;
    for format in ["table", "csv", "json"] {
        let (mut first, mut all) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let printed = setup.bench.report(&setup.process, REPORTED, format).await?;
            ensure!(printed.bytes > SITES * 20, "a report of {} bytes", printed.bytes);
            first.push(printed.first_byte_s);
            all.push(printed.all_s);
        }
        let what = format!("report assignments of 100,000 as {format}");
        lines.push(Line::at_most(format!("{what}, first byte, s"), median(first), MOST_TO_FIRST_BYTE));
        lines.push(Line::at_most(format!("{what}, all, s"), median(all), MOST_SECONDS));
    }
    let grown = (setup.process.resident_memory()? - before) / 1e6;
    lines.push(Line::plain("scheduler's memory, more by, MB", format!("{grown:.0}")));
    setup.close().await?;
    lines.push(Line::plain("load average at the end", load_average()?));
    Ok(lines)
}

/// A scheduler with its own database, and a client.
struct SubmitSetup {
    bench: BenchScheduler,
    process: crate::cluster::process::Process,
    sites: SiteServiceClient<Channel>,
    token: String,
}

impl SubmitSetup {
    async fn open() -> anyhow::Result<Self> {
        let bench = BenchScheduler::start(1).await?;
        let (process, url) = bench.serve().await?;
        let channel = tonic::transport::Endpoint::from_shared(url)?.connect().await?;
        let token = bench.token()?;
        Ok(Self { bench, process, sites: SiteServiceClient::new(channel), token })
    }

    async fn close(mut self) -> anyhow::Result<()> {
        self.bench.end(&mut self.process).await?;
        self.bench.close().await
    }

    /// Submits new sites, and returns the time in seconds.
    async fn submit(&mut self, batch: &str, sites: usize) -> anyhow::Result<f64> {
        let began = Instant::now();
        submit(&mut self.sites, &self.token, batch, sites).await?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Submits small batches and updates Postgres' statistics, so that Postgres' query planner
    /// expects only small batches.
    async fn small_batches(&mut self) -> anyhow::Result<()> {
        let (batches, sites) = SMALL;
        for number in 0..batches - 1 {
            self.submit(&format!("small-{number}"), sites).await?;
        }
        self.bench.pool.execute("analyze").await.context("analyze")?;
        // For the last small batch, Postgres plans its queries with the new statistics.
        self.submit("small-last", sites).await?;
        Ok(())
    }
}

/// Submits `count` new sites as a batch.
pub(super) async fn submit(
    sites: &mut SiteServiceClient<Channel>,
    token: &str,
    batch: &str,
    count: usize,
) -> anyhow::Result<()> {
    let message = |part: Part| v1::SubmitRequest { part: Some(part) };
    let names: Vec<String> = (0..count).map(|site| format!("h{site}.{batch}.test")).collect();
    let chunks: Vec<Part> = names
        .chunks(5_000)
        .map(|chunk| Part::Chunk(v1::SubmitChunk { sites: chunk.to_vec(), positions: Vec::new() }))
        .collect();
    let header = Part::Header(v1::SubmitHeader { batch: batch.to_owned(), ..Default::default() });
    let messages = std::iter::once(header).chain(chunks).map(message);
    let request = authorized(tokio_stream::iter(messages.collect::<Vec<_>>()), token)?;
    let added = sites.submit(request).await.context("submit")?.into_inner().added;
    ensure!(added == u64::try_from(count)?, "{added} sites were added");
    Ok(())
}

/// Enrols eight more agents, and assigns every site of the reported batch. The rows are written in
/// bulk without triggers, because writing them is not measured.
async fn assign(pool: &PgPool) -> anyhow::Result<()> {
    let text = "set session_replication_role = replica;
        insert into agents (name, city, carrier, credential_hash)
        select 'prober-' || n, 'Harbin', 'CERNET', n::text::bytea from generate_series(1, 8) n;
        insert into assignments (task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us)
        select t.id, a.ids[1], 'gnp-top3', 1, a.ids, array[1000, 2000, 3000], array[1000, 2000, 3000]
        from tasks t join batches b on b.id = t.batch_id cross join (select (array_agg(id))[1:3] as ids from agents) a
        where b.name = 'after-0';
        set session_replication_role = origin;";
    let mut conn = pool.acquire().await.context("connect")?;
    conn.execute("set statement_timeout = 0").await.context("take time")?;
    conn.execute(text).await.context("assign a batch")?;
    Ok(())
}
