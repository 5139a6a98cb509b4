//! Landmarks: the agents that others, and sites, are measured from; and who is connected to take their place in a
//! small fleet.

use sqlx::PgConnection;

use crate::model::AgentId;

use super::Error;

/// One chosen landmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landmark {
    /// The agent.
    pub agent: AgentId,
    /// Its name.
    pub name: String,
    /// Its city.
    pub city: String,
    /// Its carrier.
    pub carrier: String,
    /// Whether a session is active.
    pub connected: bool,
    /// Why it was chosen, for people.
    pub reason: String,
}

/// One agent with an active session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connected {
    /// The agent.
    pub agent: AgentId,
    /// Whether others can measure it.
    pub has_beacon: bool,
}

/// Replaces the whole set, in the order given.
///
/// # Errors
/// When the database fails, or an agent is unknown.
pub async fn replace(conn: &mut PgConnection, chosen: &[(AgentId, String)]) -> Result<(), Error> {
    let agents: Vec<i64> = chosen.iter().map(|(agent, _)| agent.get()).collect();
    let reasons: Vec<String> = chosen.iter().map(|(_, reason)| reason.clone()).collect();
    sqlx::query!("delete from landmarks").execute(&mut *conn).await?;
    sqlx::query!(
        r#"
        insert into landmarks (agent_id, position, reason)
        select agent_id, (position - 1)::integer, reason
        from unnest($1::bigint[], $2::text[]) with ordinality as chosen (agent_id, reason, position)
        "#,
        &agents,
        &reasons,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The landmarks, in order of choice.
///
/// # Errors
/// When the database fails.
pub async fn list(conn: &mut PgConnection) -> Result<Vec<Landmark>, Error> {
    let rows = sqlx::query!(
        r#"
        select a.id, a.name, a.city, a.carrier, l.reason,
               exists (select from sessions s where s.agent_id = a.id and s.state = 'active') as "connected!"
        from landmarks l join agents a on a.id = l.agent_id
        order by l.position
        "#,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Landmark {
            agent: AgentId::new(row.id),
            name: row.name,
            city: row.city,
            carrier: row.carrier,
            connected: row.connected,
            reason: row.reason,
        })
        .collect())
}

/// The agents with an active session, by identifier.
///
/// # Errors
/// When the database fails.
pub async fn connected(conn: &mut PgConnection) -> Result<Vec<Connected>, Error> {
    let rows = sqlx::query!(
        r#"
        select agents.id, beacon_url is not null as "has_beacon!"
        from agents join sessions on sessions.agent_id = agents.id and sessions.state = 'active'
        order by agents.id
        "#,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| Connected { agent: AgentId::new(row.id), has_beacon: row.has_beacon }).collect())
}
