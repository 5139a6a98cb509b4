//! Loads: each agent's active crawls, waiting tasks and reported load. Also reads and locks the
//! tasks that may move from one agent to another.
//!
//! A task moves only if its assignment has not changed since the task was read. If concurrent
//! transactions move, grant, withdraw or cancel the same task, only the first transaction succeeds.
//! A move does not wait for the other transactions.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::geo::Direction;
use crate::model::{AgentId, AssignmentId, BatchId, Rtt, SessionId, SiteId, TaskId};
use crate::strategy::load::{CRAWLS_PACED, LONGEST_MS, PastCrawls};
use crate::strategy::{AgentLocation, RecordedCandidate, RecordedChoice};

use crate::store::rows::{Rows, Statement};
use crate::store::types::{Interval, Millis, Unsigned, whole};
use crate::store::{Error, position};

/// Maximum number of waiting tasks counted per agent. Agents with this number of waiting tasks or
/// more are treated as equally loaded.
const MOST_COUNTED: i64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedLoad {
    /// Number of slots in which a crawl could begin.
    pub free_slots: u32,
    pub crawls: u32,
    pub outcomes_waiting: u32,
}

/// Stores the load that a session's agent reports, if it reports one.
pub async fn record(conn: &mut PgConnection, session: SessionId, said: Option<ReportedLoad>) -> Result<(), Error> {
    let Some(said) = said else { return Ok(()) };
    sqlx::query!(
        r#"
        update sessions set free_slots = $2, crawls = $3, outcomes_waiting = $4
        where id = $1 and state = 'active' and (free_slots, crawls, outcomes_waiting) is distinct from ($2, $3, $4)
        "#,
        session.get(),
        whole::<i32, _>(said.free_slots),
        whole::<i32, _>(said.crawls),
        whole::<i32, _>(said.outcomes_waiting),
    )
    .run(conn)
    .await
}

#[derive(Debug, Clone, Copy)]
pub struct AvailableAgent {
    pub agent: AgentId,
    pub capacity: u32,
    /// Number of tasks assigned or leased to the agent, plus slots that it reports as unusable.
    pub load: u32,
    /// Number of tasks assigned to the agent but not leased, at most `MOST_COUNTED`.
    pub waiting: u32,
    /// The mean duration of the agent's newest crawls. If few crawls of the agent are known, the
    /// value is near the fleet's mean. If no crawl of the fleet is known, the value is one second.
    pub pace: Duration,
    /// When the agent's session was opened.
    pub since: DateTime<Utc>,
    pub home: AgentLocation,
}

/// An active crawl of an agent, or a task that waits for the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentCrawl {
    pub agent: AgentId,
    /// The predicted duration of the crawl; `None` without a prediction.
    pub takes: Option<Duration>,
    /// Time since the crawl began; `None` while the task waits.
    pub under_way: Option<Duration>,
}

/// The agents' active crawls, and at most `MOST_COUNTED` waiting tasks of each agent.
pub async fn held(conn: &mut PgConnection) -> Result<Vec<AgentCrawl>, Error> {
    let rows = sqlx::query!(
        r#"
        select l.agent_id as "agent_id!: AgentId", c.crawl_ms as "crawl_ms: Millis", now() - l.granted_at as "under_way: Interval"
        from leases l
        join tasks t on t.id = l.task_id
        left join assignments c on c.id = t.assignment_id
        where l.state = 'active'
        union all
        select a.id, waiting.crawl_ms, null
        from agents a
        cross join lateral (
            select c.crawl_ms from tasks t join assignments c on c.id = t.assignment_id
            where t.agent_id = a.id and t.state = 'assigned'
            limit $1
        ) waiting
        "#,
        MOST_COUNTED,
    )
    .all(conn)
    .await?;
    let held = rows.into_iter().map(|row| AgentCrawl {
        agent: row.agent_id,
        takes: row.crawl_ms.map(Duration::from),
        under_way: row.under_way.map(Duration::from),
    });
    Ok(held.collect())
}

