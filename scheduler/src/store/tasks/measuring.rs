//! Moves tasks from the state submitted to measuring, and to located when their sites are measured.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, Rtt, SiteId, Strategy, Unmeasured};

use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::types::Interval;

/// A site that has tasks in the state `measuring`, and that every prober has measured or failed to
/// measure.
#[derive(Debug, Clone)]
pub struct MeasuredSite {
    pub site: SiteId,
    pub measured: Vec<(AgentId, Rtt)>,
    /// The newest failed measurement; `None` if none failed.
    pub failure: Option<String>,
    /// Whether the site's tasks have waited for longer than the `patience` given to [`heard`].
    pub overdue: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeasuringBegun {
    pub tasks: u64,
    /// Sites that became aliases after they were submitted, each with the site to which it points.
    pub aliases: Vec<(SiteId, SiteId)>,
}

/// Moves at most `limit` tasks from `submitted` to `measuring`, while fewer than `at_once` tasks
/// are in the state `measuring`.
pub async fn begin_measuring(conn: &mut PgConnection, limit: i64, at_once: i64) -> Result<MeasuringBegun, Error> {
    let measuring = sqlx::query_scalar!(
        r#"select count(*) as "count!" from (select from tasks where state = 'measuring' limit $1) measuring"#,
        at_once,
    )
    .one(conn)
    .await?;
    // These are two statements, because the planner would read all tasks if one statement joined
    // the chosen tasks with the table `tasks`.
    let next = sqlx::query_scalar!(
        "select id from tasks where state = 'submitted' order by id limit $1 for update skip locked",
        limit.min(at_once - measuring).max(0),
    )
    .all(conn)
    .await?;
    let begun = sqlx::query!(
        r#"
        update tasks t set state = 'measuring', reason = null, state_since = now()
        where id = any($1)
        returning t.site_id, (select s.alias_of from sites s where s.id = t.site_id) as "alias_of: SiteId"
        "#,
        &next as _,
    )
    .all(conn)
    .await?;
    let tasks = u64::try_from(begun.len()).unwrap_or(u64::MAX);
    let aliases = begun.into_iter().filter_map(|row| Some((row.site_id, row.alias_of?)));
    let aliases: BTreeMap<SiteId, SiteId> = aliases.collect();
    Ok(MeasuringBegun { tasks, aliases: aliases.into_iter().collect() })
}

/// At most `limit` sites that have tasks in the state `measuring`, and that each of these probers
/// has measured or failed to measure. Measurements are counted as in
/// [`crate::store::measurements::site_orders::due_sites`]. The oldest site comes first. Returns no
/// site if there is no prober.
pub async fn heard(
    conn: &mut PgConnection,
    probers: &[AgentId],
    max_age: Duration,
    patience: Duration,
    limit: i64,
) -> Result<Vec<MeasuredSite>, Error> {
    let rows = sqlx::query!(
        r#"
        with waiting as (
            select site_id, min(state_since) as since from tasks where state = 'measuring' group by site_id
        ), known as (
            select waiting.site_id, since, prober_id, rtt_us, failure, measured_at
            from waiting
            join site_measurements using (site_id)
            join sites on sites.id = site_id
            where measured_at >= case when rtt_us is null then since
                                      else greatest(since - $2::interval, doubted_at) end
              and prober_id not in (select q.agent_id from quarantines q where q.released_at is null)
        ), heard as (
            -- `known` has at most one row per site and prober, so the rows can be counted.
            select site_id, min(since) as since from known
            where prober_id = any($1)
            group by site_id
            having count(*) = cardinality($1)
            order by site_id
            limit $4
        )
        select heard.site_id,
               array_agg(prober_id order by prober_id) filter (where rtt_us is not null) as "probers: Vec<AgentId>",
               array_agg(rtt_us order by prober_id) filter (where rtt_us is not null) as "rtts: Vec<Rtt>",
               (array_agg(failure order by measured_at desc) filter (where failure is not null))[1] as failure,
               heard.since < now() - $3::interval as "overdue!"
        from heard join known using (site_id)
        group by heard.site_id, heard.since
        order by heard.site_id
        "#,
        probers as _,
        Interval(max_age),
        Interval(patience),
        limit,
    )
    .all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let measured = row.probers.unwrap_or_default().into_iter().zip(row.rtts.unwrap_or_default()).collect();
            MeasuredSite { site: row.site_id, measured, failure: row.failure, overdue: row.overdue }
        })
        .collect())
}

/// Moves the tasks of these sites from `measuring` to `located`. If no round trip to a site is
/// known, its tasks store the reason.
pub async fn locate(conn: &mut PgConnection, located: &[(SiteId, Option<Unmeasured>)]) -> Result<u64, Error> {
    let sites: Vec<i64> = located.iter().map(|(site, _)| site.get()).collect();
    let unmeasured = located.iter().map(|(_, unmeasured)| unmeasured.as_ref());
    let (causes, said): (Vec<Option<&str>>, Vec<Option<&str>>) =
        unmeasured.map(|one| one.map(|one| (one.cause.name(), one.said.as_str())).unzip()).unzip();
    sqlx::query!(
        r#"
        with moved as (
            select tasks.id, located.cause, located.said
            from tasks
            join unnest($1::bigint[], $2::text[], $3::text[]) as located (site_id, cause, said)
                on located.site_id = tasks.site_id
            where tasks.state::text = 'measuring'
            order by tasks.id
            for update of tasks
        )
        update tasks set state = 'located', state_since = now(),
                         unmeasured = moved.cause::unmeasured_cause, unmeasured_detail = moved.said
        from moved where tasks.id = moved.id
        "#,
        &sites,
        &causes as &[Option<&str>],
        &said as &[Option<&str>],
    )
    .affected(conn)
    .await
}

/// The names of the strategies for which sites must be measured first. Tasks of other strategies
/// begin in the state located.
pub(in crate::store) fn distanced() -> Vec<String> {
    Strategy::each().filter(|strategy| strategy.needs_measuring()).map(String::from).collect()
}
