//! Deletes old embeddings, except those in which a site with an open task is placed.

use sqlx::PgConnection;

use crate::store::Error;
use crate::store::rows::{Rows, Statement};

/// Prunes all embeddings except the newest `keep`. First deletes their placements of sites without
/// an open task; such a site is located again when it gets a task. Then deletes the embeddings in
/// which no site is placed any more. Deletes at most `limit` placements and ten embeddings per
/// call. Returns the number of deleted rows.
pub async fn prune(conn: &mut PgConnection, keep: i64, limit: i64) -> Result<u64, Error> {
    let surplus =
        sqlx::query_scalar!("select epoch from embeddings order by epoch desc offset $1", keep).all(conn).await?;
    if surplus.is_empty() {
        return Ok(0);
    }
    let placements = sqlx::query!(
        r#"
        delete from site_placements where site_id in (
            select placed.site_id from site_placements placed
            where placed.epoch = any($1)
              and not exists (
                  select from tasks where tasks.site_id = placed.site_id
                    and tasks.state in ('submitted', 'measuring', 'located', 'assigned', 'leased')
              )
            limit $2
        )
        "#,
        &surplus as _,
        limit,
    )
    .affected(conn)
    .await?;
    let doomed = sqlx::query_scalar!(
        r#"
        select epoch from embeddings
        where epoch = any($1) and not exists (select from site_placements where site_placements.epoch = embeddings.epoch)
        order by epoch limit 10
        "#,
        &surplus as _,
    )
    .all(conn)
    .await?;
    sqlx::query!("delete from agent_placements where epoch = any($1)", &doomed as _).run(conn).await?;
    let embeddings = sqlx::query!("delete from embeddings where epoch = any($1)", &doomed as _).affected(conn).await?;
    Ok(placements + embeddings)
}
