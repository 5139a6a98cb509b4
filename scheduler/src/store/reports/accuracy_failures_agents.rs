//! Reads the reports of the accuracy of predictions, of failed sites and of agents' work, and
//! defines what a report counts and by which properties it groups its rows.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, ReasonKind, ReportGroup, Rtt};
use crate::store::Error;
use crate::store::agents::{self, Agent};
use crate::store::rows_and_errors::Rows;
use crate::store::types::{Unsigned, whole};

/// The accuracy of the predictions for some crawls.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AccuracyRow {
    /// The agent's name, city and carrier, and the day in UTC. A field is `None` if rows are not
    /// grouped by it.
    pub agent: Option<String>,
    pub city: Option<String>,
    pub carrier: Option<String>,
    pub day: Option<String>,
    /// Errors of the predictions, compared with the median round trips of the crawls.
    pub crawled: Errors,
    /// Errors of the predictions, compared with the round trips that the agents had measured before
    /// they were chosen.
    pub probed: Errors,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Errors {
    pub count: u64,
    /// The median and the 90th percentile of |predicted - measured| / measured; `None` without
    /// predictions.
    pub median: Option<f64>,
    pub p90: Option<f64>,
    /// The median of measured / predicted.
    pub ratio: Option<f64>,
}

/// The accuracy of the predictions used to choose the agents of these crawls, for each combination
/// of the properties `by`. At most `limit` rows after `after`, sorted by their keys, and the number
/// of all rows after `after`. Reads the ended crawls that the filter selects, through an index by
/// agent and time, or by batch. Run in a snapshot, whose memory this function raises.
pub async fn accuracy(
    conn: &mut PgConnection,
    wanted: &CrawlFilter,
    by: Groups,
    after: Option<&AccuracyKey>,
    limit: i64,
) -> Result<(Vec<AccuracyRow>, u64), Error> {
    // With less memory, Postgres would join a million crawls in temporary files.
    sqlx::query!("select set_config('work_mem', '64MB', true) as work_mem").one(conn).await?;
    let rows = sqlx::query!(
        r#"
        with crawled as (
            -- Postgres executes only one of these two parts.
            select o.task_id, o.agent_id, o.rtt_us, o.accepted_at
            from agents a join outcomes o on o.agent_id = a.id
            where $1::bigint is null and ($2::bigint[] is null or a.id = any($2))
              and o.accepted_at >= coalesce($3, '-infinity'::timestamptz) and o.accepted_at < coalesce($4, 'infinity'::timestamptz)
            union all
            select o.task_id, o.agent_id, o.rtt_us, o.accepted_at
            from tasks t join outcomes o on o.task_id = t.id
            where t.batch_id = $1 and ($2 is null or o.agent_id = any($2))
              and o.accepted_at >= coalesce($3, '-infinity'::timestamptz) and o.accepted_at < coalesce($4, 'infinity'::timestamptz)
        ), known as (
            select o.agent_id, o.accepted_at, nullif(o.rtt_us, 0)::float8 as crawled,
                   c.predicted_us[array_position(c.candidates, c.agent_id)]::float8 as predicted,
                   c.measured_us[array_position(c.candidates, c.agent_id)]::float8 as probed
            from crawled o
            join tasks t on t.id = o.task_id
            join assignments c on c.id = t.assignment_id and c.agent_id = o.agent_id
        ), errors as (
            select case when $5 then a.name end as agent, case when $6 then a.city end as city,
                   case when $7 then a.carrier end as carrier,
                   case when $8 then to_char(k.accepted_at at time zone 'UTC', 'YYYY-MM-DD') end as day,
                   abs(predicted - crawled) / crawled as crawled_error, crawled / predicted as crawled_ratio,
                   abs(predicted - probed) / probed as probed_error, probed / predicted as probed_ratio
            from known k join agents a on a.id = k.agent_id
            where predicted > 0 and (crawled is not null or probed is not null)
        )
        select agent, city, carrier, day,
               count(crawled_error) as "crawls!: Unsigned<u64>",
               percentile_cont(array[0.5, 0.9]) within group (order by crawled_error) as crawled_error,
               percentile_cont(0.5) within group (order by crawled_ratio) as crawled_ratio,
               count(probed_error) as "probes!: Unsigned<u64>",
               percentile_cont(array[0.5, 0.9]) within group (order by probed_error) as probed_error,
               percentile_cont(0.5) within group (order by probed_ratio) as probed_ratio,
               count(*) over () as "all!: Unsigned<u64>"
        from errors
        group by agent, city, carrier, day
        -- Arrays are compared element by element; null follows every text, and equals null.
        having $9::text[] is null or array[city, carrier, agent, day] > $9
        order by array[city, carrier, agent, day]
        limit $10
        "#,
        wanted.batch.map(BatchId::get),
        wanted.agents.as_ref() as _,
        wanted.since,
        wanted.until,
        by.agent,
        by.city,
        by.carrier,
        by.day,
        after as _,
        limit,
    )
    .all(conn)
    .await?;
    let all = rows.first().map_or(0, |row| row.all.0);
    let errors = |count: Unsigned<u64>, quantiles: Option<Vec<f64>>, ratio| {
        let quantile = |index| quantiles.as_ref().and_then(|all| all.get(index).copied());
        Errors { count: count.0, median: quantile(0), p90: quantile(1), ratio }
    };
    let rows = rows.into_iter().map(|row| AccuracyRow {
        agent: row.agent,
        city: row.city,
        carrier: row.carrier,
        day: row.day,
        crawled: errors(row.crawls, row.crawled_error, row.crawled_ratio),
        probed: errors(row.probes, row.probed_error, row.probed_ratio),
    });
    Ok((rows.collect(), all))
}

