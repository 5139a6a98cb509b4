//! Sessions: one row per connection of an agent, opened when the agent connects, renewed by its
//! heartbeats, extended when a scheduler takes the role reap, and ended.
//!
//! Invariants: an agent has at most one active session (a unique index). The active session is the
//! one with the newest incarnation. A session is marked as ended before its leases are released,
//! never after.

use std::net::IpAddr;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, Incarnation, LeaseToken, SessionId, TaskId, words};
use crate::status::DiskSpace;
use crate::store::assignments::agents_and_loads::ReportedLoad;
use crate::store::leases::{self, ReleaseScope};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::{Interval, whole};
use crate::store::{Error, Locked, Tx};

/// What an agent reports when it connects.
#[derive(Debug, Clone)]
pub struct Registration {
    pub city: String,
    pub carrier: String,
    /// The country's ISO 3166-1 alpha-2 code; empty when unknown.
    pub country: String,
    pub capacity: u32,
    pub version: String,
    pub beacon_url: Option<String>,
    /// The agent's address as the scheduler observed it.
    pub address: Option<IpAddr>,
    /// The leases that the agent reports as still held.
    pub held: Vec<(TaskId, LeaseToken)>,
    /// Whether another process with the agent's credential has superseded this process. If so, no
    /// session is opened while the other process is connected.
    pub yields: bool,
    /// A random number that the process drew when it started; `None` from an agent of an older
    /// version.
    pub process: Option<i64>,
}

#[derive(Debug, Clone)]
pub struct OpenedSession {
    pub session: SessionId,
    pub incarnation: Incarnation,
    /// The leases among [`Registration::held`] that now belong to this session.
    pub kept: Vec<(TaskId, LeaseToken)>,
}

/// Limits for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionTerms {
    /// Time from the last renewal to expiry, including the configured grace period.
    pub lifetime: Duration,
    /// Maximum number of an agent's sessions that may be superseded within a minute. Once this
    /// maximum is reached, new sessions are refused.
    pub max_supersessions: u32,
    /// Number of crashes at which a task fails.
    pub max_crashes: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("this agent was removed by the operator: enrol it again under its name to restore it")]
    Removed,
    #[error("another process with this agent's credential is connected (incarnation {0}), and this one yields to it")]
    Taken(Incarnation),
    #[error(
        "flapping: {times} sessions of this agent were superseded within a minute (fewer than {most} are allowed): \
         check whether two processes use its credential; the connected one stays"
    )]
    Flapping {
        /// Number of sessions superseded within the last minute.
        times: i64,
        /// Number of superseded sessions at which new sessions are refused.
        most: u32,
    },
    #[error("open a session")]
    Store(#[from] Error),
}

/// Opens a session: ends the agent's previous session, gives the new session the leases that the
/// agent still has, and releases the agent's other leases, except those whose task another
/// transaction has locked.
pub async fn open(
    tx: &mut Tx<'_>,
    agent: AgentId,
    registration: &Registration,
    terms: SessionTerms,
) -> Result<OpenedSession, OpenError> {
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
        whole::<i32, _>(registration.capacity),
        registration.version,
        registration.beacon_url,
    )
    .optional(tx)
    .await?
    .ok_or(OpenError::Removed)?;
    let locked = Locked::by(tx, agent);
    let cause = end_of_former(tx, locked, registration, terms.max_supersessions).await?;
    close_active(tx, locked, cause).await?;
    let session = sqlx::query_scalar!(
        r#"
        insert into sessions (agent_id, incarnation, expires_at, address, process)
        values ($1, $2, now() + $3::interval, $4, $5)
        returning id
        "#,
        agent.get(),
        incarnation.get(),
        Interval(terms.lifetime),
        registration.address.map(|address| address.to_canonical()),
        registration.process,
    )
    .one(tx)
    .await?;
    let kept = leases::rebind(tx, agent, session, &registration.held).await?;
    leases::preemptions::tell_again(tx, agent, session).await?;
    leases::release_of_ended_sessions(tx, ReleaseScope::Agent(agent), terms.max_crashes).await?;
    Ok(OpenedSession { session, incarnation, kept })
}

