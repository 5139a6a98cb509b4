//! Sessions: one row per connection of an agent, renewed by heartbeats.
//!
//! Invariants: at most one active session an agent (a unique index); the newest incarnation wins; only Postgres'
//! clock expires anything; a session is marked before its leases move, never after.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, Incarnation, LeaseToken, SessionId, TaskId};

use super::Error;

/// What an agent says of itself when it connects.
#[derive(Debug, Clone)]
pub struct Registration {
    /// The city.
    pub city: String,
    /// The carrier (ISP).
    pub carrier: String,
    /// ISO 3166-1 alpha-2, or empty.
    pub country: String,
    /// Sites crawled at once.
    pub capacity: u32,
    /// The agent's version.
    pub version: String,
    /// Where its beacon is reached, when it runs one.
    pub beacon_url: Option<String>,
    /// The leases it believes it holds.
    pub held: Vec<(TaskId, LeaseToken)>,
}

/// A session just opened.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The session.
    pub session: SessionId,
    /// Its number among the agent's.
    pub incarnation: Incarnation,
    /// The held leases that now belong to this session.
    pub kept: Vec<(TaskId, LeaseToken)>,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// It was not renewed in time: its agent was lost.
    Expired,
    /// Its agent connected anew.
    Superseded,
    /// Its agent said goodbye.
    Left,
    /// The operator removed its agent.
    Removed,
}

impl EndCause {
    /// The word in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Superseded => "superseded",
            Self::Left => "left",
            Self::Removed => "removed",
        }
    }
}

/// Why no session is opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operator removed the agent.
    #[error("this agent was removed by the operator: enrol it again under its name to have it back")]
    Removed,
    /// The store failed.
    #[error("open a session")]
    Store(#[from] Error),
}

impl From<sqlx::Error> for OpenError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Opens a session: supersedes the agent's former one and re-binds the leases the agent still holds, in one
/// transaction of the caller. Leases the agent no longer knows of go back.
///
/// # Errors
/// When the agent was removed, or the database fails.
pub async fn open(
    conn: &mut PgConnection,
    agent: AgentId,
    registration: &Registration,
    lifetime: Duration,
) -> Result<Opened, OpenError> {
    let capacity = i32::try_from(registration.capacity).unwrap_or(i32::MAX);
    let incarnation = sqlx::query_scalar!(
        r#"
        update agents
        set city = $2, carrier = $3, country = $4, capacity = $5, version = $6, beacon_url = $7,
            incarnation = incarnation + 1
        where id = $1 and removed_at is null
        returning incarnation
        "#,
        agent.get(),
        registration.city,
        registration.carrier,
        registration.country,
        capacity,
        registration.version,
        registration.beacon_url,
    )
    .fetch_optional(&mut *conn)
    .await?
    .ok_or(OpenError::Removed)?;
    close_active(conn, agent, EndCause::Superseded).await?;
    let session = sqlx::query_scalar!(
        r#"
        insert into sessions (agent_id, incarnation, expires_at)
        values ($1, $2, now() + $3 * interval '1 microsecond')
        returning id
        "#,
        agent.get(),
        incarnation,
        micros(lifetime),
    )
    .fetch_one(&mut *conn)
    .await?;
    let session = SessionId::new(session);
    let kept = super::leases::rebind(conn, agent, session, &registration.held).await?;
    super::leases::release_of_ended_sessions(conn).await?;
    Ok(Opened { session, incarnation: Incarnation::new(incarnation), kept })
}

/// Renews an active session. `false`: it is no longer active, and the agent must register anew.
///
/// # Errors
/// When the database fails.
pub async fn renew(conn: &mut PgConnection, session: SessionId, lifetime: Duration) -> Result<bool, Error> {
    let renewed = sqlx::query!(
        r#"
        update sessions set renewed_at = now(), expires_at = now() + $2 * interval '1 microsecond'
        where id = $1 and state = 'active'
        "#,
        session.get(),
        micros(lifetime),
    )
    .execute(conn)
    .await?;
    Ok(renewed.rows_affected() == 1)
}

/// Takes note of why the agent of this session takes no lease, or that it does again (`None`). `true` when that is news.
///
/// # Errors
/// When the database fails.
pub async fn pause(conn: &mut PgConnection, session: SessionId, reason: Option<&str>) -> Result<bool, Error> {
    let changed = sqlx::query!(
        "update sessions set paused = $2 where id = $1 and state = 'active' and paused is distinct from $2",
        session.get(),
        reason,
    )
    .execute(conn)
    .await?;
    Ok(changed.rows_affected() == 1)
}

/// What waits to be sent on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Orders to measure.
    pub orders: bool,
    /// Leases of this session that were revoked, and whose agent was not told.
    pub revocations: bool,
    /// Tasks assigned to the agent while it has a free slot, does not drain and has not paused.
    pub leases: bool,
}

