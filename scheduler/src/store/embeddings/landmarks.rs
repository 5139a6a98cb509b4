//! Landmarks: the agents that measure sites and that other agents measure. This file also lists the
//! connected agents, because in a small fleet all of them measure sites.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, SessionId};

use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::types::Interval;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landmark {
    pub agent: AgentId,
    pub name: String,
    pub city: String,
    pub carrier: String,
    pub connected: bool,
    /// Why the landmark was chosen; for a quarantined landmark, why it is quarantined.
    pub reason: String,
    pub by: ChosenBy,
    /// Time since the landmark disconnected; `None` while it is connected.
    pub away_for: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChosenBy {
    /// The operator chose the landmark; only the operator can replace it.
    Hand,
    /// An election chose the landmark; another agent may be elected in its place.
    Election,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectedAgent {
    pub agent: AgentId,
    pub session: SessionId,
    pub has_beacon: bool,
}

/// Replaces all landmarks, in the given order.
pub async fn replace(conn: &mut PgConnection, chosen: &[(AgentId, String)], by: ChosenBy) -> Result<(), Error> {
    let agents: Vec<i64> = chosen.iter().map(|(agent, _)| agent.get()).collect();
    let reasons: Vec<String> = chosen.iter().map(|(_, reason)| reason.clone()).collect();
    sqlx::query!("delete from landmarks").run(conn).await?;
    sqlx::query!(
        r#"
        insert into landmarks (agent_id, position, reason, elected)
        select agent_id, (position - 1)::integer, reason, $3
        from unnest($1::bigint[], $2::text[]) with ordinality as chosen (agent_id, reason, position)
        "#,
        &agents,
        &reasons,
        by == ChosenBy::Election,
    )
    .run(conn)
    .await
}

/// The landmarks, in the order in which they were chosen.
pub async fn list(conn: &mut PgConnection) -> Result<Vec<Landmark>, Error> {
    let rows = sqlx::query!(
        r#"
        select a.id, a.name, a.city, a.carrier,
               coalesce('quarantined: ' || q.reason, l.reason) as "reason!", l.elected,
               exists (select from sessions s where s.agent_id = a.id and s.state = 'active') as "connected!",
               now() - coalesce((select max(s.renewed_at) from sessions s where s.agent_id = a.id), a.enrolled_at)
                   as "silent!: Interval"
        from landmarks l join agents a on a.id = l.agent_id
        left join quarantines q on q.agent_id = a.id and q.released_at is null
        order by l.position
        "#,
    )
    .all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Landmark {
            agent: row.id,
            name: row.name,
            city: row.city,
            carrier: row.carrier,
            connected: row.connected,
            reason: row.reason,
            by: if row.elected { ChosenBy::Election } else { ChosenBy::Hand },
            away_for: (!row.connected).then_some(row.silent.0),
        })
        .collect())
}

/// The agents with an active session, ordered by identifier.
pub async fn connected(conn: &mut PgConnection) -> Result<Vec<ConnectedAgent>, Error> {
    sqlx::query_as!(
        ConnectedAgent,
        r#"
        select agents.id as agent, sessions.id as session, beacon_url is not null as "has_beacon!"
        from agents join sessions on sessions.agent_id = agents.id and sessions.state = 'active'
        order by agents.id
        "#,
    )
    .all(conn)
    .await
}
