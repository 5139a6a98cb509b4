//! Records choices of agents with their candidates and causes, and withdraws tasks from agents that
//! have not begun them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use crate::model::{AgentId, BatchId, ChoiceReasons, Rtt, Strategy, TaskId};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::{Interval, whole};
use crate::store::{Error, Locked, Tx};
use crate::strategy::{Candidate, Choice};

#[derive(Debug, Clone)]
pub struct Assignment {
    pub agent: AgentId,
    pub strategy: Strategy,
    pub seed: u64,
    /// The candidates, best first.
    pub candidates: Vec<Candidate>,
    pub why: ChoiceReasons,
    /// The predicted duration of the crawl.
    pub takes: Option<Duration>,
    /// Number of agents that could get work and were not excluded.
    pub available: usize,
    /// Row number of the [stored](crate::store::batches::constraints_and_quotas::remember) set of
    /// excluded agents; `None` if no agent was excluded.
    pub exclusions: Option<i64>,
}

impl Assignment {
    pub fn new(seed: u64, choice: Choice, why: ChoiceReasons) -> Self {
        let Choice { agent, candidates, strategy, fallback } = choice;
        let why = ChoiceReasons { fallback, ..why };
        Self { agent, strategy, seed, candidates, why, takes: None, available: 0, exclusions: None }
    }
}

/// A row of `assignments`; each field is a column.
#[derive(Serialize)]
struct AssignmentRow<'a> {
    task_id: i64,
    agent_id: i64,
    strategy: Strategy,
    seed: i64,
    candidates: Vec<i64>,
    predicted_us: Vec<Option<i64>>,
    measured_us: Vec<Option<i64>>,
    /// The candidates' load levels; `None` for a candidate that could not get work.
    levels: Vec<Option<i64>>,
    cause: &'a str,
    fallback: Option<&'a str>,
    detail: Option<&'a ChoiceReasons>,
    available: i32,
    exclusions_id: Option<i64>,
    crawl_ms: Option<i64>,
}

impl<'a> AssignmentRow<'a> {
    fn of((task, made): &'a (Locked<TaskId>, Assignment)) -> Self {
        let of = |known: fn(&Candidate) -> Option<Rtt>| {
            made.candidates.iter().map(|one| known(one).map(Rtt::as_micros)).collect()
        };
        let level = |one: &Candidate| (one.capacity > 0).then(|| one.level().get());
        Self {
            task_id: task.get(),
            agent_id: made.agent.get(),
            strategy: made.strategy,
            seed: made.seed.cast_signed(),
            candidates: made.candidates.iter().map(|one| one.agent.get()).collect(),
            predicted_us: of(|one| one.predicted),
            measured_us: of(|one| one.measured),
            levels: made.candidates.iter().map(level).collect(),
            cause: made.why.cause.name(),
            fallback: made.why.fallback.as_ref().map(|fallback| fallback.cause.name()),
            detail: Some(&made.why).filter(|why| **why != ChoiceReasons::default()),
            available: whole(made.available),
            exclusions_id: made.exclusions,
            crawl_ms: made.takes.map(|takes| whole(takes.as_millis())),
        }
    }
}

