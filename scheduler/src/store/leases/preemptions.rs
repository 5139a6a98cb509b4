//! Preemptions: requests to agents to return active leases, because another agent would finish the
//! crawls sooner.
//!
//! Invariants: a task is preempted at most once. The agent keeps the lease until it returns the
//! lease. The task then goes back to the state `located`, and an agent is chosen again. A
//! preemption that arrives too late, or never, has no effect.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, LeaseToken, SessionId, SiteId, Strategy, TaskId};

use super::Ending;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::{Interval, Millis, Unsigned};
use crate::store::{Error, Tx, leases};

/// An active crawl of a batch whose tasks are planned together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnderWay {
    pub task: TaskId,
    pub token: LeaseToken,
    pub site: SiteId,
    pub batch: BatchId,
    pub agent: AgentId,
    /// Time since the lease was granted.
    pub took: Duration,
    /// The predicted duration of the crawl; `None` without a prediction.
    pub takes: Option<Duration>,
    /// Maximum time that the batch's policy allows for a crawl.
    pub at_most: Duration,
    pub most_pages: u32,
    /// Number of pages fetched up to the checkpoint, and the time from the grant to the checkpoint.
    /// `None` if no page was fetched, or if the task had an earlier lease.
    pub fetched: Option<(u32, Duration)>,
    /// The minimum interval that the agent keeps between two requests to the site; `None` if no
    /// interval was reported.
    pub interval: Option<Duration>,
    /// Agents at which a crawl of this task crashed or was overdue, or that were lost during a crawl
    /// of this task.
    pub crashed_at: Vec<AgentId>,
}

/// At most `limit` crawls of batches whose tasks are planned together. The crawls have never been
/// preempted, and have been active for at least `least`. The crawl that is predicted to end last
/// comes first. Omits crawls whose site asked for a pause or refused requests, because another
/// agent would have to wait as well. Omits crawls at an address for which other tasks wait, because
/// these tasks would be admitted before the preempted task.
pub async fn under_way(conn: &mut PgConnection, least: Duration, limit: i64) -> Result<Vec<UnderWay>, Error> {
    let rows = sqlx::query!(
        r#"
        select l.task_id, l.token, l.site_id, t.batch_id, l.agent_id, c.crawl_ms, b.max_duration_ms, b.max_pages,
               now() - l.granted_at as "took!: Interval",
               case when p.token = 1 and l.token = 1 and p.pages > 0 then p.pages end as "own_pages: Unsigned<u32>",
               p.saved_at - l.granted_at as "saved: Interval", p.interval_ms as "interval_ms?",
               array(
                   select f.agent_id from leases f
                   where f.task_id = l.task_id and (f.crash is not null or f.state in ('expired', 'overdue'))
               ) as "crashed_at!: Vec<AgentId>"
        from batches b
        -- `offset 0` forces lookups by index for each batch. Joins would read the leased tasks and
        -- leases of all strategies.
        cross join lateral (
            select id, batch_id, token, assignment_id from tasks
            where tasks.batch_id = b.id and tasks.state = 'leased' offset 0
        ) t
        cross join lateral (
            select * from leases where leases.task_id = t.id and leases.token = t.token and leases.state = 'active' offset 0
        ) l
        join assignments c on c.id = t.assignment_id
        left join checkpoints p on p.task_id = t.id
        where b.strategy = $1 and l.granted_at <= now() - $2::interval
          and not exists (select from preemptions r where r.task_id = t.id offset 0)
          and not coalesce(p.paused_until > now() or p.turned_away > 0, false)
          and not exists (
              select from task_holds w where w.cause = 'address' and w.address = l.address and not w.admitted offset 0
          )
        -- The remaining time, as in `strategy::crawl_duration::remaining`.
        order by greatest(
            coalesce(c.crawl_ms, 0) / 1000.0 - extract(epoch from now() - l.granted_at),
            0.3 * extract(epoch from now() - l.granted_at)
        ) desc, l.task_id
        limit $3
        "#,
        Strategy::EarliestFinish.to_string(),
        Interval(least),
        limit,
    )
    .all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| UnderWay {
            task: row.task_id,
            token: row.token,
            site: row.site_id,
            batch: row.batch_id,
            agent: row.agent_id,
            took: row.took.0,
            takes: row.crawl_ms.map(Duration::from),
            at_most: row.max_duration_ms.0,
            most_pages: row.max_pages.0,
            fetched: row.own_pages.map(u32::from).zip(row.saved.map(Duration::from)),
            interval: row.interval_ms.map(Duration::from),
            crashed_at: row.crashed_at,
        })
        .collect())
}

