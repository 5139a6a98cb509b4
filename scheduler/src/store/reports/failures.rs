//! Counts failed sites by reason, agent, city, carrier, day and batch.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{BatchId, ReasonKind};
use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::types::Unsigned;

use super::filters::CrawlFilter;
use super::groups::Groups;

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

/// Counts failed sites for each combination of the properties `by`, the most frequent first. Reads
/// only failed tasks, through an index by batch and time.
pub async fn failures(
    conn: &mut PgConnection,
    wanted: &CrawlFilter,
    reasons: &[ReasonKind],
    by: Groups,
) -> Result<Vec<FailureRow>, Error> {
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
        )
        select c.reason as "reason: ReasonKind", c.agent, c.city, c.carrier, c.day, c.batch,
               c.sites as "sites!: Unsigned<u64>", (c.sites / sum(c.sites) over ())::float8 as "share!", c.last as "last!",
               s.name as example
        from counted c join sites s on s.id = c.example
        order by c.sites desc, c.reason, c.batch, c.city, c.carrier, c.agent, c.day
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
    )
    .all(conn)
    .await?;
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
    Ok(rows.collect())
}
