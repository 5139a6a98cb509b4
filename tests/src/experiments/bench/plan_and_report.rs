//! Measures the duration of `landfall plan` for a million sites, with thirty and with a thousand
//! agents, and `landfall report assignments` for a million crawled sites: the rows per second that
//! it writes into a pipe, and the memory of the command and of the scheduler.
//!
//! The real `landfall` binary runs with its own Postgres on this machine (build `landfall` and
//! `lab` with `--release`). For plans, each site is near one of forty cities. Half of the sites
//! were crawled, and one in a hundred has several locations. Figures of plans are medians of five
//! calls. The first call, with an empty database cache, has its own figure.

use std::time::Instant;

use anyhow::{Context, ensure};
use landfall_proto::v1;
use landfall_proto::v1::report_service_client::ReportServiceClient;
use sqlx::{AssertSqlSafe, Executor as _, PgPool};
use tonic::transport::Channel;

use super::bench_scheduler::{self, BenchScheduler, authorized};
use super::line::{Line, median};
use crate::machine::load_average;

const AGENTS: usize = 30;
const MANY_AGENTS: usize = 1_000;
const SITES: u64 = 1_000_000;
const RUNS: usize = 5;
const MOST_SECONDS: f64 = 10.0;

pub(super) async fn plan() -> anyhow::Result<Vec<Line>> {
    let bench = BenchScheduler::start(AGENTS).await?;
    locate(&bench.pool).await?;
    let (mut process, url) = bench.serve().await?;
    let idle = process.resident_memory()?;
    let channel = tonic::transport::Endpoint::from_shared(url)?.connect().await?;
    let mut client = PlanClient { reports: ReportServiceClient::new(channel), token: bench.token()? };
    let mut lines = vec![Line::plain("load average at the start", load_average()?)];
    let first = client.seconds(&v1::PlanRequest::default()).await?;
    lines.push(Line::at_most(what(AGENTS, "the first call"), first, MOST_SECONDS));
    for (name, request) in asked("bench-3", 3) {
        lines.push(Line::at_most(what(AGENTS, name), client.median(&request).await?, MOST_SECONDS));
    }
    lines.push(Line::plain("scheduler's memory, idle, MB", format!("{:.0}", idle / 1e6)));
    lines.push(Line::plain("scheduler's memory after, MB", format!("{:.0}", process.resident_memory()? / 1e6)));
    enrol(&bench.pool, MANY_AGENTS - AGENTS).await?;
    for (name, request) in asked("bench-3", 3) {
        lines.push(Line::at_most(what(MANY_AGENTS, name), client.median(&request).await?, MOST_SECONDS));
    }
    lines.push(Line::plain("load average at the end", load_average()?));
    bench.end(&mut process).await?;
    bench.close().await?;
    Ok(lines)
}

fn what(agents: usize, name: &str) -> String {
    format!("1,000,000 sites, {agents} agents, {name}: s")
}

fn asked(removed: &str, suggest: u32) -> [(&'static str, v1::PlanRequest); 3] {
    let addition = v1::PlannedAddition {
        city: "Chengdu".to_owned(),
        carrier: "Telecom".to_owned(),
        near: "s7.bench.test".to_owned(),
        ..Default::default()
    };
    let changed = v1::PlanRequest { add: vec![addition], remove: vec![removed.to_owned()], ..Default::default() };
    let random = v1::PlanRequest { strategy: "random".to_owned(), ..changed.clone() };
    let suggested = v1::PlanRequest { suggest, ..changed.clone() };
    [("one added, one removed", changed), ("the same by random", random), ("the same and 3 suggested", suggested)]
}

struct PlanClient {
    reports: ReportServiceClient<Channel>,
    token: String,
}

impl PlanClient {
    async fn median(&mut self, request: &v1::PlanRequest) -> anyhow::Result<f64> {
        let mut seconds = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            seconds.push(self.seconds(request).await?);
        }
        Ok(median(seconds))
    }

    async fn seconds(&mut self, request: &v1::PlanRequest) -> anyhow::Result<f64> {
        let request_of_operator = authorized(request.clone(), &self.token)?;
        let began = Instant::now();
        let plan = self.reports.plan(request_of_operator).await.context("plan")?.into_inner();
        let seconds = began.elapsed().as_secs_f64();
        ensure!(plan.sites + plan.sites_in_several_places == SITES, "{} sites were counted", plan.sites);
        ensure!(plan.suggestions.len() == usize::try_from(request.suggest)?, "{} suggestions", plan.suggestions.len());
        Ok(seconds)
    }
}

