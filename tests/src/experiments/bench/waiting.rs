//! Measures the cost of waiting tasks: a scheduler runs with its own Postgres and many tasks in one
//! waiting state. The cost is processor time from /proc, rows from Postgres' statistics, and the
//! longest statement from pg_stat_statements, if this extension is available.
//!
//! While all tasks wait, no task changes, so all work of the scheduler and Postgres is wasted. The
//! module `waiting_tasks` creates the database in bulk. The real scheduler, whose binary is in the
//! folder of the lab's binary, runs for a few seconds before the measurement. If the state of a
//! task changes, or a background task fails, the result is an error.
//!
//! The lab queries the database before and after the period, but not during it.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use nix::unistd::Pid;
use sqlx::{Executor as _, FromRow, PgPool};

use super::bench_scheduler::BenchScheduler;
use super::line::Line;
use super::waiting_tasks::{self, WaitingCase};
use crate::cluster::postgres::DatabaseAction;
use crate::machine::{family_processor_s, load_average, processor_s};

const MOST_PERCENT: f64 = 1.0;
const MOST_MS: f64 = 100.0;
const MOST_RATIO: f64 = 1.5;
const MOST_MB: f64 = 100.0;
const MOST_BYTES: f64 = 1_200.0;

/// Arguments of `lab bench waiting`.
#[derive(Debug, Clone, Args)]
pub(super) struct WaitingArgs {
    /// Only these states of waiting tasks [default: all]
    #[arg(long = "standing", value_enum, value_name = "NAME", value_delimiter = ',')]
    state_counts: Vec<WaitingCase>,
    /// Numbers of waiting tasks to measure, each in a database of its own
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [10_000, 100_000, 1_000_000])]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    tasks: Vec<u32>,
    /// Seconds to wait before the measurement: after 8, every pass has run; after 120, every
    /// connection has cached its plans, which lowers the cost by a third
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    settle: u64,
    /// Duration of the measurement in seconds; from 60 on, it includes work that is done once a
    /// minute
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
}

/// Measures each waiting state with each number of tasks, and prints a table row per measurement.
/// Returns the comparison with the targets.
pub(super) async fn run(args: &WaitingArgs) -> anyhow::Result<Vec<Line>> {
    let all = <WaitingCase as clap::ValueEnum>::value_variants();
    let state_counts = if args.state_counts.is_empty() { all } else { &args.state_counts };
    let mut lines = vec![Line::plain("load average at the start", load_average()?)];
    println!("{}", WaitingCost::HEAD);
    for &case in state_counts {
        let mut costs = Vec::new();
        for &tasks in &args.tasks {
            let one = watch(case, tasks, args).await;
            let one = one.with_context(|| format!("{tasks} tasks, {}", case.name()))?;
            println!("{}", one.row(case));
            costs.push(one);
        }
        costs.sort_by_key(|one| one.tasks);
        lines.extend(targets(case, &costs));
    }
    lines.push(Line::plain("load average at the end", load_average()?));
    Ok(lines)
}

#[derive(Debug, Clone)]
struct WaitingCost {
    tasks: u32,
    cost: SchedulerCost,
    /// The memory of the scheduler.
    megabytes: f64,
    /// Bytes on disk per site: the first value is for all tables except the event log, and the
    /// second for the event log.
    bytes: (f64, f64),
}

impl WaitingCost {
    const HEAD: &str = "| standing | tasks | scheduler | Postgres | rows read a pass | rows written | memory | bytes a site, log | longest statement |\n\
                        |---|---|---|---|---|---|---|---|---|";

    fn row(&self, case: WaitingCase) -> String {
        let Self { tasks, cost, megabytes, bytes: (bytes, log) } = self;
        let SchedulerCost { scheduler, postgres, read, written, longest } = cost;
        let longest = longest.as_ref().map_or("unknown".to_owned(), |(ms, text)| format!("{ms:.1} ms: `{text}`"));
        format!(
            "| {} | {tasks} | {scheduler:.2} % | {postgres:.2} % | {read:.0} | {written} | {megabytes:.0} MB | {bytes:.0}, {log:.0} | {longest} |",
            case.name()
        )
    }
}

/// Compares the costs with the targets. The targets limit the cost with the most tasks, and the
/// ratio of this cost to the cost with the fewest tasks.
fn targets(case: WaitingCase, costs: &[WaitingCost]) -> Vec<Line> {
    let (Some(least), Some(most)) = (costs.first(), costs.last()) else { return Vec::new() };
    let what = |what: &str| format!("{}, {} tasks: {what}", case.name(), most.tasks);
    let mut lines =
        vec![Line::at_most(what("scheduler and Postgres, % of a core"), most.cost.together(), MOST_PERCENT)];
    if let Some((ms, _)) = most.cost.longest {
        lines.push(Line::at_most(what("longest statement, ms"), ms, MOST_MS));
    }
    if least.tasks < most.tasks {
        let ratio = most.cost.together() / least.cost.together().max(f64::MIN_POSITIVE);
        lines.push(Line::at_most(what(&format!("cost / that of {}", least.tasks)), ratio, MOST_RATIO));
    }
    lines.push(Line::at_most(what("scheduler's memory, MB"), most.megabytes, MOST_MB));
    let bytes = what("bytes a site, the log apart");
    lines.push(if case.waits() {
        Line::at_most(bytes, most.bytes.0, MOST_BYTES)
    } else {
        Line::plain(bytes, format!("{:.0}", most.bytes.0))
    });
    lines
}

