//! Starts a scheduler for benchmarks, with a database and enrolled agents of its own, creates the
//! open tasks that are assigned to the agents, and prints reports on crawled tasks.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use landfall_scheduler::app::token_and_client_file::ClientFile;
use landfall_scheduler::store::agents::issued_tokens;
use landfall_scheduler::store::agents::new_enrolments::{self, AgentRequest, Name};
use landfall_scheduler::store::{self, Tx};
use nix::unistd::Pid;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Executor as _, PgPool};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::cluster::Binaries;
use crate::cluster::postgres::{SharedPostgres, accessible_folder};
use crate::cluster::process::{Process, until};
use crate::machine::resident_memory;

/// Time limit for the start and for the end of a scheduler.
const PATIENCE: Duration = Duration::from_secs(120);
/// The scheduler's configuration. Sessions live longer than the benchmark, because agents send no
/// heartbeats.
const CONFIG: &str = "contact_url = 'https://lab.test/crawler'\n[lease]\nheartbeat_interval = '1m'\nlife = '1h'\n";
/// Number of bytes of a report after which the memory is read again.
const MEMORY_EVERY: usize = 4 << 20;

/// The database, the agents' credentials and the folder of a scheduler.
pub(super) struct BenchScheduler {
    pub(super) pool: PgPool,
    pub(super) postgres: SharedPostgres,
    pub(super) credentials: Vec<String>,
    /// This is the last field, because fields are dropped in order, and Postgres writes to the
    /// directory until it stops.
    pub(super) directory: tempfile::TempDir,
}

impl BenchScheduler {
    /// Starts the database, and enrols agents.
    pub(super) async fn start(agents: usize) -> anyhow::Result<Self> {
        let directory = accessible_folder("landfall-bench-")?;
        std::fs::write(directory.path().join("landfall.toml"), CONFIG).context("write the configuration")?;
        let postgres = SharedPostgres::start(&directory.path().join("database")).await?;
        let options: PgConnectOptions = postgres.url().parse().context("read the database's URL")?;
        store::prepare(&options).await?;
        let pool = PgPool::connect_with(options).await.context("connect to the database")?;
        let credentials = seed_agents(&pool, agents).await?;
        Ok(Self { pool, postgres, credentials, directory })
    }

    pub(super) fn data_dir(&self) -> std::path::PathBuf {
        self.directory.path().join("scheduler")
    }

    /// Starts the scheduler, and returns its URL.
    pub(super) async fn serve(&self) -> anyhow::Result<(Process, String)> {
        self.serve_with(&[]).await
    }

    /// Starts the scheduler with further arguments, and returns its URL.
    pub(super) async fn serve_with(&self, arguments: &[&str]) -> anyhow::Result<(Process, String)> {
        let data_dir = self.data_dir();
        let client_file = data_dir.join("client.toml");
        if client_file.exists() {
            std::fs::remove_file(&client_file).context("remove the former client.toml")?;
        }
        let mut command = Command::new(Binaries::find()?.landfall);
        command.arg("--data-dir").arg(&data_dir).args(["serve", "--listen", "127.0.0.1:0", "--database-url"]);
        command
            .arg(self.postgres.url())
            .args(arguments)
            .arg("--config")
            .arg(self.directory.path().join("landfall.toml"));
        let mut process = Process::spawn("scheduler", command, self.directory.path())?;
        until("the scheduler to start", PATIENCE, async || {
            process.ensure_running()?;
            Ok(client_file.exists().then_some(()))
        })
        .await?;
        let url = client(&data_dir)?.scheduler.first().cloned().context("client.toml names no scheduler")?;
        Ok((process, url))
    }

    pub(super) async fn end(&self, process: &mut Process) -> anyhow::Result<()> {
        process.terminate();
        ensure!(process.wait(PATIENCE).await?.is_some(), "the scheduler did not end: {}", process.tail());
        Ok(())
    }

    pub(super) fn token(&self) -> anyhow::Result<String> {
        Ok(client(&self.directory.path().join("scheduler"))?.token)
    }

