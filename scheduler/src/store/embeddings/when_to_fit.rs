//! When to fit: what has happened since the newest embedding was fitted, and the operator's request
//! for a fit.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, EmbeddingEpoch};
use crate::store::Error;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::Interval;

/// The newest embedding, with facts about the measurements that came after it.
#[derive(Debug, Clone)]
pub struct Newest {
    pub epoch: EmbeddingEpoch,
    pub landmarks: Vec<AgentId>,
    pub dimensions: usize,
    /// The median error over the mesh on which the embedding was fitted, as in `gnp::Quality`.
    /// Infinite if no error is stored, so that no error of later measurements causes a new fit.
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

/// The newest embedding's state; `None` if there is no embedding yet.
pub async fn newest(conn: &mut PgConnection, max_age: Duration) -> Result<Option<Newest>, Error> {
    sqlx::query_as!(
        Newest,
        r#"
        select epoch, landmarks, dimensions, coalesce(mesh_error, 'infinity') as "mesh_error!", created_at,
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
    .await
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