/// The key by which rows of accuracy are sorted: city, carrier, agent and day.
pub type AccuracyKey = Vec<Option<String>>;

impl AccuracyRow {
    pub fn key(&self) -> AccuracyKey {
        [&self.city, &self.carrier, &self.agent, &self.day].map(Clone::clone).into()
    }
}

/// A group of sites whose newest rounds failed.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureRow {
    /// The values that the sites have in common. A field is `None` if rows are not grouped by it,
    /// or if the sites had no agent.
    pub reason: Option<ReasonKind>,
    pub agent: Option<String>,
    pub city: Option<String>,
    pub carrier: Option<String>,
    pub day: Option<String>,
    pub batch: Option<String>,
    pub sites: u64,
    /// The group's share of all failed sites that the filter selects, 0 to 1.
    pub share: f64,
    /// When the newest failure of the group occurred.
    pub last: DateTime<Utc>,
    /// The name of one site of the group.
    pub example: String,
}

/// The key by which rows of failures are sorted: the number of sites, the largest first, and then
/// reason, batch, city, carrier, agent and day.
pub type FailureKey = (i64, Vec<Option<String>>);

impl FailureRow {
    pub fn key(&self) -> FailureKey {
        let reason = self.reason.map(|reason| reason.name().to_owned());
        let groups = [&self.batch, &self.city, &self.carrier, &self.agent, &self.day].map(Clone::clone);
        (whole(self.sites), std::iter::once(reason).chain(groups).collect())
    }
}

/// Counts failed sites for each combination of the properties `by`. At most `limit` rows after
/// `after`, sorted by their keys, and the number of all rows after `after`. Reads only failed
/// tasks, through an index by batch and time.
pub async fn failures(
    conn: &mut PgConnection,
    wanted: &CrawlFilter,
    reasons: &[ReasonKind],
    by: Groups,
    after: Option<&FailureKey>,
    limit: i64,
) -> Result<(Vec<FailureRow>, u64), Error> {
    let reasons: Vec<String> = reasons.iter().map(|reason| reason.name().to_owned()).collect();
    let rows = sqlx::query!(
        r#"
        with failed as (
            select case when $5 then coalesce(t.reason_kind::text, 'other') end as reason,
                   case when $6 then a.name end as agent, case when $7 then a.city end as city,
                   case when $8 then a.carrier end as carrier,
                   case when $9 then to_char(t.state_since at time zone 'UTC', 'YYYY-MM-DD') end as day,
                   case when $10 then b.name end as batch,
                   t.state_since, t.site_id
            from batches b
            join tasks t on t.batch_id = b.id and t.state = 'failed' and t.retried_at is null
            left join assignments c on c.id = t.assignment_id
            left join agents a on a.id = c.agent_id
            where ($1::bigint is null or b.id = $1) and ($2::bigint[] is null or c.agent_id = any($2))
              and t.state_since >= coalesce($3, '-infinity'::timestamptz) and t.state_since < coalesce($4, 'infinity'::timestamptz)
              and (cardinality($11::text[]) = 0 or coalesce(t.reason_kind::text, 'other') = any($11))
        ), counted as (
            select reason, agent, city, carrier, day, batch, count(*) as sites, max(state_since) as last, min(site_id) as example
            from failed
            group by reason, agent, city, carrier, day, batch
        ), sorted as (
            -- Arrays are compared element by element; null follows every text, and equals null.
            select *, array[reason, batch, city, carrier, agent, day] as key, (sites / sum(sites) over ())::float8 as share
            from counted
        )
        select c.reason as "reason: ReasonKind", c.agent, c.city, c.carrier, c.day, c.batch,
               c.sites as "sites!: Unsigned<u64>", c.share as "share!", c.last as "last!", s.name as example,
               count(*) over () as "all!: Unsigned<u64>"
        from sorted c join sites s on s.id = c.example
        where $12::bigint is null or c.sites < $12 or (c.sites = $12 and c.key > $13::text[])
        order by c.sites desc, c.key
        limit $14
        "#,
        wanted.batch.map(BatchId::get),
        wanted.agents.as_ref() as _,
        wanted.since,
        wanted.until,
        by.reason,
        by.agent,
        by.city,
        by.carrier,
        by.day,
        by.batch,
        &reasons,
        after.map(|(sites, _)| *sites),
        after.map(|(_, groups)| groups) as _,
        limit,
    )
    .all(conn)
    .await?;
    let all = rows.first().map_or(0, |row| row.all.0);
    let rows = rows.into_iter().map(|row| FailureRow {
        reason: row.reason,
        agent: row.agent,
        city: row.city,
        carrier: row.carrier,
        day: row.day,
        batch: row.batch,
        sites: row.sites.0,
        share: row.share,
        last: row.last,
        example: row.example,
    });
    Ok((rows.collect(), all))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    /// The agent's present state, which does not depend on the batch.
    pub agent: Agent,
    /// Number of tasks whose newest assignment is to this agent.
    pub assigned: u64,
    pub complete: u64,
    pub truncated: u64,
    /// Number of crawls that ended neither complete nor truncated.
    pub failed: u64,
    pub pages: u64,
    pub bytes: u64,
    /// The mean of the median round trips of the agent's crawls.
    pub mean_rtt: Option<Rtt>,
}

