//! An active session: its renewals, what its agent says of itself, and what waits to be sent on it.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, SessionId};
use crate::store::rows::{Rows, Statement};
use crate::store::types::Interval;

use super::Error;

/// Renews an active session. `false`: it is no longer active, and the agent must register anew.
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

/// Takes note of why the agent of this session takes no lease, or that it does again (`None`). `true` when that is news.
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

/// Takes note that the stream of this session broke without a goodbye: its agent may come back, or be dead.
pub async fn disconnect(conn: &mut PgConnection, session: SessionId) -> Result<(), Error> {
    sqlx::query!("update sessions set disconnected_at = now() where id = $1 and state = 'active'", session.get())
        .run(conn)
        .await
}

/// What waits to be sent on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    pub orders: bool,
    /// Leases of this session that were revoked, and whose agent was not told.
    pub revocations: bool,
    /// Leases of this agent that were asked for, and of which it was not told.
    pub recalls: bool,
    /// Tasks assigned to the agent while it does not drain and has not paused.
    pub tasks: bool,
    /// The agent's slots that no active lease takes; below zero where it has fewer slots than it had.
    pub free: i64,
}

impl Waiting {
    /// Whether leases can be granted.
    pub const fn leases(&self) -> bool {
        self.tasks && self.free > 0
    }
}

/// What waits to be sent on this session; `None` when it has ended. Reads only: a commit that has written nothing does
/// not wait for the disk, and this is asked every second for every agent.
pub async fn waiting(conn: &mut PgConnection, agent: AgentId, session: SessionId) -> Result<Option<Waiting>, Error> {
    sqlx::query_as!(
        Waiting,
        r#"
        select exists (select from measurement_orders o where o.prober_id = $1 and o.session_id is null) as "orders!",
               exists (
                   select from leases l
                   where l.session_id = $2 and l.state = 'revoked' and l.revocation_sent_at is null
               ) as "revocations!",
               exists (select from recalls r where r.agent_id = $1 and r.sent_at is null) as "recalls!",
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
