//! Finds sites that are still placed in an older embedding, and sets aside or deletes their
//! placements.

use sqlx::PgConnection;

use crate::model::{EmbeddingEpoch, SiteId};
use crate::store::Error;
use crate::store::rows::{Rows, Statement};

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
