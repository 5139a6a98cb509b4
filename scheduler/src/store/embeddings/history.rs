//! Remembers every embedding as a line of the history, and lists these lines.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::EmbeddingEpoch;
use crate::store::Error;
use crate::store::embeddings::finished_fit::NewEmbedding;
use crate::store::rows::{Rows, Statement};
use crate::store::types::{Micros, whole};

/// Number of epochs in the history: six weeks if a fit runs every hour.
const HISTORY: i64 = 1000;

/// Adds a line to the history, and deletes the oldest lines beyond [`HISTORY`].
pub(super) async fn remember(conn: &mut PgConnection, fitted: &NewEmbedding<'_>) -> Result<(), Error> {
    let embedding = fitted.embedding;
    sqlx::query!(
        r#"
        insert into embedding_history
            (epoch, fitted_at, reason, agents, landmarks, dimensions, fit_error, mesh_error, median_move_us)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        "#,
        embedding.epoch().get(),
        fitted.as_of,
        fitted.reason,
        whole::<i32, _>(embedding.agents().len()),
        whole::<i32, _>(embedding.landmarks().len()),
        whole::<i32, _>(embedding.dimensions()),
        embedding.fit_error(),
        fitted.mesh_error,
        fitted.median_move.map(Micros) as _,
    )
    .run(conn)
    .await?;
    sqlx::query!(
        "delete from embedding_history where epoch in (select epoch from embedding_history order by epoch desc offset $1)",
        HISTORY,
    )
    .run(conn)
    .await
}

/// A line of the history of embeddings.
#[derive(Debug, Clone, PartialEq)]
pub struct Epoch {
    pub epoch: EmbeddingEpoch,
    /// When the mesh was read.
    pub fitted_at: DateTime<Utc>,
    /// The reason for the fit, as shown to operators.
    pub reason: String,
    /// Number of placed agents, including the landmarks.
    pub agents: u32,
    pub landmarks: u32,
    /// Number of dimensions, without the height.
    pub dimensions: u32,
    /// Root mean square of the landmarks' relative errors.
    pub fit_error: f64,
    /// The median error of the fit over the mesh; `None` if the mesh has no measurements.
    pub mesh_error: Option<f64>,
    /// The median distance by which agents' coordinates moved since the previous embedding, to
    /// which this embedding was aligned.
    pub median_move: Option<Micros>,
}

/// At most `limit` epochs, newest first.
pub async fn history(conn: &mut PgConnection, limit: u32) -> Result<Vec<Epoch>, Error> {
    let epochs = sqlx::query_as!(
        Epoch,
        r#"
        select epoch, fitted_at, reason, agents, landmarks, dimensions, fit_error, mesh_error, median_move_us as median_move
        from embedding_history order by epoch desc limit $1
        "#,
        i64::from(limit),
    );
    epochs.all(conn).await
}