/// What waits to be sent on this session; `None` when it has ended. Reads only: a commit that has written nothing does
/// not wait for the disk, and this is asked every second for every agent.
///
/// # Errors
/// When the database fails.
pub async fn waiting(conn: &mut PgConnection, agent: AgentId, session: SessionId) -> Result<Option<Waiting>, Error> {
    let waiting = sqlx::query_as!(
        Waiting,
        r#"
        select exists (select from measurement_orders o where o.prober_id = $1 and o.session_id is null) as "orders!",
               exists (
                   select from leases l
                   where l.session_id = $2 and l.state = 'revoked' and l.revocation_sent_at is null
               ) as "revocations!",
               a.draining_since is null and s.paused is null
               and (select count(*) from leases l where l.agent_id = $1 and l.state = 'active') < a.capacity
               and exists (
                   select from tasks t join assignments c on c.id = t.assignment_id
                   where t.state = 'assigned' and c.agent_id = $1
               ) as "leases!"
        from sessions s join agents a on a.id = s.agent_id
        where s.id = $2 and s.agent_id = $1 and s.state = 'active'
        "#,
        agent.get(),
        session.get(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(waiting)
}

/// Ends a session whose agent said goodbye.
///
/// # Errors
/// When the database fails.
pub async fn close(conn: &mut PgConnection, session: SessionId) -> Result<(), Error> {
    sqlx::query!(
        "update sessions set state = 'closed', end_cause = $2, ended_at = now() where id = $1 and state = 'active'",
        session.get(),
        EndCause::Left.name(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Gives every active session a whole lifetime from now. Called once when a scheduler starts: while it was away no
/// heartbeat could be recorded, and no agent shall lose its work for that.
///
/// # Errors
/// When the database fails.
pub async fn extend_all(conn: &mut PgConnection, lifetime: Duration) -> Result<u64, Error> {
    let extended = sqlx::query!(
        r#"
        update sessions set expires_at = greatest(expires_at, now() + $1 * interval '1 microsecond')
        where state = 'active'
        "#,
        micros(lifetime),
    )
    .execute(conn)
    .await?;
    Ok(extended.rows_affected())
}

/// Marks the sessions whose time has passed, and returns their agents. Their leases move in a later transaction, so
/// that a late heartbeat finds the session ended and cannot revive an agent whose tasks have moved.
///
/// # Errors
/// When the database fails.
pub async fn expire_due(conn: &mut PgConnection) -> Result<Vec<AgentId>, Error> {
    let agents = sqlx::query_scalar!(
        r#"
        update sessions set state = 'expired', end_cause = $1, ended_at = now()
        where state = 'active' and expires_at < now()
        returning agent_id
        "#,
        EndCause::Expired.name(),
    )
    .fetch_all(conn)
    .await?;
    Ok(agents.into_iter().map(AgentId::new).collect())
}

/// Ends the agent's active session, if there is one.
pub(super) async fn close_active(conn: &mut PgConnection, agent: AgentId, cause: EndCause) -> Result<(), Error> {
    sqlx::query!(
        "update sessions set state = 'closed', end_cause = $2, ended_at = now() where agent_id = $1 and state = 'active'",
        agent.get(),
        cause.name(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Postgres intervals are built from whole microseconds, as a double holds them exactly.
fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::store::{fixtures, leases};

    async fn pass_time(conn: &mut PgConnection, session: SessionId) {
        sqlx::query("update sessions set expires_at = now() - interval '1 second' where id = $1")
            .bind(session.get())
            .execute(conn)
            .await
            .expect("move the expiry into the past");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_newest_incarnation_wins(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let agent = fixtures::agent(&mut conn, "a").await;
        let first = open(&mut conn, agent, &fixtures::registration(), fixtures::LIFETIME).await.expect("open");
        let second = open(&mut conn, agent, &fixtures::registration(), fixtures::LIFETIME).await.expect("open");
        assert!(second.incarnation > first.incarnation);
        assert!(!renew(&mut conn, first.session, fixtures::LIFETIME).await.expect("renew"));
        assert!(renew(&mut conn, second.session, fixtures::LIFETIME).await.expect("renew"));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_expired_session_cannot_be_revived_and_its_lease_returns(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let agent = fixtures::agent(&mut conn, "a").await;
        let session = fixtures::session(&mut conn, agent).await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, agent).await;
        leases::grant(&mut conn, agent, session).await.expect("grant");
        pass_time(&mut conn, session).await;
        assert_eq!(expire_due(&mut conn).await.expect("expire"), [agent]);
        assert!(!renew(&mut conn, session, fixtures::LIFETIME).await.expect("renew"), "a late heartbeat");
        assert_eq!(leases::release_of_ended_sessions(&mut conn).await.expect("release"), 1);
        assert_eq!(fixtures::state(&mut conn, task).await, "assigned");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn after_a_restart_no_session_expires_for_the_time_the_scheduler_was_away(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let agent = fixtures::agent(&mut conn, "a").await;
        let session = fixtures::session(&mut conn, agent).await;
        pass_time(&mut conn, session).await;
        assert_eq!(extend_all(&mut conn, fixtures::LIFETIME).await.expect("extend"), 1);
        assert!(expire_due(&mut conn).await.expect("expire").is_empty());
    }
}
