//! Computes how well predicted round trips agreed with measured ones in ended crawls.

use sqlx::{Connection as _, PgConnection};

use crate::model::BatchId;
use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::types::Unsigned;

use super::filters::CrawlFilter;
use super::groups::Groups;

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
/// of the properties `by`. Sorted by city, carrier, agent and day. Reads the ended crawls that the
/// filter selects, through an index by agent and time, or by batch.
pub async fn accuracy(conn: &mut PgConnection, wanted: &CrawlFilter, by: Groups) -> Result<Vec<AccuracyRow>, Error> {
    let mut tx = conn.begin().await?;
    // With less memory, Postgres would join a million crawls in temporary files.
    sqlx::query!("select set_config('work_mem', '64MB', true) as work_mem").one(&mut tx).await?;
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
               percentile_cont(0.5) within group (order by probed_ratio) as probed_ratio
        from errors
        group by agent, city, carrier, day
        order by city, carrier, agent, day
        "#,
        wanted.batch.map(BatchId::get),
        wanted.agents.as_ref() as _,
        wanted.since,
        wanted.until,
        by.agent,
        by.city,
        by.carrier,
        by.day,
    )
    .all(&mut tx)
    .await?;
    tx.commit().await?;
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
    Ok(rows.collect())
}
