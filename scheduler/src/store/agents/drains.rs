//! Drains: an operator's command that stops new work for an agent.
//!
//! Drains and removals lock the agent's row first, as grants and new sessions do. So if two
//! transactions on one agent are concurrent, the second sees the changes of the first. Tasks that
//! are assigned but not begun are withdrawn at once, so that other agents can be chosen for them.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::AgentId;

use super::enrolments;
use crate::store::assignments::{self, UnassignScope};
use crate::store::rows::{Rows, Statement};
use crate::store::types::Unsigned;
use crate::store::{Error, minute};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainResult {
    /// Number of withdrawn tasks, which were assigned to the agent but not begun.
    pub withdrawn: u64,
    /// Number of leases that the agent keeps (drain) or that were released (removal).
    pub leases: u64,
    /// Whether the agent was already draining or removed when the command was given.
    pub before: bool,
}

/// Why an agent cannot be drained, resumed or removed.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    #[error("no agent is called {0}")]
    Unknown(String),
    #[error("{}", enrolments::not_yet(.0))]
    NotYet(String),
    #[error("agent {name} was removed at {}: enrol it again under its name to restore it", minute(.at))]
    Removed { name: String, at: DateTime<Utc> },
    #[error(
        "agent {name} holds {}: drain it first (landfall agents drain {name} --wait), or take its leases back with \
         --force",
        counted(*.leases)
    )]
    HoldsLeases { name: String, leases: u64 },
    #[error("take an agent out of service")]
    Store(#[from] Error),
}

fn counted(leases: u64) -> String {
    if leases == 1 { "1 lease".to_owned() } else { format!("{leases} leases") }
}

/// Stops grants and assignments to the agent, which still finishes its leases. Run in a
/// transaction.
pub async fn drain(conn: &mut PgConnection, name: &str) -> Result<DrainResult, DrainError> {
    let agent = present(conn, name).await?;
    sqlx::query!("update agents set draining_since = coalesce(draining_since, now()) where id = $1", agent.id.get())
        .run(conn)
        .await?;
    let withdrawn = assignments::unassign(conn, UnassignScope::Agent(agent.id), i64::MAX).await?;
    let leases = active_leases(conn, agent.id).await?;
    Ok(DrainResult { withdrawn, leases, before: agent.draining })
}

/// Ends an agent's drain. Returns `false` if the agent was not draining.
pub async fn resume(conn: &mut PgConnection, name: &str) -> Result<bool, DrainError> {
    let agent = present(conn, name).await?;
    sqlx::query!("update agents set draining_since = null where id = $1", agent.id.get()).run(conn).await?;
    Ok(agent.draining)
}

pub(super) struct LockedAgent {
    pub(super) id: AgentId,
    draining: bool,
    pub(super) removed_at: Option<DateTime<Utc>>,
}

/// Locks the agent's row against grants and new sessions until the transaction ends.
pub(super) async fn locked(conn: &mut PgConnection, name: &str) -> Result<LockedAgent, DrainError> {
    let found = sqlx::query_as!(
        LockedAgent,
        r#"
        select id, draining_since is not null as "draining!", removed_at from agents where name = $1
        for no key update
        "#,
        name,
    )
    .optional(conn)
    .await?;
    match found {
        Some(agent) => Ok(agent),
        None if enrolments::is_open(conn, name).await? => Err(DrainError::NotYet(name.to_owned())),
        None => Err(DrainError::Unknown(name.to_owned())),
    }
}

async fn present(conn: &mut PgConnection, name: &str) -> Result<LockedAgent, DrainError> {
    let agent = locked(conn, name).await?;
    match agent.removed_at {
        Some(at) => Err(DrainError::Removed { name: name.to_owned(), at }),
        None => Ok(agent),
    }
}

pub(super) async fn active_leases(conn: &mut PgConnection, agent: AgentId) -> Result<u64, Error> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!: Unsigned<u64>" from leases where agent_id = $1 and state = 'active'"#,
        agent.get(),
    )
    .one(conn)
    .await?;
    Ok(count.0)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{SessionId, TaskId};
    use crate::store::agents::sessions;
    use crate::store::fixtures::{self, Conn};
    use crate::store::leases;

    /// An agent with two slots, two leases and one more assigned task.
    pub(in crate::store::agents) async fn busy(conn: &mut PgConnection) -> (AgentId, SessionId, Vec<TaskId>) {
        let (agent, session) = fixtures::crawler(conn, "a").await;
        let batch = fixtures::batch(conn, "b", "random").await;
        let tasks = fixtures::queue(conn, batch, agent, &["a.cn", "b.cn", "c.cn"]).await;
        assert_eq!(fixtures::grant(conn, agent, session).await.len(), 2);
        (agent, session, tasks)
    }

    pub(in crate::store::agents) async fn states(conn: &mut PgConnection, tasks: &[TaskId]) -> Vec<String> {
        let mut states = Vec::new();
        for task in tasks {
            states.push(fixtures::state(conn, *task).await);
        }
        states
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_draining_agent_keeps_its_leases_and_gets_nothing_new(mut conn: Conn) {
        let (agent, session, tasks) = busy(&mut conn).await;
        let drained = drain(&mut conn, "a").await.expect("drain");
        assert_eq!(drained, DrainResult { withdrawn: 1, leases: 2, before: false });
        assert_eq!(states(&mut conn, &tasks).await, ["leased", "leased", "located"]);
        assert!(crate::store::assignments::available_agents::available(&mut conn).await.expect("read").is_empty());

        let held = leases::release(&mut conn, agent, tasks[0], fixtures::TOKEN, None, fixtures::MAX_CRASHES).await;
        assert!(held.expect("hand back"));
        assert!(
            leases::grant(&mut conn, agent, session).await.expect("grant").is_empty(),
            "not even what it gave back"
        );
        let waits = sessions::waiting(&mut conn, agent, session).await.expect("look").expect("an active session");
        assert!(!waits.leases());
        assert_eq!(
            assignments::unassign(&mut conn, UnassignScope::Unavailable(Duration::from_secs(5)), 10)
                .await
                .expect("withdraw"),
            1
        );
        assert_eq!(states(&mut conn, &tasks).await, ["located", "leased", "located"]);

        let again = drain(&mut conn, "a").await.expect("drain");
        assert_eq!(again, DrainResult { withdrawn: 0, leases: 1, before: true });
        assert!(resume(&mut conn, "a").await.expect("resume"));
        assert!(!resume(&mut conn, "a").await.expect("resume"), "once");
        assert_eq!(crate::store::assignments::available_agents::available(&mut conn).await.expect("read").len(), 1);
    }
}
