//! Embeddings: fits of the landmarks, each with the placements of the agents in it.
//!
//! Invariants: epochs only rise; an embedding and its agents' placements appear in one transaction, and only when no
//! other took over since its fit began. The former one is kept for sites that were located in it; older ones go.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::gnp::{Embedding, Placement};
use crate::model::{AgentId, EmbeddingEpoch};

use super::Error;

/// How the newest embedding stands to what was measured since.
#[derive(Debug, Clone)]
pub struct Newest {
    /// Its number.
    pub epoch: EmbeddingEpoch,
    /// The landmarks it was fitted on.
    pub landmarks: Vec<AgentId>,
    /// Its dimensions.
    pub dimensions: usize,
    /// Whether a connected agent that it lacks was measured in the mesh since.
    pub lacks_an_agent: bool,
    /// Round trips in the mesh.
    pub mesh_rows: i64,
    /// Those that were taken since.
    pub newer_rows: i64,
    /// Whether it is older than the age asked about.
    pub aged: bool,
    /// Whether beacons are being measured.
    pub mesh_busy: bool,
}

/// The newest embedding; `None` before the first.
///
/// # Errors
/// When the database fails or a row contradicts the domain.
pub async fn latest(conn: &mut PgConnection) -> Result<Option<Embedding>, Error> {
    let Some(row) =
        sqlx::query!("select epoch, dimensions, landmarks, fit_error from embeddings order by epoch desc limit 1")
            .fetch_optional(&mut *conn)
            .await?
    else {
        return Ok(None);
    };
    let epoch = EmbeddingEpoch::new(row.epoch);
    let placed = sqlx::query!(
        "select agent_id, coordinate, fit_error from agent_placements where epoch = $1 order by agent_id",
        row.epoch,
    )
    .fetch_all(conn)
    .await?;
    let placements = placed
        .into_iter()
        .map(|agent| {
            let placement = Placement { epoch, coordinate: agent.coordinate, fit_error: agent.fit_error };
            (AgentId::new(agent.agent_id), placement)
        })
        .collect();
    let dimensions = usize::try_from(row.dimensions)
        .map_err(|_| Error::inconsistent("embeddings", "dimensions", &row.dimensions))?;
    let landmarks = row.landmarks.into_iter().map(AgentId::new).collect();
    Embedding::from_parts(epoch, dimensions, landmarks, placements, row.fit_error)
        .map(Some)
        .map_err(|error| Error::inconsistent("embeddings", "epoch", &format!("{epoch}, in which {error}")))
}

/// How the newest embedding stands; `None` before the first.
///
/// # Errors
/// When the database fails.
pub async fn newest(conn: &mut PgConnection, max_age: Duration) -> Result<Option<Newest>, Error> {
    let row = sqlx::query!(
        r#"
        select epoch, landmarks, dimensions,
               created_at < now() - make_interval(secs => $1) as "aged!",
               exists (select from measurement_orders where agent_id is not null) as "mesh_busy!",
               (select count(*) from mesh_measurements where rtt_us is not null) as "mesh_rows!",
               (select count(*) from mesh_measurements where rtt_us is not null and measured_at > created_at)
                   as "newer_rows!",
               exists (
                   select from sessions
                   join mesh_measurements known on sessions.agent_id in (known.prober_id, known.agent_id)
                   where sessions.state = 'active' and known.rtt_us is not null and known.measured_at > created_at
                     and not exists (
                         select from agent_placements placed
                         where placed.epoch = embeddings.epoch and placed.agent_id = sessions.agent_id
                     )
               ) as "lacks_an_agent!"
        from embeddings order by epoch desc limit 1
        "#,
        max_age.as_secs_f64(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| Newest {
        epoch: EmbeddingEpoch::new(row.epoch),
        landmarks: row.landmarks.into_iter().map(AgentId::new).collect(),
        dimensions: usize::try_from(row.dimensions).unwrap_or(0),
        lacks_an_agent: row.lacks_an_agent,
        mesh_rows: row.mesh_rows,
        newer_rows: row.newer_rows,
        aged: row.aged,
        mesh_busy: row.mesh_busy,
    }))
}

