//! Reads the newest session of an agent, as the details of the agent show it.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, Incarnation, SessionId, words};
use crate::store::Error;
use crate::store::agents::sessions::ending::EndCause;
use crate::store::rows::Rows;

words!(
    SessionState {
        /// The agent still renews the session.
        Active = "active",
        /// The session was not renewed in time.
        Expired = "expired",
        /// The session ended for another reason.
        Closed = "closed",
    }
);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewestSession {
    pub session: SessionId,
    pub incarnation: Incarnation,
    pub state: SessionState,
    pub opened_at: DateTime<Utc>,
    pub renewed_at: DateTime<Utc>,
    /// When the session expires unless it is renewed.
    pub expires_at: DateTime<Utc>,
    pub end_cause: Option<EndCause>,
}

/// The agent's newest session; `None` if the agent has never connected.
pub async fn newest(conn: &mut PgConnection, agent: AgentId) -> Result<Option<NewestSession>, Error> {
    let newest = sqlx::query_as!(
        NewestSession,
        r#"
        select id as session, incarnation, state, opened_at, renewed_at, expires_at, end_cause
        from sessions where agent_id = $1 order by incarnation desc limit 1
        "#,
        agent.get(),
    );
    newest.optional(conn).await
}
