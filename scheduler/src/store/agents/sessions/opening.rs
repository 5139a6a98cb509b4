//! Opens the session of an agent that connects, ends its former session, and refuses it if the
//! agent flaps, was removed, or yields to another process.

use std::net::IpAddr;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, Incarnation, LeaseToken, SessionId, TaskId};
use crate::store::agents::sessions::ending::{EndCause, close_active};
use crate::store::rows::Rows;
use crate::store::types::{Interval, whole};
use crate::store::{Error, leases};

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
/// agent still has, and releases the agent's other leases. Run in a transaction.
pub async fn open(
    conn: &mut PgConnection,
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
    .optional(conn)
    .await?
    .ok_or(OpenError::Removed)?;
    let cause = end_of_former(conn, agent, registration, terms.max_supersessions).await?;
    close_active(conn, agent, cause).await?;
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
    .one(conn)
    .await?;
    let kept = leases::rebind(conn, agent, session, &registration.held).await?;
    leases::preemptions::tell_again(conn, agent, session).await?;
    leases::release_of_ended_sessions(conn, terms.max_crashes).await?;
    Ok(OpenedSession { session, incarnation, kept })
}

/// Why the agent's active session ends when a new session replaces it. Returns an error if no new
/// session may replace the active session. The caller has locked the agent's row.
async fn end_of_former(
    conn: &mut PgConnection,
    agent: AgentId,
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
    .optional(conn)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::agents::sessions::ending::expire_due;
    use crate::store::agents::sessions::heartbeats::{MachineReport, renew};
    use crate::store::fixtures::{self, Conn};

    async fn pass_time(conn: &mut PgConnection, session: SessionId) {
        fixtures::execute_for(
            conn,
            "update sessions set expires_at = now() - interval '1 second' where id = $1",
            session,
        )
        .await;
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_newest_incarnation_wins(mut conn: Conn) {
        let agent = fixtures::agent(&mut conn, "a").await;
        let first = open(&mut conn, agent, &fixtures::registration(), fixtures::TERMS).await.expect("open");
        let second = open(&mut conn, agent, &fixtures::registration(), fixtures::TERMS).await.expect("open");
        assert!(second.incarnation > first.incarnation);
        assert!(!renew(&mut conn, first.session, fixtures::LIFETIME, MachineReport::default()).await.expect("renew"));
        assert!(renew(&mut conn, second.session, fixtures::LIFETIME, MachineReport::default()).await.expect("renew"));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_process_that_connects_anew_neither_supersedes_itself_nor_flaps_nor_yields_to_itself(mut conn: Conn) {
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

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_expired_session_cannot_be_revived_and_its_lease_returns(mut conn: Conn) {
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, agent).await;
        fixtures::grant(&mut conn, agent, session).await;
        pass_time(&mut conn, session).await;
        assert_eq!(expire_due(&mut conn).await.expect("expire"), [agent]);
        assert!(
            !renew(&mut conn, session, fixtures::LIFETIME, MachineReport::default()).await.expect("renew"),
            "a late heartbeat"
        );
        assert_eq!(fixtures::reap(&mut conn).await, 1);
        assert_eq!(fixtures::state(&mut conn, task).await, "assigned");
    }
}
