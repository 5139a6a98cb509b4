//! An operator's changes to an agent: drains, which stop new work for it; removals, which take it
//! out of the fleet; and its tags.
//!
//! Drains and removals lock the agent's row first, as grants and new sessions do. So if two
//! transactions on one agent are concurrent, the second sees the changes of the first. Tasks that
//! are assigned but not begun are withdrawn at once, so that other agents can be chosen for them.
//!
//! A lease ended by a removal does not count as a crash of its task.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::AgentId;
use crate::store::agents::issued_tokens;
use crate::store::agents::sessions::{self, EndCause};
use crate::store::assignments::{self, UnassignScope};
use crate::store::leases::{self, ReleaseScope};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::Unsigned;
use crate::store::{Error, Locked, Tx, minute, settings};

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
    #[error("{}", issued_tokens::not_yet(.0))]
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

/// Stops grants and assignments to the agent, which still finishes its leases.
pub async fn drain(tx: &mut Tx<'_>, name: &str) -> Result<DrainResult, DrainError> {
    let agent = present(tx, name).await?;
    sqlx::query!("update agents set draining_since = coalesce(draining_since, now()) where id = $1", agent.id.get())
        .run(tx)
        .await?;
    let withdrawn = assignments::unassign(tx, UnassignScope::Agent(agent.id), i64::MAX).await?;
    let leases = active_leases(tx, *agent.id).await?;
    Ok(DrainResult { withdrawn, leases, before: agent.draining })
}

/// Ends an agent's drain. Returns `false` if the agent was not draining.
pub async fn resume(tx: &mut Tx<'_>, name: &str) -> Result<bool, DrainError> {
    let agent = present(tx, name).await?;
    sqlx::query!("update agents set draining_since = null where id = $1", agent.id.get()).run(tx).await?;
    Ok(agent.draining)
}

struct FoundAgent {
    id: Locked<AgentId>,
    draining: bool,
    removed_at: Option<DateTime<Utc>>,
}

/// Locks the agent's row against grants and new sessions until the transaction ends.
async fn locked(tx: &mut Tx<'_>, name: &str) -> Result<FoundAgent, DrainError> {
    let found = sqlx::query!(
        r#"
        select id, draining_since is not null as "draining!", removed_at from agents where name = $1
        for no key update
        "#,
        name,
    )
    .optional(tx)
    .await?;
    match found {
        Some(row) => Ok(FoundAgent { id: Locked::by(tx, row.id), draining: row.draining, removed_at: row.removed_at }),
        None if issued_tokens::is_open(tx, name).await? => Err(DrainError::NotYet(name.to_owned())),
        None => Err(DrainError::Unknown(name.to_owned())),
    }
}

async fn present(tx: &mut Tx<'_>, name: &str) -> Result<FoundAgent, DrainError> {
    let agent = locked(tx, name).await?;
    match agent.removed_at {
        Some(at) => Err(DrainError::Removed { name: name.to_owned(), at }),
        None => Ok(agent),
    }
}

async fn active_leases(conn: &mut PgConnection, agent: AgentId) -> Result<u64, Error> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!: Unsigned<u64>" from leases where agent_id = $1 and state = 'active'"#,
        agent.get(),
    )
    .one(conn)
    .await?;
    Ok(count.0)
}

/// Removes an agent: ends its session, revokes its credential and keeps its history. An agent with
/// leases is removed only with `force`, which releases the leases. An elected landmark stays in the
/// list of landmarks until another agent is elected in its place. A landmark set by hand is deleted
/// from the list at once.
pub async fn remove(tx: &mut Tx<'_>, name: &str, force: bool, max_crashes: u32) -> Result<DrainResult, DrainError> {
    // Landmarks, from whose list the agent may be deleted, are locked before agents.
    settings::lock(tx).await?;
    let agent = locked(tx, name).await?;
    if agent.removed_at.is_some() {
        return Ok(DrainResult { withdrawn: 0, leases: 0, before: true });
    }
    let leases = active_leases(tx, *agent.id).await?;
    if leases > 0 && !force {
        return Err(DrainError::HoldsLeases { name: name.to_owned(), leases });
    }
    sqlx::query!("update agents set removed_at = now() where id = $1", agent.id.get()).run(tx).await?;
    sessions::close_active(tx, agent.id, EndCause::Removed).await?;
    leases::release_of_ended_sessions(tx, ReleaseScope::Agent(*agent.id), max_crashes).await?;
    let withdrawn = assignments::unassign(tx, UnassignScope::Agent(agent.id), i64::MAX).await?;
    sqlx::query!("delete from landmarks where agent_id = $1 and not elected", agent.id.get()).run(tx).await?;
    // `withdrawn` includes the tasks whose leases were released above.
    Ok(DrainResult { withdrawn: withdrawn.saturating_sub(leases), leases, before: false })
}

pub async fn set_tags(tx: &mut Tx<'_>, agent: Locked<AgentId>, tags: &[String]) -> Result<(), Error> {
    sqlx::query!("update agents set tags = $2 where id = $1", agent.get(), tags).run(tx).await
}

