//! Reads which agents reach which beacons, and which agents no other agent has reached.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, Rtt};

use crate::store::Error;
use crate::store::measurements::results_and_failures::{Cause, Failure};
use crate::store::rows_and_errors::Rows;
use crate::store::types::Interval;

/// Time after which a failed measurement of a beacon is repeated. If one of the two agents
/// reconnects, the measurement is repeated sooner.
pub const MESH_RETRY: Duration = Duration::from_secs(60);

/// A connected agent that no other agent has reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreachedAgent {
    pub name: String,
    /// `None` if the agent runs no beacon.
    pub beacon_url: Option<String>,
    /// The failure of the last attempt to measure the agent's beacon; `None` if no agent has tried.
    pub failure: Option<String>,
}

/// Whether one agent reaches another's beacon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReachDirection {
    pub prober: String,
    pub target: String,
    /// The beacon's URL; `None` if the target runs no beacon.
    pub beacon_url: Option<String>,
    pub reachability: Reachability,
    /// The newest round trip, and when it was measured.
    pub reached: Option<(Rtt, DateTime<Utc>)>,
    /// The newest failure, and its time.
    pub failed: Option<(Failure, DateTime<Utc>)>,
    /// When the beacon is measured next; `None` if no measurement is planned.
    pub next_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reachability {
    Failed,
    /// No measurement has been made yet, but one is planned.
    Untried,
    /// No measurement is planned, because every agent measures only the landmarks and a limited
    /// number of others.
    NotAsked,
    /// The target runs no beacon.
    NoBeacon,
    /// One of the two agents is not connected.
    Away,
    Reached,
}

impl Reachability {
    /// `reached` says whether the newest measurement succeeded; `None` if there is no measurement.
    const fn of(connected: bool, has_beacon: bool, reached: Option<bool>, peers: bool) -> Self {
        match (connected, reached) {
            _ if !has_beacon => Self::NoBeacon,
            (false, _) => Self::Away,
            (true, Some(true)) => Self::Reached,
            (true, Some(false)) => Self::Failed,
            (true, None) if peers => Self::Untried,
            (true, None) => Self::NotAsked,
        }
    }
}

/// Selects directions. A direction is a pair of a prober and a target.
#[derive(Debug, Clone, Copy)]
pub struct ReachFilter {
    /// Directions from and to this agent.
    pub agent: AgentId,
    /// The other agent. `None` selects all agents that are connected or were measured.
    pub other: Option<AgentId>,
    /// Age at which a round trip is measured again.
    pub max_age: Duration,
    /// Maximum number of other agents that each agent measures besides the landmarks.
    pub max_peers: u32,
}

/// The selected directions, in the order of [`Reachability`] (failures first), then sorted by the
/// agents' names.
pub async fn ways(conn: &mut PgConnection, asked: &ReachFilter) -> Result<Vec<ReachDirection>, Error> {
    let rows = sqlx::query!(
        r#"
        with connected as (
            select a.id, a.beacon_url is not null as has_beacon, s.opened_at,
                   exists (select from landmarks l where l.agent_id = a.id) as is_landmark
            from agents a join sessions s on s.agent_id = a.id and s.state = 'active'
        ), others as (
            select o.id from agents o
            where o.id <> $1
              and case when $2::bigint is not null then o.id = $2 else o.removed_at is null and (
                  o.id in (select c.id from connected c)
                  or exists (select from mesh_measurements m where m.prober_id = $1 and m.agent_id = o.id)
                  or exists (select from mesh_measurements m where m.prober_id = o.id and m.agent_id = $1)
              ) end
        ), pairs (prober_id, agent_id) as (
            select $1::bigint, id from others union all select id, $1::bigint from others
        )
        select p.name as "prober!", t.name as "target!", t.beacon_url as "beacon_url?",
               from_one.id is not null and to_one.id is not null as "connected!",
               -- Whether the prober measures the target, by the rule of `order_mesh`. True if only
               -- one agent is given.
               $2::bigint is null or coalesce(to_one.is_landmark, false) or $3 >= (
                   select count(*) from connected c
                   where c.id <> pairs.prober_id and c.has_beacon and not c.is_landmark
                     and (hashint8extended(c.id, pairs.prober_id), c.id)
                         <= (hashint8extended(pairs.agent_id, pairs.prober_id), pairs.agent_id)
               ) as "peers!",
               m.rtt_us is not null as "reached!", m.measured_at as "measured_at?",
               m.measured_at + case when m.rtt_us is not null then $4::interval
                   -- After a new session of either agent, an earlier failure is due at once.
                   when m.measured_at < greatest(from_one.opened_at, to_one.opened_at) then interval '0'
                   else $5::interval end as "next_at?",
               m.reached_us as "reached_us?", m.reached_at as "reached_at?",
               m.cause as "cause?", m.said as "said?", m.failed_at as "failed_at?"
        from pairs
        join agents p on p.id = pairs.prober_id
        join agents t on t.id = pairs.agent_id
        left join connected from_one on from_one.id = pairs.prober_id
        left join connected to_one on to_one.id = pairs.agent_id
        left join mesh_measurements m on m.prober_id = pairs.prober_id and m.agent_id = pairs.agent_id
        "#,
        asked.agent.get(),
        asked.other.map(AgentId::get),
        i64::from(asked.max_peers),
        Interval(asked.max_age),
        Interval(MESH_RETRY),
    )
    .all(conn)
    .await?;
    let mut ways = Vec::with_capacity(rows.len());
    for row in rows {
        let reached = row.measured_at.map(|_| row.reached);
        let reachability = Reachability::of(row.connected, row.beacon_url.is_some(), reached, row.peers);
        let reached = match (row.reached_us, row.reached_at) {
            (Some(rtt), Some(at)) => Some((rtt, at)),
            _ => None,
        };
        let failed = match (row.cause, row.failed_at) {
            (Some(cause), Some(at)) => Some((Failure { cause, said: row.said.unwrap_or_default() }, at)),
            _ => None,
        };
        let due = matches!(reachability, Reachability::Reached | Reachability::Failed);
        ways.push(ReachDirection {
            prober: row.prober,
            target: row.target,
            beacon_url: row.beacon_url,
            reachability,
            reached,
            failed,
            next_at: row.next_at.filter(|_| due),
        });
    }
    ways.sort_by(|a, b| (a.reachability, &a.prober, &a.target).cmp(&(b.reachability, &b.prober, &b.target)));
    Ok(ways)
}

