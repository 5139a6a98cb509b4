//! An active session: its renewals, its agent's reports, and what waits to be sent on it.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, SessionId};
use crate::store::rows::{Rows, Statement};
use crate::store::types::Interval;

use super::Error;

/// Renews an active session. `false`: it is no longer active, and the agent must register again.
pub async fn renew(conn: &mut PgConnection, session: SessionId, lifetime: Duration) -> Result<bool, Error> {
    let renewed = sqlx::query!(
        r#"
        update sessions set renewed_at = now(), expires_at = now() + $2::interval
        where id = $1 and state = 'active'
        "#,
        session.get(),
        Interval(lifetime),
    )
    .affected(conn)
    .await?;
    Ok(renewed == 1)
}

/// Stores why the session's agent takes no lease, or `None` when it takes leases again. `true` when
/// this changed.
pub async fn pause(conn: &mut PgConnection, session: SessionId, reason: Option<&str>) -> Result<bool, Error> {
    let changed = sqlx::query!(
        "update sessions set paused = $2 where id = $1 and state = 'active' and paused is distinct from $2",
        session.get(),
        reason,
    )
    .affected(conn)
    .await?;
    Ok(changed == 1)
}

/// Stores that the session's stream broke without a goodbye: the agent may come back, or be dead.
pub async fn disconnect(conn: &mut PgConnection, session: SessionId) -> Result<(), Error> {
    sqlx::query!("update sessions set disconnected_at = now() where id = $1 and state = 'active'", session.get())
        .run(conn)
        .await
}

/// What waits to be sent on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingMessages {
    pub orders: bool,
    /// Revoked leases of this session that were not sent to the agent yet.
    pub revocations: bool,
    /// Recalled leases of this agent that were not sent to it yet.
    pub preemptions: bool,
    /// Assigned tasks, while the agent is neither draining nor paused.
    pub tasks: bool,
    /// The agent's slots without an active lease; negative when its slots were reduced.
    pub free: i64,
}

impl PendingMessages {
    /// Whether leases can be granted.
    pub const fn leases(&self) -> bool {
        self.tasks && self.free > 0
    }
}

/// What waits to be sent on this session; `None` when it has ended. Only reads: this runs every
/// second for every agent, and a commit without writes does not wait for the disk.
pub async fn waiting(
    conn: &mut PgConnection,
    agent: AgentId,
    session: SessionId,
) -> Result<Option<PendingMessages>, Error> {
    sqlx::query_as!(
        PendingMessages,
        r#"
        select exists (select from measurement_orders o where o.prober_id = $1 and o.session_id is null) as "orders!",
               exists (
                   select from leases l
                   where l.session_id = $2 and l.state = 'revoked' and l.revocation_sent_at is null
               ) as "revocations!",
               exists (select from preemptions r where r.agent_id = $1 and r.sent_at is null) as "preemptions!",
               a.draining_since is null and s.paused is null and exists (
                   select from tasks t where t.state = 'assigned' and t.agent_id = $1
               ) as "tasks!",
               a.capacity - (select count(*) from leases l where l.agent_id = $1 and l.state = 'active') as "free!"
        from sessions s join agents a on a.id = s.agent_id
        where s.id = $2 and s.agent_id = $1 and s.state = 'active'
        "#,
        agent.get(),
        session.get(),
    )
    .optional(conn)
    .await
}
