//! Finds the agents that can get new work, with their load and pace. A disconnected agent gets
//! none.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::AgentId;
use crate::model::geo::Direction;
use crate::store::assignments::loads::MOST_COUNTED;
use crate::store::rows::Rows;
use crate::store::types::Unsigned;
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
