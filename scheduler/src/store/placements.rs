//! Placements of sites: where each lies in the newest embedding it was located in.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::gnp::Placement;
use crate::model::{EmbeddingEpoch, SiteId};

use super::Error;
use super::measurements::raw_sites;

/// A site's placement, and how many measurements it rests on.
#[derive(Debug, Clone)]
pub struct Located {
    /// The site.
    pub site: SiteId,
    /// Where it lies.
    pub placement: Placement,
    /// Measurements it rests on.
    pub landmarks: usize,
}

/// The placements of these sites in one embedding; sites not located in it are absent.
///
/// # Errors
/// When the database fails.
pub async fn sites(
    conn: &mut PgConnection,
    sites: &[SiteId],
    epoch: EmbeddingEpoch,
) -> Result<HashMap<SiteId, Placement>, Error> {
    let rows = sqlx::query!(
        "select site_id, coordinate, fit_error from site_placements where site_id = any($1) and epoch = $2",
        &raw_sites(sites),
        epoch.get(),
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let placement = Placement { epoch, coordinate: row.coordinate, fit_error: row.fit_error };
            (SiteId::new(row.site_id), placement)
        })
        .collect())
}

/// Records where sites lie, in place of what was known before.
///
/// # Errors
/// When the database fails.
pub async fn upsert(conn: &mut PgConnection, located: &[Located]) -> Result<(), Error> {
    let Some(width) = located.iter().map(|located| located.placement.coordinate.len()).max() else { return Ok(()) };
    let mut sites = Vec::with_capacity(located.len());
    let mut epochs = Vec::with_capacity(located.len());
    let mut fit_errors = Vec::with_capacity(located.len());
    let mut landmarks = Vec::with_capacity(located.len());
    let mut flat = Vec::with_capacity(located.len() * width);
    for one in located {
        sites.push(one.site.get());
        epochs.push(one.placement.epoch.get());
        fit_errors.push(one.placement.fit_error);
        landmarks.push(i32::try_from(one.landmarks).unwrap_or(i32::MAX));
        flat.extend_from_slice(&one.placement.coordinate);
    }
    sqlx::query!(
        r#"
        insert into site_placements (site_id, epoch, coordinate, fit_error, landmarks)
        -- The coordinates come one after another, as in `embeddings`.
        select site_id, epoch, ($5::double precision[])[(place - 1) * $6 + 1 : place * $6], fit_error, landmarks
        from unnest($1::bigint[], $2::bigint[], $3::double precision[], $4::integer[])
             with ordinality as located (site_id, epoch, fit_error, landmarks, place)
        order by site_id
        on conflict (site_id) do update
        set epoch = excluded.epoch, coordinate = excluded.coordinate, fit_error = excluded.fit_error,
            landmarks = excluded.landmarks, located_at = now()
        -- A pass that began before a take-over must not undo one that began after it.
        where site_placements.epoch <= excluded.epoch
        "#,
        &sites,
        &epochs,
        &fit_errors,
        &landmarks,
        &flat,
        i64::try_from(width).unwrap_or(i64::MAX),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Sites that have been located, whose tasks are open, and that lie in an older embedding; at most `limit`. Those that
/// wait for an agent come first, then those placed last: of what was placed long ago, most is about to end.
///
/// # Errors
/// When the database fails.
pub async fn outdated(conn: &mut PgConnection, epoch: EmbeddingEpoch, limit: i64) -> Result<Vec<SiteId>, Error> {
    let sites = sqlx::query_scalar!(
        r#"
        select tasks.site_id from tasks
        join site_placements using (site_id)
        where tasks.state in ('located', 'assigned', 'leased') and site_placements.epoch < $1
        group by tasks.site_id, site_placements.located_at
        order by bool_or(tasks.state = 'located') desc, site_placements.located_at desc, tasks.site_id
        limit $2
        "#,
        epoch.get(),
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(sites.into_iter().map(SiteId::new).collect())
}

/// Forgets the placements of sites that lie in an older embedding than this one.
///
/// # Errors
/// When the database fails.
pub async fn forget_outdated(conn: &mut PgConnection, sites: &[SiteId], epoch: EmbeddingEpoch) -> Result<(), Error> {
    sqlx::query!("delete from site_placements where site_id = any($1) and epoch < $2", &raw_sites(sites), epoch.get())
        .execute(conn)
        .await?;
    Ok(())
}
