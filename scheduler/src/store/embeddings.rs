//! Embeddings: fits of the landmarks, each with the placements of all agents.
//!
//! Invariants: epochs only rise. An embedding and its agents' placements are stored in one
//! transaction, and only if no other embedding has become the newest since the fit began. The store
//! keeps the newest few embeddings, and any embedding in which a site with an open task is placed.
//! Of any other embedding, the store keeps only a line in the history.

pub(crate) mod landmarks;
pub(crate) mod lost_landmarks;
pub(crate) mod placements;

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::gnp::{Embedding, Placement};
use crate::model::{AgentId, EmbeddingEpoch};

use super::Error;
use super::rows::{Rows, Statement};
use super::types::{Interval, Micros, whole};

/// Number of epochs in the history: six weeks if a fit runs every hour.
const HISTORY: i64 = 1000;
/// The error assumed for an embedding without a stored error. A new fit is made if the error of
/// later measurements is much larger than this value; with an infinite value that never happens.
const UNKNOWN_ERROR: f64 = f64::INFINITY;

/// The newest embedding, with facts about the measurements that came after it.
#[derive(Debug, Clone)]
pub struct Newest {
    pub epoch: EmbeddingEpoch,
    pub landmarks: Vec<AgentId>,
    pub dimensions: usize,
    /// The median error over the mesh on which the embedding was fitted, as in `gnp::Quality`.
    pub mesh_error: f64,
    pub created_at: DateTime<Utc>,
    /// Names of connected agents that have no placement in the embedding. Each of them has measured
    /// another agent, or was measured, after the embedding was made.
    pub newcomers: Vec<String>,
    pub mesh_rows: i64,
    /// Number of mesh measurements taken after the embedding was made.
    pub newer_rows: i64,
    /// Whether the embedding is older than the `max_age` given to [`newest`].
    pub aged: bool,
    /// Whether any measurement of a beacon is outstanding.
    pub mesh_busy: bool,
}

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

/// The newest embedding's state; `None` if there is no embedding yet.
pub async fn newest(conn: &mut PgConnection, max_age: Duration) -> Result<Option<Newest>, Error> {
    let row = sqlx::query!(
        r#"
        select epoch, landmarks, dimensions, mesh_error, created_at,
               created_at < now() - $1::interval as "aged!",
               exists (select from measurement_orders where agent_id is not null) as "mesh_busy!",
               (select count(*) from mesh_measurements where rtt_us is not null) as "mesh_rows!",
               (select count(*) from mesh_measurements where rtt_us is not null and measured_at > created_at)
                   as "newer_rows!",
               array(
                   select agents.name from sessions join agents on agents.id = sessions.agent_id
                   where sessions.state = 'active'
                     and exists (
                         select from mesh_measurements known
                         where agents.id in (known.prober_id, known.agent_id)
                           and known.rtt_us is not null and known.measured_at > created_at
                     )
                     and not exists (
                         select from agent_placements placed
                         where placed.epoch = embeddings.epoch and placed.agent_id = agents.id
                     )
                   order by agents.name
               ) as "newcomers!"
        from embeddings order by epoch desc limit 1
        "#,
        Interval(max_age),
    )
    .optional(conn)
    .await?;
    Ok(row.map(|row| Newest {
        epoch: row.epoch,
        landmarks: row.landmarks,
        dimensions: row.dimensions.into(),
        mesh_error: row.mesh_error.unwrap_or(UNKNOWN_ERROR),
        created_at: row.created_at,
        newcomers: row.newcomers,
        mesh_rows: row.mesh_rows,
        newer_rows: row.newer_rows,
        aged: row.aged,
        mesh_busy: row.mesh_busy,
    }))
}

/// Pairs of agents in which one agent measured the other after `since`. Each pair has the smaller
/// identifier first.
pub async fn pairs_measured_since(
    conn: &mut PgConnection,
    since: DateTime<Utc>,
) -> Result<BTreeSet<(AgentId, AgentId)>, Error> {
    let rows = sqlx::query!(
        r#"
        select distinct least(prober_id, agent_id) as "from!: AgentId", greatest(prober_id, agent_id) as "to!: AgentId"
        from mesh_measurements where rtt_us is not null and measured_at > $1
        "#,
        since,
    )
    .all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.from, row.to)).collect())
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

/// A finished fit that is to become the newest embedding.
#[derive(Debug, Clone, Copy)]
pub struct NewEmbedding<'a> {
    pub embedding: &'a Embedding,
    /// When the mesh was read.
    pub as_of: DateTime<Utc>,
    /// The reason for the fit, as shown to operators.
    pub reason: &'a str,
    /// The median error of the fit over the mesh; `None` if the mesh has no measurements.
    pub mesh_error: Option<f64>,
    /// The median distance by which agents' coordinates moved since the previous embedding, to
    /// which this embedding was aligned.
    pub median_move: Option<Duration>,
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

/// Adds a line to the history, and deletes the oldest lines beyond [`HISTORY`].
async fn remember(conn: &mut PgConnection, fitted: &NewEmbedding<'_>) -> Result<(), Error> {
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

/// The state of the operator's newest request for a fit. At most one request is open, and the next
/// fit by any scheduler answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FitRequest {
    /// There is no request, or a fit has completed it.
    None,
    Open,
    /// The fit is impossible, for this reason.
    Refused(String),
}

/// Requests a fit, and deletes an earlier refusal.
pub async fn ask_for_fit(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!(
        r#"
        insert into fit_requests default values
        on conflict (singleton) do update set requested_at = clock_timestamp(), refused = null
        "#,
    )
    .run(conn)
    .await
}

pub async fn fit_request(conn: &mut PgConnection) -> Result<FitRequest, Error> {
    let refused = sqlx::query_scalar!("select refused from fit_requests").optional(conn).await?;
    Ok(match refused {
        None => FitRequest::None,
        Some(None) => FitRequest::Open,
        Some(Some(why)) => FitRequest::Refused(why),
    })
}

pub async fn refuse_fit(conn: &mut PgConnection, why: &str) -> Result<(), Error> {
    sqlx::query!("update fit_requests set refused = $1 where refused is null", why).run(conn).await
}

/// Deletes requests made before `as_of`, because the newest embedding was fitted to data from that
/// time.
pub async fn answer_fit(conn: &mut PgConnection, as_of: DateTime<Utc>) -> Result<(), Error> {
    sqlx::query!("delete from fit_requests where requested_at <= $1", as_of).run(conn).await
}