/// Stores assignments of tasks, and moves these tasks to `assigned`. Leaves tasks as they are if another
/// transaction has locked their agent. Returns these agents.
pub async fn insert(tx: &mut Tx<'_>, made: &[(Locked<TaskId>, Assignment)]) -> Result<BTreeSet<AgentId>, Error> {
    let mut busy: BTreeSet<AgentId> = made.iter().map(|(_, made)| made.agent).collect();
    if made.is_empty() {
        return Ok(busy);
    }
    let agents: Vec<AgentId> = busy.iter().copied().collect();
    let free = sqlx::query_scalar!(
        r#"select id as "id: AgentId" from agents where id = any($1) order by id for key share skip locked"#,
        &agents as _,
    );
    for agent in free.all(tx).await? {
        busy.remove(&agent);
    }
    let stored = made.iter().filter(|(_, made)| !busy.contains(&made.agent));
    let rows: Vec<AssignmentRow<'_>> = stored.map(AssignmentRow::of).collect();
    let rows = serde_json::to_string(&rows).map_err(|error| Error::inconsistent("assignments", "detail", &error))?;
    sqlx::query!(
        r#"
        with made as (
            insert into assignments (task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us, levels,
                                     cause, fallback, detail, available, exclusions_id, crawl_ms)
            select task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us, levels,
                   cause, fallback, detail, available, exclusions_id, crawl_ms
            from jsonb_to_recordset($1::text::jsonb) as made (
                task_id bigint, agent_id bigint, strategy text, seed bigint, candidates bigint[], predicted_us bigint[],
                measured_us bigint[], levels bigint[], cause assignment_cause, fallback fallback_cause, detail jsonb,
                available integer, exclusions_id bigint, crawl_ms bigint
            )
            returning id, task_id
        )
        update tasks t
        set state = 'assigned', assignment_id = made.id, reason = null,
            state_since = case when t.state = 'assigned' then t.state_since else now() end
        from made where t.id = made.task_id
        "#,
        rows,
    )
    .run(tx)
    .await?;
    Ok(busy)
}

/// Which tasks are withdrawn.
#[derive(Debug, Clone, Copy)]
pub enum UnassignScope<'a> {
    /// All tasks of one agent. Because the agent is locked, no lease is being granted to it.
    Agent(Locked<AgentId>),
    /// Tasks of agents that have no active session, or are draining or paused. If other agents are
    /// connected, also tasks of agents that have been disconnected for longer than this duration.
    Unavailable(Duration),
    /// For each pair of a batch and an agent, the batch's tasks that are assigned to the agent. The
    /// batch now excludes the agent.
    Excluded(&'a [(BatchId, AgentId)]),
}

/// Withdraws at most `limit` tasks, for which an agent is then chosen again. Skips tasks locked by
/// another transaction, which the assignment job withdraws later. Returns the number of withdrawn
/// tasks.
pub async fn unassign(tx: &mut Tx<'_>, from: UnassignScope<'_>, limit: i64) -> Result<u64, Error> {
    let locked = match from {
        UnassignScope::Agent(agent) => of_agent(tx, *agent, limit).await?,
        UnassignScope::Unavailable(patience) => of_unavailable(tx, patience, limit).await?,
        UnassignScope::Excluded(pairs) => of_excluded(tx, pairs, limit).await?,
    };
    if locked.is_empty() {
        return Ok(0);
    }
    sqlx::query!(
        "update tasks set state = 'located', reason = null, state_since = now() where id = any($1)",
        &locked as _,
    )
    .affected(tx)
    .await
}

async fn of_agent(tx: &mut Tx<'_>, agent: AgentId, limit: i64) -> Result<Vec<TaskId>, Error> {
    let locked = sqlx::query_scalar!(
        "select id from tasks where state = 'assigned' and agent_id = $1 order by token = 0, id limit $2 for update skip locked",
        agent.get(),
        limit,
    );
    locked.all(tx).await
}

async fn of_unavailable(tx: &mut Tx<'_>, patience: Duration, limit: i64) -> Result<Vec<TaskId>, Error> {
    let locked = sqlx::query_scalar!(
        r#"
        with there as (
            select s.agent_id, s.disconnected_at from sessions s where s.state = 'active' and s.paused is null
        ), unavailable as (
            select a.id from agents a
            where a.draining_since is not null
               or not exists (select from there where there.agent_id = a.id)
               -- Leased tasks stay until the session expires. Assigned tasks stay if all agents are
               -- disconnected: probably the network failed, and no other agent can get the tasks.
               or exists (select from there where there.agent_id = a.id and disconnected_at <= now() - $2::interval)
                  and exists (select from there where disconnected_at is null)
        )
        -- Looks up each unavailable agent's tasks by index, and reads no task of other agents.
        select t.id as "id!: TaskId"
        from unavailable cross join lateral (
            select id from tasks
            where tasks.agent_id = unavailable.id and tasks.state = 'assigned'
            -- The order of the index. Without it, the planner reads the whole table for its limit.
            order by token = 0, id
            limit $1
            for update skip locked
        ) t
        limit $1
        "#,
        limit,
        Interval(patience),
    );
    locked.all(tx).await
}

