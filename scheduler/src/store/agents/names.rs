//! Reads the names of agents, and finds an agent by its name.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use crate::model::AgentId;
use crate::store::Error;
use crate::store::rows::Rows;

/// The names of all agents, including removed ones.
pub async fn names(conn: &mut PgConnection) -> Result<BTreeMap<AgentId, String>, Error> {
    let rows = sqlx::query!("select id, name from agents").all(conn).await?;
    Ok(rows.into_iter().map(|row| (row.id, row.name)).collect())
}

/// The agent with this name, unless it has been removed.
pub async fn by_name(conn: &mut PgConnection, name: &str) -> Result<Option<AgentId>, Error> {
    sqlx::query_scalar!("select id from agents where name = $1 and removed_at is null", name).optional(conn).await
}