/// Returns an agent's tags and locks its row until the transaction ends; `None` for an unknown or
/// removed agent.
pub async fn lock_tags(tx: &mut Tx<'_>, name: &str) -> Result<Option<(Locked<AgentId>, Vec<String>)>, Error> {
    let row =
        sqlx::query!("select id, tags from agents where name = $1 and removed_at is null for no key update", name,)
            .optional(tx)
            .await?;
    Ok(row.map(|row| (Locked::by(tx, row.id), row.tags)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::PgPool;

    use super::*;
    use crate::model::{SessionId, TaskId};
    use crate::store::agents;
    use crate::store::agents::sessions::OpenError;
    use crate::store::fixtures::{self, Conn};

    /// An agent with two slots, two leases and one more assigned task.
    async fn busy(conn: &mut PgConnection) -> (AgentId, SessionId, Vec<TaskId>) {
        let (agent, session) = fixtures::crawler(conn, "a").await;
        let batch = fixtures::batch(conn, "b", "random").await;
        let tasks = fixtures::queue(conn, batch, agent, &["a.cn", "b.cn", "c.cn"]).await;
        assert_eq!(fixtures::grant(conn, agent, session).await.len(), 2);
        (agent, session, tasks)
    }

    async fn states(conn: &mut PgConnection, tasks: &[TaskId]) -> Vec<String> {
        let mut states = Vec::new();
        for task in tasks {
            states.push(fixtures::state(conn, *task).await);
        }
        states
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_draining_agent_keeps_its_leases_and_gets_nothing_new(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (agent, session, tasks) = busy(&mut conn).await;
        let drained = drain(&mut conn, "a").await.expect("drain");
        assert_eq!(drained, DrainResult { withdrawn: 1, leases: 2, before: false });
        assert_eq!(states(&mut conn, &tasks).await, ["leased", "leased", "located"]);
        assert!(crate::store::assignments::agents_and_loads::available(&mut conn).await.expect("read").is_empty());

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
        assert_eq!(crate::store::assignments::agents_and_loads::available(&mut conn).await.expect("read").len(), 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_agent_with_leases_is_removed_only_by_force_and_does_not_come_back(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (agent, session, tasks) = busy(&mut conn).await;
        let refused = remove(&mut conn, "a", false, fixtures::MAX_CRASHES).await.expect_err("it holds leases");
        assert!(matches!(refused, DrainError::HoldsLeases { leases: 2, .. }), "{refused}");
        assert_eq!(states(&mut conn, &tasks).await, ["leased", "leased", "assigned"]);

        let removed = remove(&mut conn, "a", true, fixtures::MAX_CRASHES).await.expect("remove");
        assert_eq!(removed, DrainResult { withdrawn: 1, leases: 2, before: false });
        assert_eq!(states(&mut conn, &tasks).await, ["located", "located", "located"]);
        assert!(!fixtures::renew(&mut conn, session).await);
        let back = sessions::open(&mut conn, agent, &fixtures::registration(), fixtures::TERMS).await;
        assert!(matches!(back, Err(OpenError::Removed)));
        assert!(remove(&mut conn, "a", false, fixtures::MAX_CRASHES).await.expect("remove").before, "once");
        assert!(matches!(drain(&mut conn, "a").await, Err(DrainError::Removed { .. })));
        assert!(matches!(drain(&mut conn, "nobody").await, Err(DrainError::Unknown(_))));

        assert_eq!(agents::by_name(&mut conn, "a").await.expect("look"), None);
        let shown = agents::show(&mut conn, "a").await.expect("look").expect("it is remembered");
        assert!(shown.removed_at.is_some());
        let reported = crate::store::reports::agents(&mut conn, None, &[shown.id]).await.expect("report");
        assert_eq!(reported.len(), 1, "its history stays");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_removed_landmark_is_none_or_is_replaced_at_once(pool: PgPool) {
        use crate::store::embeddings::landmarks::{self, ChosenBy};
        let mut conn = pool.acquire().await.expect("connect");
        let (agent, _) = fixtures::crawler(&mut conn, "a").await;
        let an_hour = std::time::Duration::from_secs(3600);
        for (by, standing) in [(ChosenBy::Election, 1), (ChosenBy::Hand, 0)] {
            let mut tx = Tx::on(&mut conn).await.expect("begin");
            fixtures::set_landmarks(&mut tx, &[(agent, "chosen".to_owned())], by).await;
            remove(&mut tx, "a", false, fixtures::MAX_CRASHES).await.expect("remove");
            assert_eq!(landmarks::list(&mut tx).await.expect("list").len(), standing, "{by:?}");
            let lost = landmarks::longest_absent(&mut tx, an_hour).await.expect("look");
            assert_eq!(lost.map(|lost| lost.name), (by == ChosenBy::Election).then(|| "a".to_owned()));
            tx.rollback().await.expect("rollback");
        }
    }
}
