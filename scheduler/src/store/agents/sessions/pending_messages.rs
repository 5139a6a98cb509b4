//! Reads which messages wait to be sent on a session.

use sqlx::PgConnection;

use crate::model::{AgentId, SessionId};
use crate::store::Error;
use crate::store::rows::Rows;

/// The kinds of messages that wait to be sent on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingMessages {
    pub orders: bool,
    /// Whether there are revocations of this session's leases that have not been sent yet.
    pub revocations: bool,
    /// Whether there are preemptions of this agent's leases that have not been sent yet.
    pub preemptions: bool,
    /// Whether tasks are assigned to the agent, and the agent is neither draining nor paused.
    pub tasks: bool,
    /// Slots minus active leases; negative if the number of slots was reduced.
    pub free: i64,
}

impl PendingMessages {
    /// Whether leases can be granted.
    pub const fn leases(&self) -> bool {
        self.tasks && self.free > 0
    }
}

/// The messages that wait to be sent on this session; `None` if the session has ended. This query
/// runs every second for every agent. It writes nothing, because a commit without writes does not
/// wait for the disk.
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