/// The most frequent reason why connected agents do not reach each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReachFailure {
    /// Number of agents that failed to reach another agent for this reason.
    pub agents: u64,
    /// One of these agents.
    pub prober: String,
    /// The agent that `prober` did not reach.
    pub target: String,
    pub failure: Failure,
}

/// The most frequent reason why an agent did not reach another agent; `None` if all attempts
/// succeeded.
pub async fn trouble(conn: &mut PgConnection) -> Result<Option<ReachFailure>, Error> {
    let row = sqlx::query!(
        r#"
        with failing as (
            select m.prober_id, m.agent_id, m.cause, m.said
            from mesh_measurements m
            join sessions p on p.agent_id = m.prober_id and p.state = 'active'
            join sessions t on t.agent_id = m.agent_id and t.state = 'active'
            where m.rtt_us is null and m.cause is not null
        )
        select count(distinct prober_id) as "agents!", cause as "cause!: Cause",
               (array_agg(said order by prober_id, agent_id))[1] as "said!",
               (select name from agents where id = (array_agg(prober_id order by prober_id, agent_id))[1]) as "prober!",
               (select name from agents where id = (array_agg(agent_id order by prober_id, agent_id))[1]) as "target!"
        from failing
        group by cause
        order by 1 desc, cause::text
        limit 1
        "#,
    )
    .optional(conn)
    .await?;
    row.map(|row| {
        Ok(ReachFailure {
            agents: u64::try_from(row.agents).unwrap_or(0),
            prober: row.prober,
            target: row.target,
            failure: Failure { cause: row.cause, said: row.said },
        })
    })
    .transpose()
}

impl std::fmt::Display for ReachFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { agents, prober, target, failure } = self;
        let plural = if *agents == 1 { "" } else { "s" };
        write!(f, "{} at {agents} agent{plural}, for example from {prober} to {target}", failure.cause.happened())?;
        if !failure.said.is_empty() {
            write!(f, ": {}", failure.said)?;
        }
        write!(f, "; `landfall agents reach {prober} {target}` shows details")
    }
}