async fn of_excluded(tx: &mut Tx<'_>, from: &[(BatchId, AgentId)], limit: i64) -> Result<Vec<TaskId>, Error> {
    let (batches, agents): (Vec<i64>, Vec<i64>) = from.iter().map(|(batch, agent)| (batch.get(), agent.get())).unzip();
    // For the limit, the planner would read the whole table instead of the index.
    sqlx::query!("select set_config('enable_seqscan', 'off', true) as scan").one(tx).await?;
    let locked = sqlx::query_scalar!(
        r#"
        select t.id as "id!: TaskId" from unnest($1::bigint[], $2::bigint[]) as not_for (batch_id, agent_id)
        cross join lateral (
            select id from tasks
            where tasks.batch_id = not_for.batch_id and tasks.agent_id = not_for.agent_id and tasks.state = 'assigned'
            limit $3
            for update skip locked
        ) t
        limit $3
        "#,
        &batches,
        &agents,
        limit,
    );
    locked.all(tx).await
}

#[cfg(test)]
mod tests {
    use sqlx::{PgConnection, PgPool};

    use super::*;
    use crate::model::{ChoiceCause, Fallback, FallbackCause, FormerAgent, Parting};
    use crate::store::agents::sessions;
    use crate::store::assignments::agents_and_loads;
    use crate::store::fixtures::{self, Conn};
    use crate::store::leases;