/// The agents with an active session that are neither draining, paused nor disconnected. A
/// disconnected agent may reconnect, so it keeps its leases until its session expires, but gets no
/// new tasks.
pub async fn available(conn: &mut PgConnection) -> Result<Vec<AvailableAgent>, Error> {
    let rows = sqlx::query!(
        r#"
        select a.id, a.capacity, s.opened_at, a.country, a.latitude, a.longitude, s.address,
               (select count(*) from (
                    select from tasks t where t.agent_id = a.id and t.state = 'assigned' limit $1
                ) counted) as "waiting!: Unsigned<u32>",
               (select count(*) from leases l where l.agent_id = a.id and l.state = 'active') as "leased!: Unsigned<u32>",
               -- Slots that the agent cannot use, for example while outcomes are not acknowledged.
               greatest(a.capacity - coalesce(s.crawls + s.free_slots, a.capacity), 0) as "withheld!: Unsigned<u32>",
               paced.crawls as "crawls!", paced.took_ms as "took_ms!"
        from agents a
        join sessions s on s.agent_id = a.id and s.state = 'active' and s.paused is null and s.disconnected_at is null
        cross join lateral (
            select count(*) as crawls, coalesce(sum(greatest(least(newest.duration_ms, $3), 1)), 0)::bigint as took_ms
            from (
                select o.duration_ms from outcomes o where o.agent_id = a.id order by o.accepted_at desc limit $2
            ) newest
        ) paced
        where a.draining_since is null
        order by a.id
        "#,
        MOST_COUNTED,
        CRAWLS_PACED,
        LONGEST_MS,
    )
    .all(conn)
    .await?;
    let fleet: PastCrawls = rows.iter().map(|row| past(row.crawls, row.took_ms)).sum();
    rows.into_iter()
        .map(|row| {
            let waiting: u32 = row.waiting.0;
            let leased: u32 = row.leased.0;
            let withheld: u32 = row.withheld.0;
            Ok(AvailableAgent {
                agent: row.id,
                capacity: row.capacity.0,
                load: waiting.saturating_add(leased).saturating_add(withheld),
                waiting,
                pace: past(row.crawls, row.took_ms).pace(fleet),
                since: row.opened_at,
                home: AgentLocation {
                    country: country(&row.country),
                    direction: position("agents", row.latitude, row.longitude)?.map(Direction::from),
                    address: row.address,
                },
            })
        })
        .collect()
}

fn past(crawls: i64, took_ms: i64) -> PastCrawls {
    PastCrawls {
        count: u32::try_from(crawls).unwrap_or(0),
        took: Duration::from_millis(u64::try_from(took_ms).unwrap_or(0)),
    }
}

fn country(code: &str) -> Option<[u8; 2]> {
    code.to_ascii_uppercase().as_bytes().try_into().ok()
}

/// A task that is assigned but not begun.
#[derive(Debug, Clone)]
pub struct QueuedTask {
    pub task: TaskId,
    pub site: SiteId,
    pub batch: BatchId,
    pub assignment: AssignmentId,
    pub chosen_at: DateTime<Utc>,
    pub seed: u64,
    pub former: RecordedChoice,
}

/// The tasks that wait at these agents: at most `each` per agent, starting with the task that would
/// be granted last. Omits tasks whose site has an active lease, because they would have to wait at
/// any agent.
pub async fn waiting_at(conn: &mut PgConnection, agents: &[AgentId], each: i64) -> Result<Vec<QueuedTask>, Error> {
    let rows = sqlx::query!(
        r#"
        select t.id as task_id, t.site_id, t.batch_id, c.id, c.created_at, c.agent_id, c.strategy, c.seed, c.detail,
               c.candidates, c.predicted_us as "predicted_us!: Vec<Option<Rtt>>",
               c.measured_us as "measured_us!: Vec<Option<Rtt>>"
        from unnest($1::bigint[]) as queue (agent_id)
        cross join lateral (
            select t.id, t.site_id, t.batch_id, t.assignment_id from tasks t
            where t.agent_id = queue.agent_id and t.state = 'assigned'
              -- `offset 0` forces a lookup by index for each task, as in `leases::choose`.
              and not exists (select from leases l where l.site_id = t.site_id and l.state = 'active' offset 0)
            -- The reverse order of grants, which the index `tasks_in_turn` provides.
            order by t.token = 0 desc, t.id desc
            limit $2
        ) t
        join assignments c on c.id = t.assignment_id
        "#,
        agents as _,
        each,
    )
    .all(conn)
    .await?;
    let waiting = rows.into_iter().map(|row| QueuedTask {
        task: row.task_id,
        site: row.site_id,
        batch: row.batch_id,
        assignment: row.id,
        chosen_at: row.created_at,
        seed: row.seed.cast_unsigned(),
        former: RecordedChoice {
            agent: row.agent_id,
            strategy: row.strategy,
            fallback: row.detail.and_then(|why| why.fallback),
            listed: listed(&row.candidates, &row.predicted_us, &row.measured_us),
        },
    });
    Ok(waiting.collect())
}

/// Combines three parallel arrays of a stored assignment into its candidates.
pub(in crate::store) fn listed(
    candidates: &[AgentId],
    predicted: &[Option<Rtt>],
    measured: &[Option<Rtt>],
) -> Vec<RecordedCandidate> {
    let at = |round_trips: &[Option<Rtt>], place: usize| round_trips.get(place).copied().flatten();
    let one =
        |(place, &agent)| RecordedCandidate { agent, predicted: at(predicted, place), measured: at(measured, place) };
    candidates.iter().enumerate().map(one).collect()
}