/// Creates a database, runs a scheduler on the database, and measures the cost.
async fn watch(case: WaitingCase, tasks: u32, args: &WaitingArgs) -> anyhow::Result<WaitingCost> {
    let mut bench = BenchScheduler::start(waiting_tasks::AGENTS).await?;
    let statements = prepare(&bench.pool).await?;
    if statements {
        bench.postgres().apply(DatabaseAction::Restart).await?;
        begin(&bench.pool).await?;
    }
    waiting_tasks::create(&bench.pool, case, tasks).await?;
    let states = state_counts(&bench.pool).await?;
    let (mut process, _) = bench.serve().await?;
    let (scheduler, postmaster) = (process.pid().context("the scheduler runs")?, bench.postgres().pid()?);
    tokio::time::sleep(Duration::from_secs(args.settle)).await;
    let before = Counters::now(&bench.pool, scheduler, postmaster, statements).await?;
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let cost = before.cost(&bench.pool, statements).await?;
    let megabytes = process.resident_memory()? / 1e6;
    let sites = f64::from(case.sites(tasks));
    let (bytes, log) = bytes(&bench.pool).await?;
    lasted(&states, &state_counts(&bench.pool).await?)?;
    let log_text = std::fs::read_to_string(process.log()).context("read the scheduler's log")?;
    if let Some(failed) = log_text.lines().find(|line| line.contains(" ERROR ")) {
        bail!("a pass failed: {failed}");
    }
    bench.end(&mut process).await?;
    bench.close().await?;
    Ok(WaitingCost { tasks, cost, megabytes, bytes: (bytes / sites, log / sites) })
}

/// The number of tasks in a state, and the time when the last of them entered the state.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
struct StateCount {
    state: String,
    tasks: i64,
    since: chrono::DateTime<chrono::Utc>,
}

async fn state_counts(pool: &PgPool) -> anyhow::Result<Vec<StateCount>> {
    let counted =
        "select state::text, count(*) as tasks, max(state_since) as since from tasks group by state order by 1";
    sqlx::query_as(counted).fetch_all(pool).await.context("count the tasks by state")
}

fn lasted(before: &[StateCount], after: &[StateCount]) -> anyhow::Result<()> {
    ensure!(before == after, "the tasks' states changed from {before:?} to {after:?}");
    Ok(())
}

/// Interval of most background tasks. Rows read are counted per interval.
const PASS: Duration = Duration::from_secs(2);
/// Maximum number of printed characters of a statement.
const SHOWN: usize = 90;
/// Number of statements that are logged at level info: those with the longest total time.
const TOLD: usize = 5;

#[derive(Debug, Clone)]
struct SchedulerCost {
    /// The processor time of the scheduler, in per cent of a core.
    scheduler: f64,
    postgres: f64,
    /// Number of rows read per two seconds, in all tables, by scans and through indexes.
    read: f64,
    /// Number of rows written during the whole period, in all tables.
    written: i64,
    /// The longest execution of a statement in milliseconds, and the first characters of the
    /// statement; `None` without pg_stat_statements.
    longest: Option<(f64, String)>,
}

impl SchedulerCost {
    fn together(&self) -> f64 {
        self.scheduler + self.postgres
    }
}

#[derive(Debug)]
struct Counters {
    at: Instant,
    scheduler: Pid,
    postmaster: Pid,
    scheduler_s: f64,
    postgres_s: f64,
    rows: (i64, i64),
}

impl Counters {
    /// Reads the counters. If `statements` is set, also resets `pg_stat_statements`.
    async fn now(pool: &PgPool, scheduler: Pid, postmaster: Pid, statements: bool) -> anyhow::Result<Self> {
        let rows = rows(pool).await?;
        if statements {
            pool.execute("select lab.pg_stat_statements_reset()").await.context("forget the statements")?;
        }
        let (scheduler_s, postgres_s) = (processor_s(scheduler)?.0, family_processor_s(postmaster)?);
        Ok(Self { at: Instant::now(), scheduler, postmaster, scheduler_s, postgres_s, rows })
    }

