//! Reads the coordinates of agents and located sites, as the input of a capacity plan and, in a
//! sample, for drawing a map.
//!
//! The functions for a capacity plan take no locks and write nothing. Sites are read row by row, so
//! memory contains only what the caller keeps.

use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::PgConnection;

use crate::capacity::Sites;
use crate::model::{AgentId, EmbeddingEpoch, SiteId};
use crate::store::Error;
use crate::store::rows_and_errors::Rows;
use crate::store::types::{Unsigned, whole};

/// An embedding in which sites are located.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocatedEmbedding {
    pub epoch: EmbeddingEpoch,
    /// Number of dimensions, without the height.
    pub dimensions: usize,
    /// Number of sites located in this embedding.
    pub sites: u64,
    /// Number of sites located only in other embeddings.
    pub elsewhere: u64,
}

/// An agent that has not been removed.
#[derive(Debug, Clone, PartialEq)]
pub struct EnrolledAgent {
    pub agent: AgentId,
    pub name: String,
    pub city: String,
    pub carrier: String,
    pub slots: u32,
    pub draining: bool,
    /// The agent's coordinates in the embedding, in milliseconds.
    pub coordinate: Option<Vec<f64>>,
}

/// The newest embedding in which sites are located; `None` if no site is located.
pub async fn located(conn: &mut PgConnection) -> Result<Option<LocatedEmbedding>, Error> {
    let rows = sqlx::query!(
        r#"
        select p.epoch, e.dimensions, p.sites as "sites!: Unsigned<u64>"
        from (select epoch, count(*) as sites from site_placements group by epoch) p join embeddings e on e.epoch = p.epoch
        order by p.epoch desc
        "#,
    )
    .all(conn)
    .await?;
    let mut newest: Option<LocatedEmbedding> = None;
    for row in rows {
        match &mut newest {
            Some(newest) => newest.elsewhere += row.sites.0,
            None => {
                newest = Some(LocatedEmbedding {
                    epoch: row.epoch,
                    dimensions: row.dimensions.into(),
                    sites: row.sites.0,
                    elsewhere: 0,
                });
            }
        }
    }
    Ok(newest)
}

/// Every agent that has not been removed, with its coordinates in an embedding. Sorted by name.
pub async fn agents(conn: &mut PgConnection, epoch: EmbeddingEpoch) -> Result<Vec<EnrolledAgent>, Error> {
    let agents = sqlx::query_as!(
        EnrolledAgent,
        r#"
        select a.id as agent, a.name, a.city, a.carrier, a.capacity as slots, a.draining_since is not null as "draining!",
               p.coordinate as "coordinate?"
        from agents a left join agent_placements p on p.agent_id = a.id and p.epoch = $1
        where a.removed_at is null
        order by a.name
        "#,
        epoch.get(),
    );
    agents.all(conn).await
}

/// Reads the sites of an embedding, without aliases. Returns the number of sites omitted because
/// they may stand in several places.
pub async fn sites(conn: &mut PgConnection, sites: &mut Sites) -> Result<u64, Error> {
    let mut rows = sqlx::query!(
        r#"
        select p.site_id, p.coordinate, v.site_id is not null as "suspect!",
               last.interval_ms as "interval_ms?", last.pages as "pages?", last.bytes as "bytes?"
        from site_placements p
        left join site_verdicts v on v.site_id = p.site_id and v.suspect
        left join (
            -- For each site, the task whose crawl ended last; without a crawl, the newest task.
            select distinct on (t.site_id) t.site_id, b.request_interval_ms as interval_ms, o.pages, o.bytes
            from tasks t
            join batches b on b.id = t.batch_id
            left join outcomes o on o.task_id = t.id and o.kind in ('complete', 'truncated')
            order by t.site_id, o.accepted_at desc nulls last, t.id desc
        ) last on last.site_id = p.site_id
        where p.epoch = $1 and not exists (select from sites s where s.id = p.site_id and s.alias_of is not null)
        "#,
        sites.epoch().get(),
    )
    .fetch(conn);
    let mut suspects = 0;
    while let Some(row) = rows.try_next().await? {
        if row.suspect {
            suspects += 1;
            continue;
        }
        let size = match (row.pages, row.bytes) {
            (Some(pages), Some(bytes)) => Some((pages.0, bytes.0)),
            _ => None,
        };
        sites.push(row.site_id, &row.coordinate, size, row.interval_ms.map(Duration::from)).map_err(|error| {
            Error::inconsistent("site_placements", "coordinate", &format!("of site {}: {error}", row.site_id))
        })?;
    }
    Ok(suspects)
}

/// The names of these sites. Deleted sites are absent.
pub async fn names(
    conn: &mut PgConnection,
    sites: &[SiteId],
) -> Result<std::collections::HashMap<SiteId, String>, Error> {
    let rows = sqlx::query!("select id, name from sites where id = any($1)", sites as _).all(conn).await?;
    Ok(rows.into_iter().map(|row| (row.id, row.name)).collect())
}

/// A table with up to this many times the wanted number of rows is read completely. A sample of
/// such a small table would consist of so few blocks that its size could differ considerably from
/// the wanted size.
const READ_WHOLE: f64 = 4.0;

#[derive(Debug, Clone, PartialEq)]
pub struct PlacedSite {
    pub name: String,
    /// The coordinates in milliseconds: one component per dimension, then the height.
    pub coordinate: Vec<f64>,
    /// The agent of the site's newest assignment.
    pub agent: Option<String>,
    /// The site's position in degrees north and east; `None` when unknown.
    pub position: Option<(f64, f64)>,
}

/// A sample of about `wanted` sites that this embedding places, and the approximate number of sites
/// placed in all embeddings. Reads the same randomly chosen blocks of the table each time, so that
/// drawings of an unchanged map are equal.
pub async fn placed_sites(
    conn: &mut PgConnection,
    epoch: EmbeddingEpoch,
    wanted: u32,
) -> Result<(Vec<PlacedSite>, u64), Error> {
    // The statistics are at most minutes old. `reltuples` is negative before the statistics are
    // first collected.
    let placed = sqlx::query_scalar!(
        r#"select greatest(reltuples, 0)::float8 as "placed!" from pg_class where oid = 'site_placements'::regclass"#
    );
    let placed = placed.one(&mut *conn).await?;
    let wanted_share = f64::from(wanted) / placed.max(1.0);
    let percent = if wanted_share * READ_WHOLE >= 1.0 { 100.0 } else { wanted_share * 100.0 };
    let rows = sqlx::query!(
        r#"
        select s.name, p.coordinate, s.latitude, s.longitude, a.name as "agent?"
        from (
            select site_id, coordinate from site_placements tablesample system ($2::float8::real) repeatable (1)
            where epoch = $1 limit $3
        ) p
        join sites s on s.id = p.site_id
        left join lateral (
            select (select c.agent_id from assignments c where c.id = t.assignment_id) as agent_id
            from tasks t where t.site_id = p.site_id order by t.id desc limit 1
        ) newest on true
        left join agents a on a.id = newest.agent_id
        "#,
        epoch.get(),
        percent,
        whole::<i64, _>(wanted),
    )
    .all(conn)
    .await?;
    let sites: Vec<PlacedSite> = rows
        .into_iter()
        .map(|row| PlacedSite {
            name: row.name,
            coordinate: row.coordinate,
            agent: row.agent,
            position: row.latitude.zip(row.longitude),
        })
        .collect();
    let placed = format!("{placed:.0}").parse::<u64>().unwrap_or_default();
    Ok((sites, placed))
}