/// Locks and returns the tasks that can move now. Omits tasks whose assignment has changed since
/// the task was read, and tasks that another transaction has locked.
pub async fn hold_on(conn: &mut PgConnection, waiting: &[&QueuedTask]) -> Result<BTreeSet<TaskId>, Error> {
    let (tasks, assignments): (Vec<i64>, Vec<i64>) =
        waiting.iter().map(|one| (one.task.get(), one.assignment.get())).unzip();
    let held = sqlx::query_scalar!(
        r#"
        select t.id
        from unnest($1::bigint[], $2::bigint[]) as looked_at (task_id, assignment_id)
        join tasks t on t.id = looked_at.task_id and t.assignment_id = looked_at.assignment_id
        where t.state = 'assigned'
        order by t.id
        for no key update of t skip locked
        "#,
        &tasks,
        &assignments,
    )
    .all(conn)
    .await?;
    Ok(held.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::service::ServiceState;
    use crate::model::{ChoiceCause, ChoiceReasons, Gain, Strategy};
    use crate::store::agents::{self, sessions};
    use crate::store::assignments::{self, Assignment};
    use crate::store::fixtures::{self, Conn};
    use crate::strategy::{Candidate, Choice};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_load_is_what_it_holds_what_waits_and_what_it_cannot_use(mut conn: Conn) {
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let level = async |conn: &mut PgConnection| {
            let seen = available(conn).await.expect("look")[0];
            let shown = agents::show(conn, "a").await.expect("look").expect("the agent").level().expect("it is there");
            assert_eq!(i64::from(seen.load) - i64::from(seen.capacity), shown.get());
            (shown.get(), seen.waiting)
        };
        assert_eq!(level(&mut conn).await, (-2, 0));
        fixtures::queue(&mut conn, batch, agent, &["a.cn", "b.cn", "c.cn"]).await;
        assert_eq!(level(&mut conn).await, (1, 3));
        assert_eq!(fixtures::grant(&mut conn, agent, session).await.len(), 2);
        assert_eq!(level(&mut conn).await, (1, 1));
        // The agent reports one crawl in its two slots, but no free slot.
        let said = ReportedLoad { free_slots: 0, crawls: 1, outcomes_waiting: 70 };
        record(&mut conn, session, Some(said)).await.expect("record");
        record(&mut conn, session, None).await.expect("an older agent says nothing");
        assert_eq!(level(&mut conn).await, (2, 1));
        let shown = agents::show(&mut conn, "a").await.expect("look").expect("the agent");
        assert_eq!(shown.said, Some(said));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_agent_that_disconnected_says_so_and_is_not_chosen_until_it_is_back(mut conn: Conn) {
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let shown = async |conn: &mut PgConnection| {
            let there = available(conn).await.expect("look").len();
            (there, agents::show(conn, "a").await.expect("look").expect("the agent").service())
        };
        assert_eq!(shown(&mut conn).await, (1, ServiceState::Ready));
        sessions::disconnect(&mut conn, session).await.expect("disconnect");
        assert_eq!(shown(&mut conn).await, (0, ServiceState::Away));
        fixtures::session(&mut conn, agent).await;
        assert_eq!(shown(&mut conn).await, (1, ServiceState::Ready));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_rebalanced_is_a_new_assignment_an_event_and_keeps_its_draw(mut conn: Conn) {
        let (from, to) = (fixtures::agent(&mut conn, "a").await, fixtures::agent(&mut conn, "b").await);
        let batch = fixtures::batch(&mut conn, "b", "gnp-top3").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, from).await;
        let waiting = waiting_at(&mut conn, &[from], 10).await.expect("look");
        assert_eq!((waiting.len(), waiting[0].former.agent, waiting[0].former.listed.len()), (1, from, 1));
        assert_eq!(hold_on(&mut conn, &[&waiting[0]]).await.expect("hold on"), BTreeSet::from([task]));
        let candidates = vec![Candidate::new(waiting[0].former.listed[0].agent, 1)];
        let choice = Choice { agent: to, candidates, strategy: Strategy::GNP_TOP3, fallback: None };
        let cause = ChoiceCause::Rebalanced { from: "a".to_owned(), gain: Gain::EndsSooner };
        let moved = Assignment::new(task, waiting[0].seed, choice, ChoiceReasons { cause, ..ChoiceReasons::default() });
        assignments::insert(&mut conn, &[moved]).await.expect("rebalance");
        let rows: Vec<(i64, i64, String, i64)> =
            fixtures::rows(&mut conn, "select agent_id, seed, cause::text, candidates[1] from assignments order by id")
                .await;
        let expected = [(from, "strategy"), (to, "rebalanced")];
        assert_eq!(rows, expected.map(|(agent, cause)| (agent.get(), 1, cause.to_owned(), from.get())));
        let told: Vec<(String, Option<i64>, Option<String>)> = sqlx::query_as(
            "select what, agent_id, cause from events where task_id = $1 and noun = 'task' order by id desc limit 1",
        )
        .bind(task.get())
        .fetch_all(&mut *conn)
        .await
        .expect("read");
        assert_eq!(told, [("assigned".to_owned(), Some(to.get()), Some("rebalanced".to_owned()))]);
        assert_eq!(fixtures::state(&mut conn, task).await, "assigned");
        let session = fixtures::session(&mut conn, to).await;
        assert_eq!(fixtures::grant(&mut conn, to, session).await.len(), 1);
    }
}
