//! Assignments: the choice of an agent for a task. A new choice is a new row.
//!
//! A task moves `located -> assigned` here and nowhere else, and back when its agent is gone.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{BatchId, SiteId, Strategy, TaskId};
use crate::strategy::{Candidate, Choice, Former};

use super::Error;
pub use unassign::{From, unassign};
use waiting::Row;

mod unassign;
mod waiting;

/// A task that needs an agent.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The task.
    pub task: TaskId,
    /// Its site.
    pub site: SiteId,
    /// Its batch.
    pub batch: BatchId,
    /// Its batch's strategy.
    pub strategy: Strategy,
    /// Why distances could not be had, when they could not.
    pub reason: Option<String>,
    /// How many assignments it had before.
    pub choices: i64,
    /// The last of them.
    pub former: Option<Former>,
    /// What became of it, for people.
    pub parted: Option<String>,
    /// How long it has been in its state.
    pub waited: Duration,
}

/// Which strategies' tasks are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool<'a> {
    /// Those that choose for each task by itself.
    EachByItself,
    /// The one that plans all tasks together, `earliest-finish`.
    Together {
        /// Batches whose tasks are left out.
        without: &'a [BatchId],
    },
}

/// Located tasks that are not held, those first whose lease was lost, then the oldest, locked for the transaction; another scheduler's are
/// skipped.
///
/// # Errors
/// When the database fails or a stored strategy is unknown.
pub async fn waiting(conn: &mut PgConnection, pool: Pool<'_>, limit: i64) -> Result<Vec<Waiting>, Error> {
    let next = match pool {
        Pool::EachByItself => next_alone(conn, limit).await?,
        Pool::Together { without } => next_planned(conn, without, limit).await?,
    };
    if next.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query_as!(
        Row,
        r#"
        select t.id, t.site_id, t.batch_id, t.reason, b.strategy,
               extract(epoch from now() - t.state_since)::float8 as "waited_s!",
               (select count(*) from assignments a where a.task_id = t.id) as "choices!",
               c.agent_id as "agent_id?", a.name as "agent?", c.strategy as "chosen_by?", c.fallback_reason,
               c.candidates as "candidates?", c.predicted_us as "predicted_us?: Vec<Option<i64>>",
               c.measured_us as "measured_us?: Vec<Option<i64>>",
               had.state as "lease?", had.crashed as "crashed?", had.end_cause as "end_cause?",
               a.removed_at is not null as "removed?", a.draining_since is not null as "drains?", there.paused as "paused?", there.hung_up as "hung_up?"
        from tasks t
        join batches b on b.id = t.batch_id
        -- Whose turn at its address had not come is chosen for anew: its agent was not to blame.
        left join assignments c on c.id = t.assignment_id
            and not exists (select from task_holds h where h.task_id = t.id)
        left join agents a on a.id = c.agent_id
        -- `offset 0`: looked up for each task, by index.
        left join lateral (
            select l.state::text as state, l.crash is not null as crashed, s.end_cause
            from leases l join sessions s on s.id = l.session_id
            where l.task_id = t.id and l.token = t.token and l.agent_id = c.agent_id and l.granted_at >= c.created_at
            offset 0
        ) had on true
        left join lateral (
            select s.paused is not null as paused, s.hung_up_at is not null as hung_up
            from sessions s where s.agent_id = c.agent_id and s.state = 'active'
            offset 0
        ) there on true
        where t.id = any($1)
        order by t.token = 0, t.id
        "#,
        &next,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(Waiting::try_from).collect()
}

/// By index, however many wait.
async fn next_alone(conn: &mut PgConnection, limit: i64) -> Result<Vec<i64>, Error> {
    let next = sqlx::query_scalar!(
        r#"
        select id from tasks
        where state = 'located' and not held and choice = 'alone'
        order by token = 0, id
        limit $1
        for update skip locked
        "#,
        limit,
    );
    Ok(next.fetch_all(conn).await?)
}

/// From batch to batch by index: of one that is left out nothing is read, and of each other no more than the limit.
async fn next_planned(conn: &mut PgConnection, without: &[BatchId], limit: i64) -> Result<Vec<i64>, Error> {
    let without: Vec<i64> = without.iter().map(|batch| batch.get()).collect();
    let next = sqlx::query_scalar!(
        r#"
        with recursive planned (batch_id) as (
            select min(batch_id) from tasks where state = 'located' and not held and choice = 'planned'
            union all
            select (
                select min(t.batch_id) from tasks t
                where t.state = 'located' and not t.held and t.choice = 'planned' and t.batch_id > p.batch_id
            )
            from planned p where p.batch_id is not null
        ), next as materialized (
            select w.id from planned p
            cross join lateral (
                select t.id, t.token = 0 as fresh from tasks t
                where t.batch_id = p.batch_id and t.state = 'located' and not t.held and t.choice = 'planned'
                order by t.token = 0, t.id
                limit $2
            ) w
            where p.batch_id <> all($1)
            order by w.fresh, w.id
            limit $2
        )
        select t.id from tasks t
        where t.id in (select id from next) and t.state = 'located' and not t.held
        order by t.token = 0, t.id
        for update of t skip locked
        "#,
        &without,
        limit,
    );
    Ok(next.fetch_all(conn).await?)
}

/// What an agent was chosen from, beside the candidates.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ground<'a> {
    /// Agents that took work and were not excluded.
    pub available: usize,
    /// The agents that constraints excluded, as [stored](super::constraints::remember); none where nobody was.
    pub exclusions: Option<i64>,
    /// What became of the choice before, for the log.
    pub parted: Option<&'a str>,
}