/// Draws the number of the next embedding. Numbers may be skipped.
///
/// # Errors
/// When the database fails.
pub async fn next_epoch(conn: &mut PgConnection) -> Result<EmbeddingEpoch, Error> {
    let epoch = sqlx::query_scalar!(r#"select nextval(pg_get_serial_sequence('embeddings', 'epoch')) as "epoch!""#)
        .fetch_one(conn)
        .await?;
    Ok(EmbeddingEpoch::new(epoch))
}

/// The database's clock: as of when what is read next is known.
///
/// # Errors
/// When the database fails.
pub async fn clock(conn: &mut PgConnection) -> Result<DateTime<Utc>, Error> {
    Ok(sqlx::query_scalar!(r#"select clock_timestamp() as "now!""#).fetch_one(conn).await?)
}

/// Makes a fit the newest embedding, in the caller's transaction. `false`, and nothing changed, when another took over
/// from `former` meanwhile.
///
/// # Errors
/// When the database fails.
pub async fn take_over(
    conn: &mut PgConnection,
    embedding: &Embedding,
    former: Option<EmbeddingEpoch>,
    as_of: DateTime<Utc>,
) -> Result<bool, Error> {
    // Only so that the next statement sees what another fit has committed; the epoch is the fence.
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('landfall embeddings', 7171))")
        .fetch_one(&mut *conn)
        .await?;
    let newest = sqlx::query_scalar!("select max(epoch) from embeddings").fetch_one(&mut *conn).await?;
    if newest != former.map(EmbeddingEpoch::get) {
        return Ok(false);
    }
    let landmarks: Vec<i64> = embedding.landmarks().iter().map(|agent| agent.get()).collect();
    sqlx::query!(
        r#"
        insert into embeddings (epoch, dimensions, landmarks, fit_error, created_at)
        overriding system value values ($1, $2, $3, $4, $5)
        "#,
        embedding.epoch().get(),
        i32::try_from(embedding.dimensions()).unwrap_or(i32::MAX),
        &landmarks,
        embedding.fit_error(),
        as_of,
    )
    .execute(&mut *conn)
    .await?;
    insert_agents(conn, embedding).await?;
    if let Some(former) = former {
        prune(conn, former).await?;
    }
    Ok(true)
}

async fn insert_agents(conn: &mut PgConnection, embedding: &Embedding) -> Result<(), Error> {
    let mut agents = Vec::new();
    let mut fit_errors = Vec::new();
    let mut flat = Vec::new();
    for (agent, placement) in embedding.agents() {
        agents.push(agent.get());
        fit_errors.push(placement.fit_error);
        flat.extend_from_slice(&placement.coordinate);
    }
    let width = i64::try_from(flat.len() / agents.len().max(1)).unwrap_or(i64::MAX);
    sqlx::query!(
        r#"
        insert into agent_placements (epoch, agent_id, coordinate, fit_error)
        -- Postgres has no array of arrays of free length: the coordinates come one after another.
        select $1, agent_id, ($4::double precision[])[(place - 1) * $5 + 1 : place * $5], fit_error
        from unnest($2::bigint[], $3::double precision[]) with ordinality as placed (agent_id, fit_error, place)
        "#,
        embedding.epoch().get(),
        &agents,
        &fit_errors,
        &flat,
        width,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Forgets everything before `oldest`.
async fn prune(conn: &mut PgConnection, oldest: EmbeddingEpoch) -> Result<(), Error> {
    sqlx::query!("delete from site_placements where epoch < $1", oldest.get()).execute(&mut *conn).await?;
    sqlx::query!("delete from agent_placements where epoch < $1", oldest.get()).execute(&mut *conn).await?;
    sqlx::query!("delete from embeddings where epoch < $1", oldest.get()).execute(conn).await?;
    Ok(())
}