    /// The cost since `self` was read.
    async fn cost(&self, pool: &PgPool, statements: bool) -> anyhow::Result<SchedulerCost> {
        let seconds = self.at.elapsed().as_secs_f64();
        let (scheduler_s, postgres_s) = (processor_s(self.scheduler)?.0, family_processor_s(self.postmaster)?);
        let longest = if statements { longest(pool).await? } else { None };
        let (read, written) = rows(pool).await?;
        let percent = |before: f64, now: f64| (now - before) / seconds * 100.0;
        let read = f64::from(u32::try_from(read - self.rows.0).unwrap_or(u32::MAX));
        Ok(SchedulerCost {
            scheduler: percent(self.scheduler_s, scheduler_s),
            postgres: percent(self.postgres_s, postgres_s),
            read: read * PASS.as_secs_f64() / seconds,
            written: written - self.rows.1,
            longest,
        })
    }
}

/// The numbers of rows read and written so far, in all tables.
async fn rows(pool: &PgPool) -> anyhow::Result<(i64, i64)> {
    let counted = "select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint,
                          coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint
                   from pg_stat_user_tables where schemaname = 'public'";
    sqlx::query_as(counted).fetch_one(pool).await.context("count rows")
}

/// Makes Postgres load pg_stat_statements at its next start. Returns false if the extension is not
/// available.
async fn prepare(pool: &PgPool) -> anyhow::Result<bool> {
    let can = "select exists (select from pg_available_extensions where name = 'pg_stat_statements')";
    let can: bool = sqlx::query_scalar(can).fetch_one(pool).await.context("ask for pg_stat_statements")?;
    if can {
        pool.execute("alter system set shared_preload_libraries = 'pg_stat_statements'").await.context("configure")?;
    }
    Ok(can)
}

/// Begins to count statements. Postgres must have been restarted after `prepare`.
async fn begin(pool: &PgPool) -> anyhow::Result<()> {
    pool.execute("create schema lab").await.context("make a schema")?;
    pool.execute("create extension pg_stat_statements schema lab").await.context("count statements")?;
    Ok(())
}

async fn longest(pool: &PgPool) -> anyhow::Result<Option<(f64, String)>> {
    let found = "select max_exec_time, total_exec_time, calls, rows, query
                 from lab.pg_stat_statements s join pg_database d on d.oid = s.dbid
                 where d.datname = current_database() and query not like '%pg_stat_statements%'
                 order by total_exec_time desc";
    let all: Vec<(f64, f64, i64, i64, String)> =
        sqlx::query_as(found).fetch_all(pool).await.context("read the statements")?;
    for (longest, ms, calls, rows, query) in all.iter().take(TOLD) {
        tracing::info!(ms, calls, rows, longest, "{}", shown(query));
    }
    let longest = all.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
    Ok(longest.map(|(longest, .., query)| (longest, shown(&query))))
}

/// The first characters of a statement as one line that fits into a Markdown table.
fn shown(query: &str) -> String {
    let lines = query.lines().filter(|line| !line.trim_start().starts_with("--"));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ").replace('|', "¦").chars().take(SHOWN).collect()
}

/// Bytes on disk including indexes: the first value is for all tables except the event log, and the
/// second for the event log.
async fn bytes(pool: &PgPool) -> anyhow::Result<(f64, f64)> {
    let size = "select coalesce(sum(pg_total_relation_size(oid)) filter (where relname <> 'events'), 0)::float8,
                       coalesce(sum(pg_total_relation_size(oid)) filter (where relname = 'events'), 0)::float8
                from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace";
    sqlx::query_as(size).fetch_one(pool).await.context("measure the tables")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_tasks_are_detected_even_when_their_number_is_the_same() {
        let state = |tasks, second| StateCount {
            state: "located".to_owned(),
            tasks,
            since: chrono::DateTime::from_timestamp(second, 0).unwrap(),
        };
        assert!(lasted(&[state(100, 7)], &[state(100, 7)]).is_ok());
        assert!(lasted(&[state(100, 7)], &[state(99, 7)]).is_err());
        assert!(lasted(&[state(100, 7)], &[state(100, 8)]).is_err());
    }

    #[test]
    fn targets_apply_to_the_largest_number_of_tasks() {
        let costs = |tasks, scheduler| WaitingCost {
            tasks,
            cost: SchedulerCost {
                scheduler,
                postgres: 0.1,
                read: 0.0,
                written: 0,
                longest: Some((120.0, "select 1".to_owned())),
            },
            megabytes: 20.0,
            bytes: (2_000.0, 100.0),
        };
        let met = |case, costs: &[WaitingCost]| -> Vec<Option<bool>> {
            targets(case, costs).iter().map(|line| line.met).collect()
        };
        let both = [costs(100, 0.1), costs(1_000, 0.4)];
        assert_eq!(met(WaitingCase::Random, &both), [Some(true), Some(false), Some(false), Some(true), Some(false)]);
        assert_eq!(met(WaitingCase::Done, &both[..1]), [Some(true), Some(false), Some(true), None]);
    }

    #[test]
    fn a_statement_is_shown_on_one_line_without_its_comments() {
        let query = "\n   with held as (\n      -- Why.\n   select a || b from tasks)\n";
        assert_eq!(shown(query), "with held as ( select a ¦¦ b from tasks)");
        assert_eq!(shown(&"x ".repeat(200)).chars().count(), SHOWN);
    }
}
