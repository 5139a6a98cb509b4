//! Ends sessions: at the request of the agent, when they expire, or when another session replaces
//! them.

use sqlx::PgConnection;

use crate::model::{AgentId, SessionId, words};
use crate::store::Error;
use crate::store::rows::{Rows, Statement};

words!(
    EndCause {
        /// The session was not renewed in time, so the agent is considered lost.
        Expired = "expired",
        /// Another process connected with the same credential.
        Superseded = "superseded",
        /// The same process connected again, because the stream broke or the scheduler was down.
        Reconnected = "reconnected",
        /// Another machine was enrolled in the agent's place.
        Replaced = "replaced",
        /// The agent ended the session itself.
        Left = "left",
        Removed = "removed",
        /// The database was restored from a backup made during the session.
        Restored = "restored",
    }
);

/// Why a session ended; `None` while it is active, or if no cause is stored.
pub async fn end_cause(conn: &mut PgConnection, session: SessionId) -> Result<Option<EndCause>, Error> {
    let cause = sqlx::query_scalar!("select end_cause from sessions where id = $1", session.get());
    Ok(cause.optional(conn).await?.flatten())
}

/// Ends a session at the agent's request.
pub async fn close(conn: &mut PgConnection, session: SessionId) -> Result<(), Error> {
    sqlx::query!(
        "update sessions set state = 'closed', end_cause = $2, ended_at = now() where id = $1 and state = 'active'",
        session.get(),
        EndCause::Left,
    )
    .run(conn)
    .await
}

/// Marks overdue sessions as expired, and returns their agents. A heartbeat cannot renew an expired
/// session. A later transaction releases the leases of the expired sessions, after this transaction
/// has committed.
pub async fn expire_due(conn: &mut PgConnection) -> Result<Vec<AgentId>, Error> {
    sqlx::query_scalar!(
        r#"
        update sessions set state = 'expired', end_cause = $1, ended_at = now()
        where state = 'active' and expires_at < now()
        returning agent_id
        "#,
        EndCause::Expired,
    )
    .all(conn)
    .await
}

pub(in crate::store) async fn close_active(
    conn: &mut PgConnection,
    agent: AgentId,
    cause: EndCause,
) -> Result<(), Error> {
    sqlx::query!(
        "update sessions set state = 'closed', end_cause = $2, ended_at = now() where agent_id = $1 and state = 'active'",
        agent.get(),
        cause,
    )
    .run(conn)
    .await
}
