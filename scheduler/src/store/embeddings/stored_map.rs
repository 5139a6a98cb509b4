//! Reads stored embeddings, with the placements of all agents.

use sqlx::PgConnection;

use crate::gnp::{Embedding, Placement};
use crate::model::EmbeddingEpoch;
use crate::store::Error;
use crate::store::rows::Rows;

/// The epoch of the newest embedding; `None` if there is none yet.
pub async fn latest_epoch(conn: &mut PgConnection) -> Result<Option<EmbeddingEpoch>, Error> {
    let epoch = sqlx::query_scalar!("select epoch from embeddings order by epoch desc limit 1");
    epoch.optional(conn).await
}

/// The epochs whose embeddings are stored, in order.
pub async fn stored_epochs(conn: &mut PgConnection) -> Result<Vec<EmbeddingEpoch>, Error> {
    sqlx::query_scalar!("select epoch from embeddings order by epoch").all(conn).await
}

/// The newest embedding; `None` if there is none yet.
pub async fn latest(conn: &mut PgConnection) -> Result<Option<Embedding>, Error> {
    stored(conn, None).await
}

/// The embedding of this epoch, or the newest one if `epoch` is `None`. Returns `None` if the
/// embedding is not stored.
pub async fn stored(conn: &mut PgConnection, epoch: Option<EmbeddingEpoch>) -> Result<Option<Embedding>, Error> {
    let row = sqlx::query!(
        "select epoch, dimensions, landmarks, fit_error from embeddings
         where $1::bigint is null or epoch = $1 order by epoch desc limit 1",
        epoch.map(EmbeddingEpoch::get),
    );
    let Some(row) = row.optional(conn).await? else { return Ok(None) };
    let epoch = row.epoch;
    let placed = sqlx::query!(
        "select agent_id, coordinate, fit_error from agent_placements where epoch = $1 order by agent_id",
        epoch.get(),
    )
    .all(conn)
    .await?;
    let placements = placed
        .into_iter()
        .map(|agent| {
            let placement = Placement { epoch, coordinate: agent.coordinate, fit_error: agent.fit_error };
            (agent.agent_id, placement)
        })
        .collect();
    Embedding::from_parts(epoch, row.dimensions.into(), row.landmarks, placements, row.fit_error)
        .map(Some)
        .map_err(|error| Error::inconsistent("embeddings", "epoch", &format!("{epoch}, in which {error}")))
}
