//! Maps: stores a finished fit as the newest embedding, reads stored embeddings and their history,
//! and deletes old ones.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::gnp::{Embedding, Placement};
use crate::model::EmbeddingEpoch;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::{Micros, whole};
use crate::store::{Error, Tx};

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

/// Takes the epoch of the next embedding from its sequence. Epochs may be skipped.
pub async fn next_epoch(conn: &mut PgConnection) -> Result<EmbeddingEpoch, Error> {
    let epoch = sqlx::query_scalar!(
        r#"select nextval(pg_get_serial_sequence('embeddings', 'epoch')) as "epoch!: EmbeddingEpoch""#
    );
    epoch.one(conn).await
}

/// The time by the database's clock. Data read by later statements is at least as new as this time.
pub async fn clock(conn: &mut PgConnection) -> Result<DateTime<Utc>, Error> {
    sqlx::query_scalar!(r#"select clock_timestamp() as "now!""#).one(conn).await
}

/// Stores a fit as the newest embedding. Changes nothing and returns `false` if `former` is no
/// longer the newest embedding.
pub async fn take_over(tx: &mut Tx<'_>, fitted: &NewEmbedding, former: Option<EmbeddingEpoch>) -> Result<bool, Error> {
    // The lock makes the next statement see the commit of a concurrent fit. The comparison of
    // epochs then prevents this fit from replacing a newer one.
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('landfall embeddings', 7171))").run(tx).await?;
    let newest = sqlx::query_scalar!("select epoch from embeddings order by epoch desc limit 1").optional(tx).await?;
    if newest != former {
        return Ok(false);
    }
    let embedding = &fitted.embedding;
    sqlx::query!(
        r#"
        insert into embeddings (epoch, dimensions, landmarks, fit_error, mesh_error, created_at)
        overriding system value values ($1, $2, $3, $4, $5, $6)
        "#,
        embedding.epoch().get(),
        whole::<i32, _>(embedding.dimensions()),
        embedding.landmarks() as _,
        embedding.fit_error(),
        fitted.mesh_error,
        fitted.as_of,
    )
    .run(tx)
    .await?;
    insert_agents(tx, embedding).await?;
    remember(tx, fitted).await?;
    Ok(true)
}

async fn insert_agents(conn: &mut PgConnection, embedding: &Embedding) -> Result<(), Error> {
    let mut agents = Vec::new();
    let mut fit_errors = Vec::new();
    let mut flat = Vec::new();
    for (agent, placement) in embedding.agents() {
        agents.push(*agent);
        fit_errors.push(placement.fit_error);
        flat.extend_from_slice(&placement.coordinate);
    }
    let width: i64 = whole(flat.len() / agents.len().max(1));
    sqlx::query!(
        r#"
        insert into agent_placements (epoch, agent_id, coordinate, fit_error)
        -- `$4` contains all coordinates in sequence, because Postgres has no arrays of arrays.
        select $1, agent_id, ($4::double precision[])[(place - 1) * $5 + 1 : place * $5], fit_error
        from unnest($2::bigint[], $3::double precision[]) with ordinality as placed (agent_id, fit_error, place)
        "#,
        embedding.epoch().get(),
        &agents as _,
        &fit_errors,
        &flat,
        width,
    )
    .run(conn)
    .await
}

/// A finished fit that is to become the newest embedding.
#[derive(Debug)]
pub struct NewEmbedding {
    pub embedding: Embedding,
    /// When the mesh was read.
    pub as_of: DateTime<Utc>,
    /// The reason for the fit, as shown to operators.
    pub reason: String,
    /// The median error of the fit over the mesh; `None` if the mesh has no measurements.
    pub mesh_error: Option<f64>,
    /// The median distance by which agents' coordinates moved since the previous embedding, to
    /// which this embedding was aligned.
    pub median_move: Option<Duration>,
}

/// Number of epochs in the history: six weeks if a fit runs every hour.
const HISTORY: i64 = 1000;

/// Adds a line to the history, and deletes the oldest lines beyond [`HISTORY`].
async fn remember(conn: &mut PgConnection, fitted: &NewEmbedding) -> Result<(), Error> {
    let embedding = &fitted.embedding;
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
    history_before(conn, None, limit).await
}

/// At most `limit` epochs below `before`, newest first.
pub async fn history_before(
    conn: &mut PgConnection,
    before: Option<EmbeddingEpoch>,
    limit: u32,
) -> Result<Vec<Epoch>, Error> {
    let epochs = sqlx::query_as!(
        Epoch,
        r#"
        select epoch, fitted_at, reason, agents, landmarks, dimensions, fit_error, mesh_error, median_move_us as median_move
        from embedding_history where $2::bigint is null or epoch < $2 order by epoch desc limit $1
        "#,
        i64::from(limit),
        before.map(EmbeddingEpoch::get),
    );
    epochs.all(conn).await
}

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
