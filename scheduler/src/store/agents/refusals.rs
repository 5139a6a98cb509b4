//! Refusals: invalid reports and requests of agents. A refusal is counted and changes nothing else.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, words};

use crate::store::Error;
use crate::store::rows_and_errors::Rows;

words!(
    /// Why an agent's report or request is refused.
    #[derive(thiserror::Error)]
    Refusal {
        #[error("an outcome of an unknown task")]
        UnknownTask = "unknown-task",
        /// An outcome or a release of a lease that was granted to another agent.
        #[error("a report on another agent's lease")]
        ForeignLease = "foreign-lease",
        #[error("a token that was never granted")]
        ForgedToken = "forged-token",
        /// A lease of a history that the database has lost: by a restore, or by a failover to a server
        /// without the newest transactions. The agent is not at fault.
        #[error("a report on a lease that the database lost at a restore or a failover: its site is crawled again")]
        LostHistory = "lost-history",
        #[error("a token older than that of the newest grant")]
        OldToken = "old-token",
        /// An outcome with the task's newest token that arrives after the task was cancelled, or
        /// failed without an outcome.
        #[error("an outcome of a task that has ended in another way")]
        EndedTask = "ended-task",
        #[error("an outcome that contradicts the one that was accepted")]
        Contradiction = "contradiction",
        /// A heartbeat with a sequence number too high for the age of its session.
        #[error("a heartbeat from the future")]
        FutureHeartbeat = "future-heartbeat",
        #[error("flapping: its sessions superseded each other too often")]
        Flapping = "flapping",
        /// A second process with the agent's credential asked for a session.
        #[error("another process with its credential is connected")]
        Twin = "twin",
    }
);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    pub kind: Refusal,
    pub times: u64,
    pub first_at: DateTime<Utc>,
    pub last_at: DateTime<Utc>,
    /// A sentence that describes the last refusal.
    pub detail: String,
}

/// Counts a refusal, and logs it.
pub async fn count(conn: &mut PgConnection, agent: AgentId, refusal: Refusal, detail: &str) -> Result<(), Error> {
    let counted = sqlx::query!(
        r#"
        insert into refusals (agent_id, kind, detail) values ($1, $2, $3)
        on conflict (agent_id, kind) do update
        set times = refusals.times + 1, last_at = now(), detail = excluded.detail
        returning times, (select name from agents where id = agent_id) as "name!"
        "#,
        agent.get(),
        refusal,
        detail,
    )
    .one(conn)
    .await?;
    let (name, times) = (counted.name, counted.times.0);
    tracing::warn!(agent.name = name, refusal = refusal.name(), times, detail, "refused an agent's message");
    Ok(())
}

/// An agent's refusals, newest first.
pub async fn of_agent(conn: &mut PgConnection, agent: AgentId) -> Result<Vec<Count>, Error> {
    let counts = sqlx::query_as!(
        Count,
        "select kind, times, first_at, last_at, detail from refusals where agent_id = $1 order by last_at desc, kind",
        agent.get(),
    );
    counts.all(conn).await
}
