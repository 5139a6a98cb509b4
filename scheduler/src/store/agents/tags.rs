//! Reads and sets the tags of an agent.

use sqlx::PgConnection;

use crate::model::AgentId;
use crate::store::Error;
use crate::store::rows::{Rows, Statement};

pub async fn set_tags(conn: &mut PgConnection, agent: AgentId, tags: &[String]) -> Result<(), Error> {
    sqlx::query!("update agents set tags = $2 where id = $1", agent.get(), tags).run(conn).await
}

/// Returns an agent's tags and locks its row until the transaction ends; `None` for an unknown or
/// removed agent.
pub async fn lock_tags(conn: &mut PgConnection, name: &str) -> Result<Option<(AgentId, Vec<String>)>, Error> {
    let row =
        sqlx::query!("select id, tags from agents where name = $1 and removed_at is null for no key update", name,)
            .optional(conn)
            .await?;
    Ok(row.map(|row| (row.id, row.tags)))
}
