//! Finds the agents that can get new work, with their load and pace. A disconnected agent gets none.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::AgentId;
use crate::model::geo::Direction;
use crate::store::rows_and_errors::Rows;
use crate::store::types::{Interval, Millis, Unsigned};
use crate::store::{Error, position};
use crate::strategy::AgentLocation;
use crate::strategy::load_and_pace::{CRAWLS_PACED, LONGEST_MS, PastCrawls};

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

/// The agents with an active session that are neither draining, paused nor disconnected. A
/// disconnected agent may reconnect, so it keeps its leases until its session expires, but gets no
/// new tasks.
pub async fn available(conn: &mut PgConnection) -> Result<Vec<AvailableAgent>, Error> {
    let rows = sqlx::query!(
        r#"
        select a.id, a.capacity, s.opened_at, a.country, a.latitude, a.longitude, s.address,
               (select count(*) from (
                    select from tasks t where t.agent_id = a.id and t.state = 'assigned'
                    order by t.token = 0, t.id limit $1 -- the order of the index
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

/// Maximum number of waiting tasks counted per agent. Agents with this number of waiting tasks or
/// more are treated as equally loaded.
const MOST_COUNTED: i64 = 1000;

/// The load that an agent reports in a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedLoad {
    /// Number of slots in which a crawl could begin.
    pub free_slots: u32,
    pub crawls: u32,
    pub outcomes_waiting: u32,
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
            order by t.token = 0, t.id
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ChoiceCause, ChoiceReasons, Gain, ServiceState, Strategy};
    use crate::store::Tx;
    use crate::store::agents::sessions::HeartbeatReport;
    use crate::store::agents::{self, sessions};
    use crate::store::assignments::waiting_tasks::{hold_on, waiting_at};
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
        // An agent of an older version reports no load.
        for load in [Some(said), None] {
            let report = HeartbeatReport { load, ..HeartbeatReport::default() };
            let renewed = sessions::renew(&mut conn, session, fixtures::LIFETIME, report).await.expect("renew");
            assert!(renewed.is_some());
        }
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
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (from, to) = (fixtures::agent(&mut conn, "a").await, fixtures::agent(&mut conn, "b").await);
        let batch = fixtures::batch(&mut conn, "b", "gnp-top3").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, from).await;
        let waiting = waiting_at(&mut conn, &[from], 10).await.expect("look");
        assert_eq!((waiting.len(), waiting[0].former.agent, waiting[0].former.listed.len()), (1, from, 1));
        let held = hold_on(&mut conn, &[&waiting[0]]).await.expect("hold on").pop_first().expect("it is free");
        let candidates = vec![Candidate::new(waiting[0].former.listed[0].agent, 1)];
        let choice = Choice { agent: to, candidates, strategy: Strategy::GNP_TOP3, fallback: None };
        let cause = ChoiceCause::Rebalanced { from: "a".to_owned(), gain: Gain::EndsSooner };
        let moved = Assignment::new(waiting[0].seed, choice, ChoiceReasons { cause, ..ChoiceReasons::default() });
        assignments::insert(&mut conn, &[(held, moved)]).await.expect("rebalance");
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
