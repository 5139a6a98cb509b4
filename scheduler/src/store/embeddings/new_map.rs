//! Stores a finished fit as the newest embedding, unless another embedding has become the newest
//! since the fit began.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::gnp::Embedding;
use crate::model::EmbeddingEpoch;
use crate::store::Error;
use crate::store::embeddings::finished_fit::NewEmbedding;
use crate::store::embeddings::history::remember;
use crate::store::rows::{Rows, Statement};
use crate::store::types::whole;

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
/// longer the newest embedding. Run in a transaction.
pub async fn take_over(
    conn: &mut PgConnection,
    fitted: &NewEmbedding<'_>,
    former: Option<EmbeddingEpoch>,
) -> Result<bool, Error> {
    // The lock makes the next statement see the commit of a concurrent fit. The comparison of
    // epochs then prevents this fit from replacing a newer one.
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('landfall embeddings', 7171))").run(conn).await?;
    let newest = sqlx::query_scalar!("select epoch from embeddings order by epoch desc limit 1").optional(conn).await?;
    if newest != former {
        return Ok(false);
    }
    let embedding = fitted.embedding;
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
    .run(conn)
    .await?;
    insert_agents(conn, embedding).await?;
    remember(conn, fitted).await?;
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
