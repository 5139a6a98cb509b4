//! Placements of sites: each site's coordinates in the newest embedding in which it was located,
//! and the sites that are still placed in an older one.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::gnp::Placement;
use crate::model::{EmbeddingEpoch, SiteId};
use crate::store::Error;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::whole;

#[derive(Debug, Clone)]
pub struct LocatedSite {
    pub site: SiteId,
    pub placement: Placement,
}

/// The placements of these sites in one embedding. Sites that were not located in this embedding
/// are absent.
pub async fn sites(
    conn: &mut PgConnection,
    sites: &[SiteId],
    epoch: EmbeddingEpoch,
) -> Result<HashMap<SiteId, Placement>, Error> {
    let rows = sqlx::query!(
        "select site_id, coordinate, fit_error from site_placements where site_id = any($1) and epoch = $2",
        sites as _,
        epoch.get(),
    )
    .all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let placement = Placement { epoch, coordinate: row.coordinate, fit_error: row.fit_error };
            (row.site_id, placement)
        })
        .collect())
}

/// Stores the placements of sites, replacing their previous placements.
pub async fn upsert(conn: &mut PgConnection, located: &[LocatedSite]) -> Result<(), Error> {
    let Some(width) = located.iter().map(|located| located.placement.coordinate.len()).max() else { return Ok(()) };
    let mut sites = Vec::with_capacity(located.len());
    let mut epochs = Vec::with_capacity(located.len());
    let mut fit_errors = Vec::with_capacity(located.len());
    let mut flat = Vec::with_capacity(located.len() * width);
    for one in located {
        sites.push(one.site.get());
        epochs.push(one.placement.epoch.get());
        fit_errors.push(one.placement.fit_error);
        flat.extend_from_slice(&one.placement.coordinate);
    }
    sqlx::query!(
        r#"
        insert into site_placements (site_id, epoch, coordinate, fit_error)
        -- `$4` contains all coordinates in sequence.
        select site_id, epoch, ($4::double precision[])[(place - 1) * $5 + 1 : place * $5], fit_error
        from unnest($1::bigint[], $2::bigint[], $3::double precision[])
             with ordinality as located (site_id, epoch, fit_error, place)
        order by site_id
        on conflict (site_id) do update
        set epoch = excluded.epoch, coordinate = excluded.coordinate, fit_error = excluded.fit_error,
            idle = false, located_at = now()
        -- A pass of a former leader must not replace placements in a newer embedding.
        where site_placements.epoch <= excluded.epoch
        "#,
        &sites,
        &epochs,
        &fit_errors,
        &flat,
        whole::<i64, _>(width),
    )
    .run(conn)
    .await
}

/// A site placed in an older embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutdatedSite {
    pub site: SiteId,
    /// Whether a task of the site needs the placement.
    pub open: bool,
}

/// At most `limit` sites that are placed in an older embedding and not [marked as idle](set_idle).
/// The most recently placed sites come first, because most tasks of sites placed long ago are about
/// to end and then need no placement.
pub async fn outdated(conn: &mut PgConnection, epoch: EmbeddingEpoch, limit: i64) -> Result<Vec<OutdatedSite>, Error> {
    let rows = sqlx::query!(
        r#"
        select placed.site_id, exists (
            select from tasks t where t.site_id = placed.site_id and t.state in ('located', 'assigned', 'leased')
        ) as "open!"
        from (
            select site_id from site_placements where epoch < $1 and not idle
            order by epoch desc, located_at desc limit $2
        ) placed
        "#,
        epoch.get(),
        limit,
    )
    .all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| OutdatedSite { site: row.site_id, open: row.open }).collect())
}

/// Marks placements in embeddings before `epoch` as idle, because no task needs them. An idle
/// placement stays until its site is located again.
pub async fn set_idle(conn: &mut PgConnection, sites: &[SiteId], epoch: EmbeddingEpoch) -> Result<(), Error> {
    sqlx::query!(
        // The condition on the epoch excludes sites that have since been placed in the newest
        // embedding.
        "update site_placements set idle = true where site_id = any($1) and epoch < $2",
        sites as _,
        epoch.get(),
    )
    .run(conn)
    .await
}

/// Deletes these sites' placements in embeddings before `epoch`.
pub async fn forget_outdated(conn: &mut PgConnection, sites: &[SiteId], epoch: EmbeddingEpoch) -> Result<(), Error> {
    sqlx::query!("delete from site_placements where site_id = any($1) and epoch < $2", sites as _, epoch.get())
        .run(conn)
        .await
}
