//! Renews active sessions at each heartbeat, stores their pauses and disconnections, and reads
//! which messages wait to be sent.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, SessionId};
use crate::status::DiskSpace;
use crate::store::rows::{Rows, Statement};
use crate::store::types::{Interval, whole};

use super::Error;

/// What a heartbeat reports about the agent's machine. A field is `None` if it was not reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MachineReport {
    /// The agent's clock when it sent the heartbeat.
    pub sent_at: Option<DateTime<Utc>>,
    /// The fullest file system to which the agent writes.
    pub disk: Option<DiskSpace>,
}

/// Renews an active session, and stores what its heartbeat reports about the machine. Returns
/// `false` if the session is no longer active; the agent must then register again.
pub async fn renew(
    conn: &mut PgConnection,
    session: SessionId,
    lifetime: Duration,
    machine: MachineReport,
) -> Result<bool, Error> {
    let renewed = sqlx::query!(
        r#"
        update sessions
        set renewed_at = now(), expires_at = now() + $2::interval, disk_free = $4, disk_size = $5,
            clock_ahead_s = greatest(least(extract(epoch from $3::timestamptz - now()), 2e9), -2e9)::integer
        where id = $1 and state = 'active'
        "#,
        session.get(),
        Interval(lifetime),
        machine.sent_at,
        machine.disk.map(|disk| whole::<i64, _>(disk.free)),
        machine.disk.map(|disk| whole::<i64, _>(disk.size)),
    )
    .affected(conn)
    .await?;
    Ok(renewed == 1)
}

/// Stores the reason why the session's agent gets no leases, or `None` when it gets leases again.
/// Returns `true` if the reason changed.
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

/// Stores that the session's stream broke before the agent ended the session. The agent may
/// reconnect or be dead.
pub async fn disconnect(conn: &mut PgConnection, session: SessionId) -> Result<(), Error> {
    sqlx::query!("update sessions set disconnected_at = now() where id = $1 and state = 'active'", session.get())
        .run(conn)
        .await
}

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