    /// Prints a report on the sites of a batch into a pipe, with the real command.
    pub(super) async fn report(&self, scheduler: &Process, batch: &str, format: &str) -> anyhow::Result<PrintedReport> {
        let mut command = Command::new(Binaries::find()?.landfall);
        command.arg("--data-dir").arg(self.data_dir());
        command.args(["report", "assignments", "--batch", batch, "-o", format]);
        let began = Instant::now();
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().context("run landfall")?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw).context("the command's pid")?;
        let mut out = child.stdout.take().context("its output")?;
        let mut piece = vec![0; 1 << 18];
        let mut report = PrintedReport { scheduler: scheduler.resident_memory()?, ..PrintedReport::default() };
        let mut unseen = 0;
        loop {
            let read = out.read(&mut piece).await.context("read the report")?;
            if read == 0 {
                break;
            }
            if report.bytes == 0 {
                report.first_byte_s = began.elapsed().as_secs_f64();
            }
            report.bytes += read;
            report.lines += piece.iter().take(read).filter(|byte| **byte == b'\n').count();
            unseen += read;
            if unseen >= MEMORY_EVERY {
                unseen = 0;
                report.client = report.client.max(resident_memory(pid).unwrap_or(0) as f64);
                report.scheduler = report.scheduler.max(scheduler.resident_memory()?);
            }
        }
        ensure!(child.wait().await.context("wait for landfall")?.success(), "landfall report failed");
        report.all_s = began.elapsed().as_secs_f64();
        Ok(report)
    }

    pub(super) const fn postgres(&mut self) -> &mut SharedPostgres {
        &mut self.postgres
    }

    pub(super) async fn close(mut self) -> anyhow::Result<()> {
        self.pool.close().await;
        self.postgres.stop().await
    }
}

/// A report that was read to its end.
#[derive(Debug, Default)]
pub(super) struct PrintedReport {
    /// Seconds until the first byte, and until the command ended.
    pub(super) first_byte_s: f64,
    pub(super) all_s: f64,
    pub(super) bytes: usize,
    pub(super) lines: usize,
    /// The maximum memory of the command and of the scheduler, in bytes.
    pub(super) client: f64,
    pub(super) scheduler: f64,
}

/// A request with an operator's token.
pub(super) fn authorized<T>(message: T, token: &str) -> anyhow::Result<tonic::Request<T>> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse()?);
    Ok(request)
}

fn client(data_dir: &Path) -> anyhow::Result<ClientFile> {
    ClientFile::read(data_dir)?.context("the scheduler wrote no client.toml")
}

/// Enrols agents, and returns their credentials.
async fn seed_agents(pool: &PgPool, count: usize) -> anyhow::Result<Vec<String>> {
    let mut conn = pool.acquire().await.context("connect")?;
    let mut credentials = Vec::with_capacity(count);
    for number in 0..count {
        let wanted = AgentRequest {
            name: Name::Given(format!("bench-{number}")),
            city: "Harbin".to_owned(),
            carrier: "CERNET".to_owned(),
            country: "CN".to_owned(),
            position: None,
            tags: Vec::new(),
            valid_for: std::time::Duration::from_secs(600),
            replaces: false,
        };
        let mut tx = Tx::on(&mut conn).await.context("begin")?;
        let enrolment = new_enrolments::create(&mut tx, &[wanted]).await.context("make an enrolment")?.remove(0);
        let redeemed = issued_tokens::redeem(&mut tx, enrolment.token.reveal(), 5).await.context("redeem it")?;
        tx.commit().await.context("commit")?;
        credentials.push(redeemed.credential);
    }
    Ok(credentials)
}

