//! The roll of landmarks: the landmarks as an operator sees them, and how far the mesh is that elects them.

use sqlx::PgConnection;

use crate::model::AgentId;

use super::{Error, unsigned};

/// One landmark as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The agent's name.
    pub name: String,
    /// The city.
    pub city: String,
    /// The carrier.
    pub carrier: String,
    /// Whether a session is active.
    pub connected: bool,
    /// Why it was chosen.
    pub reason: String,
}

/// The landmarks in order of choice, and the embedding they carry.
#[derive(Debug, Clone, PartialEq)]
pub struct Roll {
    /// In order of choice.
    pub entries: Vec<Entry>,
    /// Dimensions asked of the embedding.
    pub dimensions: Option<u32>,
    /// The newest embedding's epoch and root mean square relative error.
    pub embedding: Option<(i64, f64)>,
}

/// How far the mesh among some agents is, in directed pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    /// Measured, or tried in vain.
    pub measured: u64,
    /// To be measured.
    pub pairs: u64,
}

/// The landmarks and their embedding.
///
/// # Errors
/// When the database fails or a row is inconsistent.
pub async fn read(conn: &mut PgConnection) -> Result<Roll, Error> {
    let entries = sqlx::query_as!(
        Entry,
        r#"
        select a.name, a.city, a.carrier, l.reason,
               exists (select from sessions s where s.agent_id = a.id and s.state = 'active') as "connected!"
        from landmarks l join agents a on a.id = l.agent_id
        order by l.position
        "#,
    )
    .fetch_all(&mut *conn)
    .await?;
    let embedding = sqlx::query!("select epoch, fit_error from embeddings order by epoch desc limit 1")
        .fetch_optional(&mut *conn)
        .await?
        .map(|row| (row.epoch, row.fit_error));
    Ok(Roll { entries, dimensions: super::settings::dimensions(conn).await?, embedding })
}

/// How much of the mesh among these agents is measured, when each measures at most `peers` others.
///
/// # Errors
/// When the database fails.
pub async fn coverage(conn: &mut PgConnection, agents: &[AgentId], peers: u32) -> Result<Coverage, Error> {
    let ids: Vec<i64> = agents.iter().map(|agent| agent.get()).collect();
    let others = i64::try_from(ids.len().saturating_sub(1)).unwrap_or(i64::MAX).min(i64::from(peers));
    let measured = sqlx::query_scalar!(
        r#"
        select coalesce(sum(least(rows_of_one, $2)), 0)::bigint as "measured!"
        from (
            select count(*) as rows_of_one from mesh_measurements
            where prober_id = any($1) and agent_id = any($1)
            group by prober_id
        ) by_prober
        "#,
        &ids,
        others,
    )
    .fetch_one(conn)
    .await?;
    let pairs = others.saturating_mul(i64::try_from(ids.len()).unwrap_or(i64::MAX));
    Ok(Coverage {
        measured: unsigned("mesh_measurements", "count", measured)?,
        pairs: unsigned("mesh_measurements", "count", pairs)?,
    })
}
