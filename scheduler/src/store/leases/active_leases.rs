//! Lists the active leases of an agent, and finds the agent to which a lease was granted.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, LeaseToken, TaskId};
use crate::store::Error;
use crate::store::rows::Rows;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveLease {
    pub site: String,
    pub batch: String,
    pub token: LeaseToken,
    pub granted_at: DateTime<Utc>,
}

/// An agent's active leases, oldest first.
pub async fn held(conn: &mut PgConnection, agent: AgentId) -> Result<Vec<ActiveLease>, Error> {
    let held = sqlx::query_as!(
        ActiveLease,
        r#"
        select s.name as site, b.name as batch, l.token, l.granted_at
        from leases l
        join tasks t on t.id = l.task_id
        join sites s on s.id = l.site_id
        join batches b on b.id = t.batch_id
        where l.agent_id = $1 and l.state = 'active'
        order by l.granted_at, l.task_id
        "#,
        agent.get(),
    );
    held.all(conn).await
}

/// The agent to which this lease was granted; `None` if the lease was never granted.
pub async fn holder(conn: &mut PgConnection, task: TaskId, token: LeaseToken) -> Result<Option<AgentId>, Error> {
    let agent =
        sqlx::query_scalar!("select agent_id from leases where task_id = $1 and token = $2", task.get(), token.get(),)
            .optional(conn)
            .await?;
    Ok(agent)
}
