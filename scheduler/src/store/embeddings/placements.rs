//! Placements of sites: each site's coordinates in the newest embedding in which it was located.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::gnp::Placement;
use crate::model::{EmbeddingEpoch, SiteId};

use crate::store::Error;
use crate::store::rows::{Rows, Statement};
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
