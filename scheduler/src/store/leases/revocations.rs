//! Reads the revocations of leases that a session must still send.

use sqlx::PgConnection;

use crate::model::{LeaseToken, SessionId, TaskId};
use crate::store::Error;
use crate::store::rows::Rows;

/// Returns the revocations of this session's leases that have not been sent yet, and marks them as
/// sent. The caller must commit before it sends the revocations.
pub async fn take_revoked(conn: &mut PgConnection, session: SessionId) -> Result<Vec<(TaskId, LeaseToken)>, Error> {
    let rows = sqlx::query!(
        r#"
        update leases set revocation_sent_at = now()
        where session_id = $1 and state = 'revoked' and revocation_sent_at is null
        returning task_id, token
        "#,
        session.get(),
    )
    .all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.task_id, row.token)).collect())
}
