//! What waiting costs: a scheduler on its own Postgres, with as many tasks as are asked for in each standing that lasts.
//!
//! Nothing happens in such a database, so that whatever is paid for is paid for nothing. The database is made in bulk (`seed`); the real
//! scheduler, the binary beside the lab's own, has a few seconds to settle; then processor time, rows and statements are counted over a
//! window (`cost`). A standing that did not last, or in which a pass failed, is an error: its figures would be another's.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use sqlx::{FromRow, PgPool};

use super::Line;
use super::leases::{Bench, load, resident};
use crate::cluster::database::OnDatabase;
use cost::{Cost, Count};
use seed::Standing;

mod cost;
mod seed;

const MOST_PERCENT: f64 = 1.0;
const MOST_MS: f64 = 100.0;
const MOST_RATIO: f64 = 1.5;
const MOST_MB: f64 = 100.0;
const MOST_BYTES: f64 = 1_200.0;

/// What may be typed after `lab bench waiting`.
#[derive(Debug, Clone, Args)]
pub(super) struct WaitingArgs {
    /// Only these standings [default: all]
    #[arg(long = "standing", value_enum, value_name = "NAME", value_delimiter = ',')]
    standings: Vec<Standing>,
    /// Tasks in each database, a database each
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [10_000, 100_000, 1_000_000])]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    tasks: Vec<u32>,
    /// Seconds before that: by eight each pass was made; by 120 each connection has its plans, which cost a third more before
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    settle: u64,
    /// Seconds that each is watched; what is tidied up once a minute counts from 60 on
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
}

/// Watches each standing with each number of tasks; prints a row of a table for each, and returns the targets.
pub(super) async fn run(args: &WaitingArgs) -> anyhow::Result<Vec<Line>> {
    let all = <Standing as clap::ValueEnum>::value_variants();
    let standings = if args.standings.is_empty() { all } else { &args.standings };
    let mut lines = vec![Line::plain("load average at the start", load()?)];
    println!("{}", Watched::HEAD);
    for &standing in standings {
        let mut watched = Vec::new();
        for &tasks in &args.tasks {
            let one = watch(standing, tasks, args).await;
            let one = one.with_context(|| format!("{tasks} tasks, {}", standing.name()))?;
            println!("{}", one.row(standing));
            watched.push(one);
        }
        watched.sort_by_key(|one| one.tasks);
        lines.extend(targets(standing, &watched));
    }
    lines.push(Line::plain("load average at the end", load()?));
    Ok(lines)
}

/// One standing with one number of tasks.
#[derive(Debug, Clone)]
struct Watched {
    tasks: u32,
    cost: Cost,
    /// The scheduler's memory, in MB.
    megabytes: f64,
    /// On disk, for each site: all but the log, and the log.
    bytes: (f64, f64),
}

impl Watched {
    const HEAD: &str = "| standing | tasks | scheduler | Postgres | rows read a pass | rows written | memory | bytes a site, log | longest statement |\n\
                        |---|---|---|---|---|---|---|---|---|";

    /// As a row of a table.
    fn row(&self, standing: Standing) -> String {
        let Self { tasks, cost, megabytes, bytes: (bytes, log) } = self;
        let Cost { scheduler, postgres, read, written, longest } = cost;
        let longest = longest.as_ref().map_or("unknown".to_owned(), |(ms, text)| format!("{ms:.1} ms: `{text}`"));
        format!(
            "| {} | {tasks} | {scheduler:.2} % | {postgres:.2} % | {read:.0} | {written} | {megabytes:.0} MB | {bytes:.0}, {log:.0} | {longest} |",
            standing.name()
        )
    }
}

/// What must hold of the largest number of tasks, and of it beside the smallest.
fn targets(standing: Standing, watched: &[Watched]) -> Vec<Line> {
    let (Some(least), Some(most)) = (watched.first(), watched.last()) else { return Vec::new() };
    let what = |what: &str| format!("{}, {} tasks: {what}", standing.name(), most.tasks);
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
    lines.push(if standing.waits() {
        Line::at_most(bytes, most.bytes.0, MOST_BYTES)
    } else {
        Line::plain(bytes, format!("{:.0}", most.bytes.0))
    });
    lines
}