/// For each agent, the number of slots that are reserved for crawls which were preempted less than
/// `within` ago and have not been returned yet.
pub async fn reserved_slots(conn: &mut PgConnection, within: Duration) -> Result<HashMap<AgentId, u32>, Error> {
    let rows = sqlx::query!(
        r#"
        select r.to_agent_id, count(*) as "count!: Unsigned<u32>"
        from preemptions r join leases l on l.task_id = r.task_id and l.token = r.token
        where r.asked_at > now() - $1::interval and l.state = 'active'
        group by r.to_agent_id
        "#,
        Interval(within),
    )
    .all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.to_agent_id, row.count.0)).collect())
}

/// Preempts a lease. Returns `false` if the lease has ended, its task is locked by another
/// transaction, or the task has already been preempted once.
pub async fn ask(
    conn: &mut PgConnection,
    crawl: &UnderWay,
    to: AgentId,
    here: Duration,
    there: Duration,
) -> Result<bool, Error> {
    let asked = sqlx::query!(
        r#"
        insert into preemptions (task_id, token, agent_id, to_agent_id, here_ms, there_ms)
        select t.id, t.token, l.agent_id, $3, $4, $5
        from tasks t join leases l on l.task_id = t.id and l.token = t.token and l.state = 'active'
        where t.id = $1 and t.token = $2 and t.state = 'leased'
        for no key update of t skip locked
        on conflict (task_id) do nothing
        "#,
        crawl.task.get(),
        crawl.token.get(),
        to.get(),
        Millis(here) as _,
        Millis(there) as _,
    )
    .affected(conn)
    .await?;
    Ok(asked == 1)
}

/// A preemption as sent to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreemptionOrder {
    pub task: TaskId,
    pub token: LeaseToken,
    /// Name of the agent that would finish the crawl sooner.
    pub to: String,
    /// Predicted time until the crawl ends if the present agent continues it.
    pub here: Duration,
    /// Predicted time until the crawl ends if the agent `to` continues it.
    pub there: Duration,
}

/// Returns the preemptions that have not been sent yet on this session, and marks them as sent. The
/// caller must commit before it sends the preemptions.
pub async fn take_unsent(
    conn: &mut PgConnection,
    agent: AgentId,
    session: SessionId,
) -> Result<Vec<PreemptionOrder>, Error> {
    let orders = sqlx::query_as!(
        PreemptionOrder,
        r#"
        with asked as (
            update preemptions set sent_at = now() where agent_id = $1 and sent_at is null
            returning task_id, token, to_agent_id, here_ms, there_ms
        )
        select asked.task_id as "task: TaskId", asked.token as "token: LeaseToken", a.name as to, asked.here_ms as "here: Millis", asked.there_ms as "there: Millis"
        from asked
        join leases l on l.task_id = asked.task_id and l.token = asked.token
        join agents a on a.id = asked.to_agent_id
        where l.session_id = $2 and l.state = 'active'
        order by asked.task_id
        "#,
        agent.get(),
        session.get(),
    );
    orders.all(conn).await
}

/// Marks the preemptions of the session's leases as unsent, so that a new session sends them again.
pub async fn tell_again(conn: &mut PgConnection, agent: AgentId, session: SessionId) -> Result<(), Error> {
    sqlx::query!(
        r#"
        update preemptions r set sent_at = null
        from leases l
        where l.session_id = $2 and l.state = 'active' and r.task_id = l.task_id and r.token = l.token and r.agent_id = $1
        "#,
        agent.get(),
        session.get(),
    )
    .run(conn)
    .await
}

/// Releases a preempted lease; an agent is then chosen again for its task. Returns `false` if the
/// lease was not preempted, is not active or belongs to another agent.
pub async fn release(tx: &mut Tx<'_>, agent: AgentId, task: TaskId, token: LeaseToken) -> Result<bool, Error> {
    let preempted = of_last_leases(tx, &[task]).await?.remove(&task);
    if preempted.is_none_or(|preempted| preempted.token != token) {
        return Ok(false);
    }
    Ok(!leases::end(tx, &[(task, token)], Some(agent), Ending::Anew).await?.is_empty())
}

/// The preemption of a task's last lease, with the agent that had the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreemptedLease {
    pub token: LeaseToken,
    pub from: AgentId,
    pub name: String,
    /// Time until the crawl would have ended at the agent `from`, as predicted at the preemption.
    pub here: Duration,
}

/// The preemptions of these tasks' last leases. A task whose last lease was not preempted is
/// absent.
pub async fn of_last_leases(
    conn: &mut PgConnection,
    tasks: &[TaskId],
) -> Result<HashMap<TaskId, PreemptedLease>, Error> {
    let rows = sqlx::query!(
        r#"
        select r.task_id, r.token, r.agent_id, a.name, r.here_ms
        from preemptions r join tasks t on t.id = r.task_id and t.token = r.token join agents a on a.id = r.agent_id
        where r.task_id = any($1)
        "#,
        tasks as _,
    )
    .all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let (token, from, here) = (row.token, row.agent_id, row.here_ms.0);
            (row.task_id, PreemptedLease { token, from, name: row.name, here })
        })
        .collect())
}
