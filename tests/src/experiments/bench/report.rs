//! Measures `landfall report assignments` for a million crawled sites: the rows per second that it
//! writes into a pipe, and the memory of the command and of the scheduler. The real binaries run
//! with their own Postgres on this machine (build them with `--release`).

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, ensure};
use nix::unistd::Pid;
use sqlx::{Executor as _, PgPool};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use super::leases::bench_scheduler::BenchScheduler;
use super::leases::seed;
use super::line::{Line, median};
use crate::cluster::Binaries;
use crate::cluster::process::Process;
use crate::machine::{load_average, resident_memory};

const SITES: u64 = 1_000_000;
const AGENTS: usize = 20;
const RUNS: usize = 3;
const FEWEST_A_SECOND: f64 = 200_000.0;
/// Maximum memory of the command, and maximum growth of the scheduler's memory, in megabytes.
const MOST_CLIENT_MB: f64 = 50.0;
const MOST_GROWTH_MB: f64 = 30.0;
/// Number of bytes of output after which the memory is read again.
const MEMORY_EVERY: usize = 4 << 20;

pub(super) async fn run() -> anyhow::Result<Vec<Line>> {
    let bench = BenchScheduler::start(AGENTS).await?;
    seed::assigned(&bench.pool, SITES).await?;
    crawled(&bench.pool).await?;
    let (mut process, _) = bench.serve().await?;
    let mut lines = vec![Line::plain("load average at the start", load_average()?)];
    let idle = process.resident_memory()?;
    let mut grown: f64 = 0.0;
    for format in ["csv", "jsonl"] {
        let (mut rates, mut client): (Vec<f64>, f64) = (Vec::new(), 0.0);
        for _ in 0..RUNS {
            let run = report(&bench, &process, format).await?;
            rates.push(run.rows_per_second);
            client = client.max(run.client);
            grown = grown.max(run.scheduler - idle);
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

/// The rate of a report, and the maximum memory of the command and of the scheduler, in bytes.
struct ReportRun {
    rows_per_second: f64,
    client: f64,
    scheduler: f64,
}

async fn report(bench: &BenchScheduler, scheduler: &Process, format: &str) -> anyhow::Result<ReportRun> {
    let mut command = Command::new(Binaries::find()?.landfall);
    command.arg("--data-dir").arg(bench.data_dir());
    command.args(["report", "assignments", "--batch", "seeded", "-o", format]);
    let began = Instant::now();
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().context("run landfall")?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw).context("the command's pid")?;
    let mut out = child.stdout.take().context("its output")?;
    let mut piece = vec![0; 1 << 18];
    let (mut lines, mut unseen) = (0, 0);
    let mut run = ReportRun { rows_per_second: 0.0, client: 0.0, scheduler: scheduler.resident_memory()? };
    loop {
        let read = out.read(&mut piece).await.context("read the report")?;
        if read == 0 {
            break;
        }
        lines += piece.iter().take(read).filter(|byte| **byte == b'\n').count();
        unseen += read;
        if unseen >= MEMORY_EVERY {
            unseen = 0;
            run.client = run.client.max(resident_memory(pid).unwrap_or(0) as f64);
            run.scheduler = run.scheduler.max(scheduler.resident_memory()?);
        }
    }
    ensure!(child.wait().await.context("wait for landfall")?.success(), "landfall report failed");
    let rows = lines - usize::from(format == "csv");
    ensure!(u64::try_from(rows)? == SITES, "a report of {rows} rows");
    run.rows_per_second = f64::from(u32::try_from(rows)?) / began.elapsed().as_secs_f64();
    Ok(run)
}

/// Creates eight measurements and an outcome for every site. The rows are written in bulk without
/// triggers, because writing them is not measured.
async fn crawled(pool: &PgPool) -> anyhow::Result<()> {
    let text = "set session_replication_role = replica;
        insert into site_measurements (site_id, prober_id, rtt_us, answered, lost, requests)
        select s.id, a.id, 5000, 10, 0, 12 from sites s cross join (select id from agents order by id limit 8) a;
        update tasks set state = 'done', token = 1, agent_id = null;
        insert into outcomes (task_id, token, agent_id, kind, pages, bytes, errors, started_at, duration_ms, rtt_us)
        select task_id, 1, agent_id, 'complete', 3, 30000, 0, now(), 1500, 5000 from assignments;
        update batch_totals set done = assigned, assigned = 0;
        set session_replication_role = origin;";
    let mut conn = pool.acquire().await.context("connect")?;
    conn.execute("set statement_timeout = 0").await.context("take time")?;
    conn.execute(text).await.context("crawl the sites")?;
    conn.execute("vacuum analyze").await.context("vacuum")?;
    Ok(())
}
