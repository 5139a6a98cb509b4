//! A sample of the sites that an embedding places, for drawing a map.

use sqlx::PgConnection;

use crate::model::EmbeddingEpoch;
use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::types::whole;

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
pub async fn sites(
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