/// Creates the state after a restart of the scheduler: a session for each agent, and `count` tasks
/// that are assigned to the agents. The origin of each site is stored, as after an earlier crawl.
/// The rows are written in bulk without triggers and constraints, because writing them is not
/// measured.
pub(super) async fn seed_assigned(pool: &PgPool, count: u64) -> anyhow::Result<()> {
    let text = format!(
        "set session_replication_role = replica;
         update agents set incarnation = 1;
         insert into sessions (agent_id, incarnation, expires_at) select id, 1, now() + interval '1 hour' from agents;
         insert into batches (name, strategy) values ('seeded', 'random');
         insert into sites (name, origin) select 's' || n || '.bench.test', 'http://s' || n || '.bench.test'
         from generate_series(1, {count}) n;
         with fleet as (select array_agg(id order by id) as ids from agents),
         made as (
             insert into tasks (batch_id, site_id) select b.id, s.id from batches b cross join sites s
             where b.name = 'seeded' and s.name like 's%.bench.test' returning id
         )
         insert into assignments (task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us)
         select made.id, ids[1 + made.id % cardinality(ids)], 'random', 1, array[ids[1 + made.id % cardinality(ids)]],
                array[null]::bigint[], array[null]::bigint[]
         from made cross join fleet;
         update tasks t set state = 'assigned', assignment_id = a.id, agent_id = a.agent_id
         from assignments a where a.task_id = t.id;
         insert into batch_totals
         select id, 0, 0, 0, {count}, 0, 0, 0, 0, 0, 0, 0 from batches where name = 'seeded';
         set session_replication_role = origin;"
    );
    let mut conn = pool.acquire().await.context("connect")?;
    conn.execute(AssertSqlSafe(text)).await.context("make open tasks")?;
    conn.execute("vacuum analyze").await.context("vacuum")?;
    Ok(())
}

/// Creates eight measurements and an outcome for every assigned task. The rows are written in bulk
/// without triggers, because writing them is not measured.
pub(super) async fn seed_crawled(pool: &PgPool) -> anyhow::Result<()> {
    let text = "set session_replication_role = replica;
        insert into site_measurements (site_id, prober_id, rtt_us, answered, lost, requests)
        select t.site_id, a.id, 5000, 10, 0, 12
        from assignments s join tasks t on t.id = s.task_id cross join (select id from agents order by id limit 8) a;
        update tasks t set state = 'done', token = 1, agent_id = null, assignment_id = a.id
        from assignments a where a.task_id = t.id;
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

/// Creates three measurements and a placement for every site.
pub(super) async fn seed_measured(pool: &PgPool) -> anyhow::Result<()> {
    let text = "insert into embeddings (dimensions, landmarks, fit_error)
                select 8, array_agg(id), 0.1 from (select id from agents order by id limit 3) landmark;
                insert into site_measurements (site_id, prober_id, rtt_us, min_us, median_us, spread_us, answered, lost, address)
                select s.id, a.id, 1 + (random() * 1e5)::bigint, 1 + (random() * 1e5)::bigint, 1 + (random() * 1e5)::bigint,
                       (random() * 1e4)::bigint, 10, 0, inet '10.0.0.0' + s.id
                from sites s cross join (select id from agents order by id limit 3) a;
                insert into site_placements (site_id, epoch, coordinate, fit_error)
                select s.id, e.epoch, array(select random() + s.id * 0 from generate_series(1, 9)), random()
                from sites s cross join embeddings e";
    let mut conn = pool.acquire().await.context("connect")?;
    conn.execute("set statement_timeout = 0").await.context("take time")?;
    conn.execute(text).await.context("measure the sites")?;
    conn.execute("vacuum analyze").await.context("vacuum")?;
    Ok(())
}

pub(super) async fn seed_slots(pool: &PgPool, slots: u32) -> anyhow::Result<()> {
    let changed = sqlx::query("update agents set capacity = $1").bind(i32::try_from(slots)?).execute(pool).await;
    changed.context("change the agents' slots")?;
    Ok(())
}

/// The number of leases and the number of outcomes in the database.
pub(super) async fn count_stored(pool: &PgPool) -> anyhow::Result<(i64, i64)> {
    let counted = sqlx::query_as("select (select count(*) from leases), (select count(*) from outcomes)");
    counted.fetch_one(pool).await.context("count")
}