/// These agents, with the work that each has done in one batch or in all batches. Sorted by name.
pub async fn agents(conn: &mut PgConnection, batch: Option<BatchId>, ids: &[AgentId]) -> Result<Vec<AgentRow>, Error> {
    let fleet = agents::with_ids(conn, ids).await?;
    let mut fleet: HashMap<AgentId, Agent> = fleet.into_iter().map(|agent| (agent.id, agent)).collect();
    let rows = sqlx::query!(
        r#"
        select a.id,
               coalesce(chosen.tasks, 0) as "assigned!: Unsigned<u64>",
               coalesce(crawled.complete, 0) as "complete!: Unsigned<u64>", coalesce(crawled.truncated, 0) as "truncated!: Unsigned<u64>",
               coalesce(crawled.failed, 0) as "failed!: Unsigned<u64>",
               coalesce(crawled.pages, 0) as "pages!: Unsigned<u64>", coalesce(crawled.bytes, 0) as "bytes!: Unsigned<u64>",
               crawled.mean_rtt_us as "mean_rtt_us?: Rtt"
        from agents a
        left join (
            select c.agent_id, count(*) as tasks
            from tasks t join assignments c on c.id = t.assignment_id
            where ($1::bigint is null or t.batch_id = $1) and c.agent_id = any($2)
            group by c.agent_id
        ) chosen on chosen.agent_id = a.id
        left join (
            select o.agent_id,
                   count(*) filter (where o.kind = 'complete') as complete,
                   count(*) filter (where o.kind = 'truncated') as truncated,
                   count(*) filter (where o.kind not in ('complete', 'truncated')) as failed,
                   sum(o.pages)::bigint as pages,
                   -- An agent may report any number, so the sum may not fit into a bigint.
                   least(sum(o.bytes), 9223372036854775807)::bigint as bytes,
                   ceil(avg(o.rtt_us))::bigint as mean_rtt_us
            from outcomes o join tasks t on t.id = o.task_id
            where ($1::bigint is null or t.batch_id = $1) and o.agent_id = any($2)
            group by o.agent_id
        ) crawled on crawled.agent_id = a.id
        where a.id = any($2)
        order by a.name
        "#,
        batch.map(BatchId::get),
        ids as _,
    )
    .all(conn)
    .await?;
    let rows = rows.into_iter().filter_map(|row| {
        Some(AgentRow {
            agent: fleet.remove(&row.id)?,
            assigned: row.assigned.0,
            complete: row.complete.0,
            truncated: row.truncated.0,
            failed: row.failed.0,
            pages: row.pages.0,
            bytes: row.bytes.0,
            mean_rtt: row.mean_rtt_us,
        })
    });
    Ok(rows.collect())
}

/// Selects crawls, or selects sites by the agent of their newest assignment.
#[derive(Debug, Clone, Default)]
pub struct CrawlFilter {
    /// `None` selects all batches.
    pub batch: Option<BatchId>,
    /// `None` selects all agents, and also sites without an agent.
    pub agents: Option<Vec<AgentId>>,
    /// The crawls ended at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// The crawls ended before this time.
    pub until: Option<DateTime<Utc>>,
}

/// Selects the tasks of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportScope {
    pub batch: BatchId,
    /// The round; `None` selects each site's newest round.
    pub round: Option<u32>,
}

impl ReportScope {
    pub const fn newest(batch: BatchId) -> Self {
        Self { batch, round: None }
    }

    pub(super) fn stored(self) -> Option<i32> {
        self.round.map(whole)
    }
}

/// The properties by which rows are grouped: one row for each combination of their values. If no
/// property is set, there is only one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Groups {
    pub agent: bool,
    pub city: bool,
    pub carrier: bool,
    pub day: bool,
    pub reason: bool,
    pub batch: bool,
}

impl Groups {
    pub fn of(groups: &[ReportGroup]) -> Self {
        let has = |group| groups.contains(&group);
        Self {
            agent: has(ReportGroup::Agent),
            city: has(ReportGroup::City),
            carrier: has(ReportGroup::Carrier),
            day: has(ReportGroup::Day),
            reason: has(ReportGroup::Reason),
            batch: has(ReportGroup::Batch),
        }
    }
}