/// Connected agents that no other agent has measured, because they have no beacon or all attempts
/// failed. Sorted by name.
pub async fn unreached(conn: &mut PgConnection) -> Result<Vec<UnreachedAgent>, Error> {
    sqlx::query_as!(
        UnreachedAgent,
        r#"
        select a.name, a.beacon_url,
               (select tried.failure from mesh_measurements tried where tried.agent_id = a.id
                order by tried.measured_at desc limit 1) as failure
        from agents a join sessions s on s.agent_id = a.id and s.state = 'active'
        where not exists (
            select from mesh_measurements known where known.agent_id = a.id and known.rtt_us is not null
        )
        order by a.name
        "#,
    )
    .all(conn)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::agents::sessions::Registration;
    use crate::store::fixtures::{self, Conn};
    use crate::store::measurements::results_and_failures::MeasurementResult;
    use crate::store::measurements::{Measured, orders};

    async fn connected(conn: &mut PgConnection, name: &str, beacon: bool) -> AgentId {
        let agent = fixtures::agent(conn, name).await;
        let beacon_url = beacon.then(|| format!("http://{name}.example:7180/"));
        let registration = Registration { beacon_url, ..fixtures::registration() };
        fixtures::open_session(conn, agent, &registration).await.expect("open");
        agent
    }

    async fn measured(conn: &mut PgConnection, prober: AgentId, target: AgentId, result: MeasurementResult) {
        let order = sqlx::query_scalar::<_, i64>(
            "insert into measurement_orders (prober_id, agent_id, expires_at) values ($1, $2, now() + interval '1 hour') returning id",
        );
        let order = order.bind(prober.get()).bind(target.get()).fetch_one(&mut *conn).await.expect("order");
        fixtures::measure(conn, prober, crate::model::OrderId::new(order), &result.into()).await;
    }

    fn took() -> Measured {
        let rtt = Rtt::try_from_micros(12_345).expect("a round trip");
        let spread = Duration::from_micros(7);
        Measured { rtt, min: rtt, median: rtt, spread, answered: 5, lost: 0 }
    }

    fn refused() -> Failure {
        Failure { cause: Cause::Guard, said: "the guard refuses 198.18.0.5".into() }
    }

    fn asked(agent: AgentId, other: Option<AgentId>) -> ReachFilter {
        ReachFilter { agent, other, max_age: Duration::from_secs(3600), max_peers: 1 }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn each_direction_of_a_pair_tells_its_last_success_its_last_failure_and_its_next_try(mut conn: Conn) {
        let (a, b) = (connected(&mut conn, "a", true).await, connected(&mut conn, "b", true).await);
        measured(&mut conn, a, b, Ok(took())).await;
        measured(&mut conn, a, b, Err(refused())).await;
        measured(&mut conn, b, a, Err(refused())).await;
        measured(&mut conn, b, a, Ok(took())).await;
        let ways = ways(&mut conn, &asked(a, Some(b))).await.expect("read");
        let [there, back] = &ways[..] else { panic!("{ways:?}") };
        assert_eq!(
            (there.prober.as_str(), there.reachability),
            ("a", Reachability::Failed),
            "what is wrong comes first"
        );
        assert_eq!((back.prober.as_str(), back.reachability), ("b", Reachability::Reached));
        for way in [there, back] {
            assert_eq!(way.reached.map(|(rtt, _)| rtt), Some(took().rtt));
            assert_eq!(way.failed.as_ref().map(|(failure, _)| failure), Some(&refused()));
        }
        let (failed_at, next) = (there.failed.as_ref().expect("failed").1, there.next_at.expect("again"));
        assert_eq!((next - failed_at).to_std(), Ok(MESH_RETRY));
        fixtures::execute_for(
            &mut conn,
            "update sessions set opened_at = now() + interval '1 second' where agent_id = $1",
            b,
        )
        .await;
        let again = super::ways(&mut conn, &asked(a, Some(b))).await.expect("read").remove(0);
        assert_eq!(again.next_at, Some(failed_at), "at once");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn who_has_no_beacon_is_away_or_not_asked_is_told_apart(mut conn: Conn) {
        let (a, b) = (connected(&mut conn, "a", true).await, connected(&mut conn, "b", true).await);
        let (mute, away) = (connected(&mut conn, "mute", false).await, connected(&mut conn, "away", true).await);
        fixtures::execute_for(&mut conn, "update sessions set state = 'closed' where agent_id = $1", away).await;
        let mut reachability = async |other| {
            let ways = ways(&mut conn, &asked(a, Some(other))).await.expect("read");
            ways.into_iter().find(|way| way.prober == "a").expect("this direction").reachability
        };
        assert_eq!(reachability(b).await, Reachability::Untried);
        assert_eq!(reachability(mute).await, Reachability::NoBeacon);
        assert_eq!(reachability(away).await, Reachability::Away);
        let c = connected(&mut conn, "c", true).await;
        let mut reachabilities = Vec::new();
        for other in [b, c] {
            let ways = ways(&mut conn, &asked(a, Some(other))).await.expect("read");
            reachabilities.extend(ways.into_iter().filter(|way| way.prober == "a").map(|way| way.reachability));
        }
        reachabilities.sort();
        assert_eq!(reachabilities, [Reachability::Untried, Reachability::NotAsked], "one peer each");
        let plan = orders::MeshPlan {
            max_age: Duration::from_secs(3600),
            max_peers: 1,
            max_orders: 9,
            lifetime: Duration::from_secs(60),
        };
        orders::order_mesh(&mut conn, &plan).await.expect("order");
        let peer: i64 = sqlx::query_scalar("select agent_id from measurement_orders where prober_id = $1")
            .bind(a.get())
            .fetch_one(&mut *conn)
            .await
            .expect("one order");
        let ways = ways(&mut conn, &asked(a, Some(AgentId::new(peer)))).await.expect("read");
        assert!(
            ways.iter().any(|way| way.prober == "a" && way.reachability == Reachability::Untried),
            "whom it was told to measure"
        );
    }
}