/// Why the agent's active session ends when a new session replaces it. Returns an error if no new
/// session may replace the active session.
async fn end_of_former(
    tx: &mut Tx<'_>,
    agent: Locked<AgentId>,
    registration: &Registration,
    most: u32,
) -> Result<EndCause, OpenError> {
    let standing = sqlx::query!(
        r#"
        select incarnation, process,
               (select count(*) from sessions s
                where s.agent_id = $1 and s.end_cause = 'superseded' and s.ended_at > now() - interval '1 minute') as "times!"
        from sessions where agent_id = $1 and state = 'active'
        "#,
        agent.get(),
    )
    .optional(tx)
    .await?;
    match standing {
        Some(standing) if standing.process.is_some() && standing.process == registration.process => {
            Ok(EndCause::Reconnected)
        }
        Some(standing) if registration.yields => Err(OpenError::Taken(standing.incarnation)),
        Some(standing) if standing.times >= i64::from(most) => Err(OpenError::Flapping { times: standing.times, most }),
        _ => Ok(EndCause::Superseded),
    }
}

/// What a heartbeat reports about the agent's machine. A field is `None` if it was not reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MachineReport {
    /// The agent's clock when it sent the heartbeat.
    pub sent_at: Option<DateTime<Utc>>,
    /// The fullest file system to which the agent writes.
    pub disk: Option<DiskSpace>,
}

/// What a heartbeat reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeartbeatReport {
    pub machine: MachineReport,
    /// `None` if the heartbeat reports no load.
    pub load: Option<ReportedLoad>,
}

/// What a renewed session's agent must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenewedSession {
    /// The contact URL that is valid now; `None` until the operator sets one.
    pub contact_url: Option<String>,
    /// The floor of the database's newest history.
    pub floor: i64,
}

/// Renews an active session, and stores what its heartbeat reports. Returns `None` if the session is
/// no longer active; the agent must then register again. This is a single statement, because it
/// runs more often than any other statement of an idle fleet.
pub async fn renew(
    conn: &mut PgConnection,
    session: SessionId,
    lifetime: Duration,
    HeartbeatReport { machine, load }: HeartbeatReport,
) -> Result<Option<RenewedSession>, Error> {
    sqlx::query_as!(
        RenewedSession,
        r#"
        update sessions
        set renewed_at = now(), expires_at = now() + $2::interval, disk_free = $4, disk_size = $5,
            clock_ahead_s = greatest(least(extract(epoch from $3::timestamptz - now()), 2e9), -2e9)::integer,
            free_slots = coalesce($6, free_slots), crawls = coalesce($7, crawls),
            outcomes_waiting = coalesce($8, outcomes_waiting)
        where id = $1 and state = 'active'
        returning (select contact_url from settings) as contact_url, (select max(floor) from histories) as "floor!"
        "#,
        session.get(),
        Interval(lifetime),
        machine.sent_at,
        machine.disk.map(|disk| whole::<i64, _>(disk.free)),
        machine.disk.map(|disk| whole::<i64, _>(disk.size)),
        load.map(|load| whole::<i32, _>(load.free_slots)),
        load.map(|load| whole::<i32, _>(load.crawls)),
        load.map(|load| whole::<i32, _>(load.outcomes_waiting)),
    )
    .optional(conn)
    .await
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
/// has committed. Skips sessions that another transaction has locked, so that no session expires
/// later because of another: these sessions are being renewed or granted leases.
pub async fn expire_due(conn: &mut PgConnection) -> Result<Vec<AgentId>, Error> {
    sqlx::query_scalar!(
        r#"
        with due as materialized (
            select id from sessions where state = 'active' and expires_at < now() order by id for update skip locked
        )
        update sessions set state = 'expired', end_cause = $1, ended_at = now()
        from due where sessions.id = due.id
        returning agent_id
        "#,
        EndCause::Expired,
    )
    .all(conn)
    .await
}

pub(in crate::store) async fn close_active(
    tx: &mut Tx<'_>,
    agent: Locked<AgentId>,
    cause: EndCause,
) -> Result<(), Error> {
    sqlx::query!(
        "update sessions set state = 'closed', end_cause = $2, ended_at = now() where agent_id = $1 and state = 'active'",
        agent.get(),
        cause,
    )
    .run(tx)
    .await
}

/// Extends every active session when a scheduler takes the role reap. The former term ended at
/// `served_until`. After `served_until`, there may have been no scheduler that renewed sessions;
/// the extension makes up for this time. Returns the number of extended sessions.
///
/// A session that was renewed after the former term began gets a whole lifetime. Any other session
/// gets what remained of its lifetime when the former term ended. So a dead agent's session expires
/// after at most two lifetimes, even if terms change often. Only time in which a scheduler has the
/// role reap counts towards these lifetimes.
pub(in crate::store) async fn extend(
    conn: &mut PgConnection,
    lifetime: Duration,
    former_term: Option<DateTime<Utc>>,
    served_until: Option<DateTime<Utc>>,
) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        update sessions
        set expires_at = case
            when $2::timestamptz is null or renewed_at >= $2
                then greatest(expires_at, clock_timestamp() + $1::interval)
            else expires_at + greatest(clock_timestamp() - $3::timestamptz, interval '0')
        end
        where state = 'active'
        "#,
        Interval(lifetime),
        former_term,
        served_until,
    )
    .affected(conn)
    .await
}

