//! Renews active sessions at each heartbeat, and stores their pauses and disconnections.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::SessionId;
use crate::status::DiskSpace;
use crate::store::rows::Statement;
use crate::store::types::{Interval, whole};

use crate::store::Error;

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