    async fn withdrawn(conn: &mut PgConnection, limit: i64) -> u64 {
        let scope = UnassignScope::Unavailable(Duration::from_secs(5));
        fixtures::tx(conn, async |tx| unassign(tx, scope, limit).await.expect("withdraw")).await
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_names_its_agent_while_it_is_assigned_or_leased(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let agents = [fixtures::agent(&mut conn, "a").await, fixtures::agent(&mut conn, "b").await];
        let session = fixtures::session(&mut conn, agents[0]).await;
        fixtures::session(&mut conn, agents[1]).await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::task(&mut conn, batch, site, "located").await;
        let named = async |conn: &mut PgConnection| {
            sqlx::query_scalar::<_, Option<i64>>("select agent_id from tasks where id = $1")
                .bind(task.get())
                .fetch_one(conn)
                .await
                .expect("read the task")
                .map(AgentId::new)
        };
        let load = async |conn: &mut PgConnection| {
            agents_and_loads::available(conn).await.expect("read").iter().map(|agent| agent.load).collect::<Vec<_>>()
        };
        assert_eq!((named(&mut conn).await, load(&mut conn).await), (None, vec![0, 0]));
        for (agent, loads) in [(agents[1], vec![0, 1]), (agents[0], vec![1, 0])] {
            let choice = Choice { agent, candidates: Vec::new(), strategy: Strategy::Random, fallback: None };
            let locked = fixtures::lock(&mut conn, &[task]).await[0];
            let made = Assignment::new(1, choice, ChoiceReasons::default());
            insert(&mut conn, &[(locked, made)]).await.expect("assign");
            assert_eq!((named(&mut conn).await, load(&mut conn).await), (Some(agent), loads));
        }
        assert_eq!(leases::grant(&mut conn, agents[0], session).await.expect("grant").len(), 1);
        assert_eq!((named(&mut conn).await, load(&mut conn).await), (Some(agents[0]), vec![1, 0]));
        for state in ["done", "assigned", "located"] {
            sqlx::query("update tasks set state = $1::task_state").bind(state).execute(&mut *conn).await.expect("move");
            assert_eq!(named(&mut conn).await, (state == "assigned").then_some(agents[0]), "{state}");
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_waits_at_a_lost_agent_is_withdrawn_in_batches_past_what_somebody_is_at(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let (lost, there) = (fixtures::agent(&mut conn, "a").await, fixtures::agent(&mut conn, "b").await);
        fixtures::session(&mut conn, there).await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let mut tasks = Vec::new();
        for (host, agent) in [("a.cn", lost), ("b.cn", lost), ("c.cn", lost), ("d.cn", there)] {
            let site = fixtures::site(&mut conn, host).await;
            tasks.push(fixtures::assigned(&mut conn, batch, site, agent).await);
        }
        let mut held = fixtures::begin(&pool).await;
        sqlx::query("select from tasks where id = $1 for update")
            .bind(tasks[1].get())
            .execute(&mut *held)
            .await
            .expect("lock");
        for count in [1, 1, 0] {
            assert_eq!(withdrawn(&mut conn, 1).await, count);
        }
        held.rollback().await.expect("roll back");
        assert_eq!(withdrawn(&mut conn, 10).await, 1);
        for (task, state) in tasks.into_iter().zip(["located", "located", "located", "assigned"]) {
            assert_eq!(fixtures::state(&mut conn, task).await, state);
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn choices_are_recorded_at_once_with_all_that_there_is_to_say_of_each(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let agent = fixtures::agent(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "gnp-top3").await;
        let mut made = Vec::new();
        let said = ChoiceReasons { cause: ChoiceCause::NextCandidate, ..ChoiceReasons::default() };
        let parted = Some(FormerAgent { agent: "it's \"b\"".to_owned(), how: Parting::Lost });
        let fallback = Some(Fallback { cause: FallbackCause::Unmeasured, said: "connect: refused".to_owned() });
        for (host, parted, fallback, why) in
            [("a.cn", None, None, ChoiceReasons::default()), ("b.cn", parted, fallback, said)]
        {
            let site = fixtures::site(&mut conn, host).await;
            let task = fixtures::task(&mut conn, batch, site, "located").await;
            let near = Candidate { measured: Rtt::try_from_micros(7).ok(), ..Candidate::new(agent, 2) };
            let choice = Choice { agent, candidates: vec![near], strategy: Strategy::GNP_TOP3, fallback };
            let takes = Some(Duration::from_millis(9));
            let locked = fixtures::lock(&mut conn, &[task]).await[0];
            let assignment = Assignment::new(u64::MAX, choice, ChoiceReasons { parted, ..why });
            made.push((locked, Assignment { takes, ..assignment }));
        }
        insert(&mut conn, &made).await.expect("assign");
        type Row = (String, Option<String>, Option<String>, i64, Vec<i64>, i64);
        let rows: Vec<Row> = fixtures::rows(&mut conn, "select cause::text, fallback::text, detail::text, seed, measured_us, crawl_ms from assignments order by id").await;
        assert_eq!(rows[0], ("strategy".to_owned(), None, None, -1, vec![7], 9));
        assert_eq!((rows[1].0.as_str(), rows[1].1.as_deref()), ("next-candidate", Some("unmeasured")));
        let why: ChoiceReasons = serde_json::from_str(rows[1].2.as_deref().expect("a detail")).expect("a cause");
        assert_eq!(why, made[1].1.why);
        for (task, _) in &made {
            assert_eq!(fixtures::state(&mut conn, **task).await, "assigned");
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_waits_at_an_agent_that_disconnected_waits_a_moment_and_while_nobody_else_is_there(mut conn: Conn) {
        let (gone, other) = (fixtures::agent(&mut conn, "a").await, fixtures::agent(&mut conn, "b").await);
        let sessions = [fixtures::session(&mut conn, gone).await, fixtures::session(&mut conn, other).await];
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, gone).await;
        let ago = async |conn: &mut PgConnection, seconds: f64| {
            let earlier = "update sessions set disconnected_at = now() - make_interval(secs => $1) where disconnected_at is not null";
            sqlx::query(earlier).bind(seconds).execute(conn).await.expect("let time pass");
        };
        for session in sessions {
            sessions::disconnect(&mut conn, session).await.expect("disconnect");
        }
        ago(&mut conn, 60.0).await;
        assert_eq!(withdrawn(&mut conn, 10).await, 0, "all have disconnected");
        fixtures::session(&mut conn, other).await;
        ago(&mut conn, 4.0).await;
        assert_eq!(withdrawn(&mut conn, 10).await, 0, "it may be back in a moment");
        ago(&mut conn, 6.0).await;
        assert_eq!(withdrawn(&mut conn, 10).await, 1);
        assert_eq!(fixtures::state(&mut conn, task).await, "located");
    }
}