/// Makes a database, lets a scheduler have it, and counts.
async fn watch(standing: Standing, tasks: u32, args: &WaitingArgs) -> anyhow::Result<Watched> {
    let mut bench = Bench::start(seed::AGENTS).await?;
    let statements = cost::prepare(&bench.pool).await?;
    if statements {
        bench.postgres().apply(OnDatabase::Restart).await?;
        cost::begin(&bench.pool).await?;
    }
    seed::stand(&bench.pool, standing, tasks).await?;
    let stood = standings(&bench.pool).await?;
    let (mut process, _) = bench.serve().await?;
    let (scheduler, postmaster) = (process.pid().context("the scheduler runs")?, bench.postgres().pid()?);
    tokio::time::sleep(Duration::from_secs(args.settle)).await;
    let before = Count::now(&bench.pool, scheduler, postmaster, statements).await?;
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let cost = before.cost(&bench.pool, statements).await?;
    let megabytes = resident(&process)? / 1e6;
    let sites = f64::from(standing.sites(tasks));
    let (bytes, log) = cost::bytes(&bench.pool).await?;
    lasted(&stood, &standings(&bench.pool).await?)?;
    let log_text = std::fs::read_to_string(process.log()).context("read the scheduler's log")?;
    if let Some(failed) = log_text.lines().find(|line| line.contains(" ERROR ")) {
        bail!("a pass failed: {failed}");
    }
    bench.end(&mut process).await?;
    bench.close().await?;
    Ok(Watched { tasks, cost, megabytes, bytes: (bytes / sites, log / sites) })
}

/// Tasks of one state, and when the last of them entered it.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
struct Stands {
    state: String,
    tasks: i64,
    since: chrono::DateTime<chrono::Utc>,
}

async fn standings(pool: &PgPool) -> anyhow::Result<Vec<Stands>> {
    let counted =
        "select state::text, count(*) as tasks, max(state_since) as since from tasks group by state order by 1";
    sqlx::query_as(counted).fetch_all(pool).await.context("count the tasks by state")
}

/// Complains when the tasks did not stay what they were.
fn lasted(before: &[Stands], after: &[Stands]) -> anyhow::Result<()> {
    ensure!(before == after, "the standing did not last: of {before:?} it became {after:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_moved_are_noticed_even_when_as_many_came_back() {
        let stands = |tasks, second| Stands {
            state: "located".to_owned(),
            tasks,
            since: chrono::DateTime::from_timestamp(second, 0).unwrap(),
        };
        assert!(lasted(&[stands(100, 7)], &[stands(100, 7)]).is_ok());
        assert!(lasted(&[stands(100, 7)], &[stands(99, 7)]).is_err());
        assert!(lasted(&[stands(100, 7)], &[stands(100, 8)]).is_err());
    }

    #[test]
    fn targets_are_for_the_largest_number_of_tasks_and_what_is_done_may_be_of_any_size() {
        let watched = |tasks, scheduler| Watched {
            tasks,
            cost: Cost {
                scheduler,
                postgres: 0.1,
                read: 0.0,
                written: 0,
                longest: Some((120.0, "select 1".to_owned())),
            },
            megabytes: 20.0,
            bytes: (2_000.0, 100.0),
        };
        let met = |standing, watched: &[Watched]| -> Vec<Option<bool>> {
            targets(standing, watched).iter().map(|line| line.met).collect()
        };
        let both = [watched(100, 0.1), watched(1_000, 0.4)];
        assert_eq!(met(Standing::Random, &both), [Some(true), Some(false), Some(false), Some(true), Some(false)]);
        assert_eq!(met(Standing::Done, &both[..1]), [Some(true), Some(false), Some(true), None]);
    }
}
