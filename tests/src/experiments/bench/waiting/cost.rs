//! Measures the cost of a scheduler and its Postgres over a period: processor time from /proc, rows
//! from Postgres' statistics, and the longest statement from pg_stat_statements, if this extension
//! is available.
//!
//! The lab queries the database before and after the period, but not during it.

use std::time::{Duration, Instant};

use anyhow::Context;
use nix::unistd::Pid;
use sqlx::{Executor as _, PgPool};

use crate::machine::{family_processor_s, processor_s};

/// Interval of most background tasks. Rows read are counted per interval.
const PASS: Duration = Duration::from_secs(2);
/// Maximum number of printed characters of a statement.
const SHOWN: usize = 90;
/// Number of statements that are logged at level info: those with the longest total time.
const TOLD: usize = 5;

#[derive(Debug, Clone)]
pub(super) struct SchedulerCost {
    /// The processor time of the scheduler, in per cent of a core.
    pub(super) scheduler: f64,
    pub(super) postgres: f64,
    /// Number of rows read per two seconds, in all tables, by scans and through indexes.
    pub(super) read: f64,
    /// Number of rows written during the whole period, in all tables.
    pub(super) written: i64,
    /// The longest execution of a statement in milliseconds, and the first characters of the
    /// statement; `None` without pg_stat_statements.
    pub(super) longest: Option<(f64, String)>,
}

impl SchedulerCost {
    pub(super) fn together(&self) -> f64 {
        self.scheduler + self.postgres
    }
}

#[derive(Debug)]
pub(super) struct Counters {
    at: Instant,
    scheduler: Pid,
    postmaster: Pid,
    scheduler_s: f64,
    postgres_s: f64,
    rows: (i64, i64),
}

impl Counters {
    /// Reads the counters, and resets the statistics about statements.
    pub(super) async fn now(pool: &PgPool, scheduler: Pid, postmaster: Pid, statements: bool) -> anyhow::Result<Self> {
        let rows = rows(pool).await?;
        if statements {
            pool.execute("select lab.pg_stat_statements_reset()").await.context("forget the statements")?;
        }
        let (scheduler_s, postgres_s) = (processor_s(scheduler)?.0, family_processor_s(postmaster)?);
        Ok(Self { at: Instant::now(), scheduler, postmaster, scheduler_s, postgres_s, rows })
    }

    /// The cost since `self` was read.
    pub(super) async fn cost(&self, pool: &PgPool, statements: bool) -> anyhow::Result<SchedulerCost> {
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
pub(super) async fn prepare(pool: &PgPool) -> anyhow::Result<bool> {
    let can = "select exists (select from pg_available_extensions where name = 'pg_stat_statements')";
    let can: bool = sqlx::query_scalar(can).fetch_one(pool).await.context("ask for pg_stat_statements")?;
    if can {
        pool.execute("alter system set shared_preload_libraries = 'pg_stat_statements'").await.context("configure")?;
    }
    Ok(can)
}

/// Begins to count statements. Postgres must have been restarted after `prepare`.
pub(super) async fn begin(pool: &PgPool) -> anyhow::Result<()> {
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
pub(super) async fn bytes(pool: &PgPool) -> anyhow::Result<(f64, f64)> {
    let size = "select coalesce(sum(pg_total_relation_size(oid)) filter (where relname <> 'events'), 0)::float8,
                       coalesce(sum(pg_total_relation_size(oid)) filter (where relname = 'events'), 0)::float8
                from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace";
    sqlx::query_as(size).fetch_one(pool).await.context("measure the tables")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_shown_on_one_line_without_its_comments() {
        let query = "\n   with held as (\n      -- Why.\n   select a || b from tasks)\n";
        assert_eq!(shown(query), "with held as ( select a ¦¦ b from tasks)");
        assert_eq!(shown(&"x ".repeat(200)).chars().count(), SHOWN);
    }
}