/// Creates the placements of agents, and the sites, each with a finished task and a placement. The
/// rows are written in bulk without triggers and constraints, because writing them is not measured.
async fn locate(pool: &PgPool) -> anyhow::Result<()> {
    let text = format!(
        "set session_replication_role = replica;
         select setseed(0.25);
         create table cities as
         select n, array(select 150 * random() from generate_series(1, 8) where n >= 0) as at from generate_series(0, 39) n;
         insert into embeddings (epoch, dimensions, landmarks, fit_error) overriding system value values (1, 8, '{{}}', 0);
         {AGENTS_PLACED};
         insert into batches (name, strategy) values ('seeded', 'gnp-top3');
         insert into sites (name, origin) select 's' || n || '.bench.test', 'http://s' || n || '.bench.test'
         from generate_series(1, {SITES}) n;
         insert into tasks (batch_id, site_id, state) select b.id, s.id, 'done' from batches b cross join sites s;
         insert into outcomes (task_id, token, agent_id, kind, pages, bytes, errors, started_at, duration_ms)
         select t.id, 1, (select min(id) from agents), 'complete', 5 + t.id % 40, 20000 * (5 + t.id % 40), 0, now(), 30000
         from tasks t where t.id % 2 = 0;
         insert into site_placements (site_id, epoch, coordinate, fit_error)
         select s.id, 1, array(select one + 12 * (random() - 0.5) from unnest(c.at) one where s.id > 0) || 6 * random(), 0.1
         from sites s join cities c on c.n = s.id * 7919 % 40;
         insert into site_verdicts (site_id, suspect, confidence, evidence)
         select id, id % 100 = 0, case when id % 100 = 0 then 0.9 else 0 end, case when id % 100 = 0 then 'seeded' else '' end from sites;
         set session_replication_role = origin;"
    );
    let mut conn = pool.acquire().await.context("connect")?;
    conn.execute("set statement_timeout = 0").await.context("take time")?;
    conn.execute(AssertSqlSafe(text)).await.context("make located sites")?;
    conn.execute("vacuum analyze").await.context("vacuum")?;
    Ok(())
}

/// Gives each agent that has no placement a placement near a city. Thirty of the forty cities have
/// agents.
const AGENTS_PLACED: &str = "insert into agent_placements (epoch, agent_id, coordinate, fit_error)
     select 1, a.id, array(select one + 4 * (random() - 0.5) from unnest(c.at) one where a.id > 0) || 3 * random(), 0.1
     from agents a join cities c on c.n = a.id % 30
     where not exists (select from agent_placements p where p.agent_id = a.id)";

/// Enrols `count` more agents, and places them.
async fn enrol(pool: &PgPool, count: usize) -> anyhow::Result<()> {
    let text = format!(
        "insert into agents (name, city, carrier, credential_hash)
         select 'more-' || n, 'Harbin', 'CERNET', sha256(('more-' || n)::bytea) from generate_series(1, {count}) n;
         {AGENTS_PLACED};
         analyze;"
    );
    let mut conn = pool.acquire().await.context("connect")?;
    conn.execute(AssertSqlSafe(text)).await.context("enrol more agents")?;
    Ok(())
}

const REPORT_AGENTS: usize = 20;
const REPORT_RUNS: usize = 3;
const FEWEST_A_SECOND: f64 = 200_000.0;
/// Maximum memory of the command, and maximum growth of the scheduler's memory, in megabytes.
const MOST_CLIENT_MB: f64 = 50.0;
const MOST_GROWTH_MB: f64 = 30.0;

pub(super) async fn report() -> anyhow::Result<Vec<Line>> {
    let bench = BenchScheduler::start(REPORT_AGENTS).await?;
    bench_scheduler::seed_assigned(&bench.pool, SITES).await?;
    bench_scheduler::seed_crawled(&bench.pool).await?;
    let (mut process, _) = bench.serve().await?;
    let mut lines = vec![Line::plain("load average at the start", load_average()?)];
    let idle = process.resident_memory()?;
    let mut grown: f64 = 0.0;
    for format in ["csv", "jsonl"] {
        let (mut rates, mut client): (Vec<f64>, f64) = (Vec::new(), 0.0);
        for _ in 0..REPORT_RUNS {
            let printed = bench.report(&process, "seeded", format).await?;
            let rows = printed.lines - usize::from(format == "csv");
            ensure!(u64::try_from(rows)? == SITES, "a report of {rows} rows");
            rates.push(f64::from(u32::try_from(rows)?) / printed.all_s);
            client = client.max(printed.client);
            grown = grown.max(printed.scheduler - idle);
        }
        let what = format!("report assignments of 1,000,000 as {format}");
        lines.push(Line::at_least(format!("{what}, rows/s"), median(rates), FEWEST_A_SECOND));
        lines.push(Line::at_most(format!("{what}, the command's memory, MB"), client / 1e6, MOST_CLIENT_MB));
    }
    lines.push(Line::at_most("scheduler's memory meanwhile, more by, MB", grown / 1e6, MOST_GROWTH_MB));
    lines.push(Line::plain("load average at the end", load_average()?));
    bench.end(&mut process).await?;
    bench.close().await?;
    Ok(lines)
}