/// The kinds of messages that wait to be sent on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingMessages {
    pub orders: bool,
    /// Whether leases of this session were taken back of which the agent has not been told yet.
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
                   where l.session_id = $2 and l.state in ('revoked', 'overdue') and l.revocation_sent_at is null
               ) as "revocations!",
               exists (select from preemptions r where r.agent_id = $1 and r.sent_at is null) as "preemptions!",
               a.draining_since is null and s.paused is null and exists (
                   select from tasks t where t.state = 'assigned' and t.agent_id = $1
                     and t.batch_id <> all (array(select batch_id from changes where finished_at is null and kind <> 'retry'))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures::{self, Conn};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_newest_incarnation_wins(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let agent = fixtures::agent(&mut conn, "a").await;
        let first = open(&mut conn, agent, &fixtures::registration(), fixtures::TERMS).await.expect("open");
        let second = open(&mut conn, agent, &fixtures::registration(), fixtures::TERMS).await.expect("open");
        assert!(second.incarnation > first.incarnation);
        assert!(!fixtures::renew(&mut conn, first.session).await);
        assert!(fixtures::renew(&mut conn, second.session).await);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_process_that_connects_anew_neither_supersedes_itself_nor_flaps_nor_yields_to_itself(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let agent = fixtures::agent(&mut conn, "a").await;
        let terms = SessionTerms { max_supersessions: 2, ..fixtures::TERMS };
        let process = |number| Registration { process: Some(number), ..fixtures::registration() };
        for _ in 0..5 {
            open(&mut conn, agent, &process(1), terms).await.expect("open");
        }
        open(&mut conn, agent, &Registration { yields: true, ..process(1) }, terms).await.expect("its own place");
        for twin in [2, 1] {
            open(&mut conn, agent, &process(twin), terms).await.expect("open");
        }
        let refused = open(&mut conn, agent, &process(2), terms).await.expect_err("flaps");
        assert!(matches!(refused, OpenError::Flapping { times: 2, .. }), "{refused}");
        let ends = sqlx::query_scalar::<_, Option<String>>("select end_cause::text from sessions order by incarnation");
        let ends: Vec<_> = ends.fetch_all(&mut *conn).await.expect("read").into_iter().flatten().collect();
        assert_eq!(ends, [["reconnected"; 5].as_slice(), ["superseded"; 2].as_slice()].concat());
    }
}