/// Records a choice and moves its task to `assigned`.
///
/// # Errors
/// When the database fails.
pub async fn insert(
    conn: &mut PgConnection,
    task: TaskId,
    seed: u64,
    choice: &Choice,
    fallback_reason: Option<&str>,
    ground: Ground<'_>,
) -> Result<(), Error> {
    let candidates: Vec<i64> = choice.candidates.iter().map(|candidate| candidate.agent.get()).collect();
    let predicted: Vec<Option<i64>> =
        choice.candidates.iter().map(|candidate| candidate.predicted.map(crate::model::Rtt::as_micros)).collect();
    let measured: Vec<Option<i64>> =
        choice.candidates.iter().map(|candidate| candidate.measured.map(crate::model::Rtt::as_micros)).collect();
    sqlx::query!(
        r#"
        with made as (
            insert into assignments (task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us,
                                     fallback_reason, levels, available, exclusions_id)
            values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
            returning id
        )
        update tasks set state = 'assigned', reason = $12, assignment_id = made.id, state_since = now()
        from made where tasks.id = $1
        "#,
        task.get(),
        choice.agent.get(),
        choice.strategy.name(),
        seed.cast_signed(),
        &candidates,
        &predicted as &[Option<i64>],
        &measured as &[Option<i64>],
        fallback_reason,
        &levels(&choice.candidates) as &[Option<i64>],
        i32::try_from(ground.available).unwrap_or(i32::MAX),
        ground.exclusions,
        ground.parted,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes how long the crawl of a task's newest assignment was predicted to take.
///
/// # Errors
/// When the database fails.
pub async fn expect(conn: &mut PgConnection, task: TaskId, takes: Duration) -> Result<(), Error> {
    let millis = i64::try_from(takes.as_millis()).unwrap_or(i64::MAX);
    sqlx::query!(
        "update assignments set crawl_ms = $2 where id = (select assignment_id from tasks where id = $1)",
        task.get(),
        millis,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// How full candidates are; `None` of those that are away.
pub(super) fn levels(candidates: &[Candidate]) -> Vec<Option<i64>> {
    candidates.iter().map(|one| (one.capacity > 0).then(|| one.level().get())).collect()
}

/// Notes how the strategy was followed in a task's newest assignment.
///
/// # Errors
/// When the database fails.
pub async fn annotate(conn: &mut PgConnection, task: TaskId, note: &str) -> Result<(), Error> {
    sqlx::query!(
        "update assignments set note = $2 where id = (select assignment_id from tasks where id = $1)",
        task.get(),
        note,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Says of located tasks that are planned together why they wait, where nothing else is said of them but one of the `former` reasons.
///
/// # Errors
/// When the database fails.
pub async fn explain_planned(conn: &mut PgConnection, reason: &str, former: &[&str]) -> Result<(), Error> {
    let former: Vec<String> = former.iter().map(|reason| (*reason).to_owned()).collect();
    sqlx::query!(
        r#"
        with silent as (
            select t.id from tasks t join batches b on b.id = t.batch_id
            where b.strategy = $2 and t.state = 'located' and not t.held and (t.reason is null or t.reason = any($3))
            -- Whoever is at a task is about to say something else of it, and may wait for one of the others.
            for no key update of t skip locked
        )
        update tasks set reason = $1 from silent where tasks.id = silent.id
        "#,
        reason,
        Strategy::EarliestFinish.name(),
        &former,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Says of located tasks why they wait, in place of one of the `former` reasons. Tasks that say why their site has no
/// distance keep their reason.
///
/// # Errors
/// When the database fails.
pub async fn explain_waiting(conn: &mut PgConnection, reason: &str, former: &[&str]) -> Result<(), Error> {
    let former: Vec<String> = former.iter().map(|reason| (*reason).to_owned()).collect();
    sqlx::query!(
        r#"
        with silent as (
            select id from tasks
            where state = 'located' and not held and (reason is null or reason = any($2)) and reason is distinct from $1
            -- As above.
            for no key update skip locked
        )
        update tasks set reason = $1 from silent where tasks.id = silent.id
        "#,
        reason,
        &former,
    )
    .execute(conn)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::model::AgentId;
    use crate::store::{fixtures, leases, loads, sessions};

    const PATIENCE: Duration = Duration::from_secs(5);

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_names_its_agent_while_it_is_assigned_or_leased(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
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
            loads::available(conn).await.expect("read").iter().map(|agent| agent.load).collect::<Vec<_>>()
        };
        assert_eq!((named(&mut conn).await, load(&mut conn).await), (None, vec![0, 0]));
        for (agent, loads) in [(agents[1], vec![0, 1]), (agents[0], vec![1, 0])] {
            let choice = Choice { agent, candidates: Vec::new(), strategy: Strategy::Random, fallback: None };
            insert(&mut conn, task, 1, &choice, None, Ground::default()).await.expect("assign");
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
        let mut held = pool.begin().await.expect("begin");
        sqlx::query("select from tasks where id = $1 for update")
            .bind(tasks[1].get())
            .execute(&mut *held)
            .await
            .expect("lock");
        for withdrawn in [1, 1, 0] {
            assert_eq!(unassign(&mut conn, From::Unavailable(PATIENCE), 1).await.expect("withdraw"), withdrawn);
        }
        held.rollback().await.expect("roll back");
        assert_eq!(unassign(&mut conn, From::Unavailable(PATIENCE), 10).await.expect("withdraw"), 1);
        for (task, state) in tasks.into_iter().zip(["located", "located", "located", "assigned"]) {
            assert_eq!(fixtures::state(&mut conn, task).await, state);
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn saying_why_tasks_wait_waits_for_nobody_who_is_at_one_of_them(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        sqlx::query("set lock_timeout = '2s'").execute(&mut *conn).await.expect("set");
        for (strategy, name) in [("random", "r"), ("earliest-finish", "e")] {
            let batch = fixtures::batch(&mut conn, name, strategy).await;
            let mut tasks = Vec::new();
            for host in ["a.cn", "b.cn"] {
                let site = fixtures::site(&mut conn, &format!("{name}{host}")).await;
                tasks.push(fixtures::task(&mut conn, batch, site, "located").await);
            }
            let mut held = pool.begin().await.expect("begin");
            sqlx::query("select from tasks where id = $1 for update")
                .bind(tasks[0].get())
                .execute(&mut *held)
                .await
                .expect("lock");
            match strategy {
                "random" => explain_waiting(&mut conn, "nobody", &[]).await.expect("explain"),
                _ => explain_planned(&mut conn, "planned", &[]).await.expect("explain"),
            }
            held.rollback().await.expect("roll back");
            let said: Vec<bool> =
                sqlx::query_scalar("select reason is not null from tasks where batch_id = $1 order by id")
                    .bind(batch.get())
                    .fetch_all(&mut *conn)
                    .await
                    .expect("read");
            assert_eq!(said, [false, true], "{strategy}");
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_waits_at_an_agent_that_hung_up_waits_a_moment_and_while_nobody_else_is_there(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let (gone, other) = (fixtures::agent(&mut conn, "a").await, fixtures::agent(&mut conn, "b").await);
        let sessions = [fixtures::session(&mut conn, gone).await, fixtures::session(&mut conn, other).await];
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, gone).await;
        let withdrawn =
            async |conn: &mut PgConnection| unassign(conn, From::Unavailable(PATIENCE), 10).await.expect("withdraw");
        let ago = async |conn: &mut PgConnection, seconds: f64| {
            let earlier =
                "update sessions set hung_up_at = now() - make_interval(secs => $1) where hung_up_at is not null";
            sqlx::query(earlier).bind(seconds).execute(conn).await.expect("let time pass");
        };
        for session in sessions {
            sessions::hang_up(&mut conn, session).await.expect("hang up");
        }
        ago(&mut conn, 60.0).await;
        assert_eq!(withdrawn(&mut conn).await, 0, "all have hung up");
        fixtures::session(&mut conn, other).await;
        ago(&mut conn, 4.0).await;
        assert_eq!(withdrawn(&mut conn).await, 0, "it may be back in a moment");
        ago(&mut conn, 6.0).await;
        assert_eq!(withdrawn(&mut conn).await, 1);
        assert_eq!(fixtures::state(&mut conn, task).await, "located");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_whose_lease_was_lost_is_chosen_for_before_those_that_never_had_one(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let mut tasks = Vec::new();
        for host in ["a.cn", "b.cn", "c.cn"] {
            let site = fixtures::site(&mut conn, host).await;
            tasks.push(fixtures::task(&mut conn, batch, site, "located").await);
        }
        sqlx::query("update tasks set token = 1 where id = $1")
            .bind(tasks[2].get())
            .execute(&mut *conn)
            .await
            .expect("a lease that was lost");
        let chosen = waiting(&mut conn, Pool::EachByItself, 2).await.expect("look");
        assert_eq!(chosen.iter().map(|task| task.task).collect::<Vec<_>>(), [tasks[2], tasks[0]]);
    }
}
