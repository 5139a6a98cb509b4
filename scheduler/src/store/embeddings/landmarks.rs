//! Landmarks: the agents that measure sites and that other agents measure. Finds and replaces the
//! elected landmark that is lost.
//!
//! This file also lists the connected agents, because in a small fleet all of them measure sites.
//!
//! A landmark is lost if it stays disconnected.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, SessionId};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::settings::Settings;
use crate::store::types::Interval;
use crate::store::{Error, Locked, Tx};

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
pub async fn replace(
    tx: &mut Tx<'_>,
    _: &Locked<Settings>,
    chosen: &[(AgentId, String)],
    by: ChosenBy,
) -> Result<(), Error> {
    let agents: Vec<i64> = chosen.iter().map(|(agent, _)| agent.get()).collect();
    let reasons: Vec<String> = chosen.iter().map(|(_, reason)| reason.clone()).collect();
    sqlx::query!("delete from landmarks").run(tx).await?;
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
    .run(tx)
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

/// An elected landmark that stays disconnected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostLandmark {
    pub agent: AgentId,
    pub name: String,
    /// The time since the landmark's last session ended.
    pub away_for: Duration,
}

/// The elected landmark that has been disconnected for the longest time. Considers only landmarks
/// that have been removed, or whose last session ended more than `after` ago. Time before the
/// present term of the role `fit` does not count as absence.
pub async fn longest_absent(conn: &mut PgConnection, after: Duration) -> Result<Option<LostLandmark>, Error> {
    sqlx::query_as!(
        LostLandmark,
        r#"
        select a.id as agent, a.name, now() - ended.at as "away_for!: Interval"
        from landmarks l
        join agents a on a.id = l.agent_id
        -- A session counts as ended at `expires_at`. A new leader of reap extends sessions,
        -- so an outage of all schedulers does not count as absence of an agent.
        cross join lateral (
            select greatest(l.chosen_at, max(s.expires_at)) as at from sessions s where s.agent_id = a.id
        ) ended
        where l.elected
          and not exists (select from sessions s where s.agent_id = a.id and s.state = 'active')
          -- A removed agent does not return. Time before the present term does not count, because
          -- agents cannot renew sessions while no scheduler runs.
          and (a.removed_at is not null or greatest(
              ended.at, (select t.taken_at from terms t where t.role = 'fit')
          ) < now() - $1::interval)
        order by ended.at, a.id
        limit 1
        "#,
        Interval(after),
    )
    .optional(conn)
    .await
}

/// Replaces a landmark with an elected agent. Changes nothing and returns `false` if `lost` is no
/// longer a landmark.
pub async fn replace_lost(
    tx: &mut Tx<'_>,
    _: &Locked<Settings>,
    lost: AgentId,
    by: AgentId,
    reason: &str,
) -> Result<bool, Error> {
    let replaced = sqlx::query!(
        "update landmarks set agent_id = $2, reason = $3, elected = true, chosen_at = now() where agent_id = $1",
        lost.get(),
        by.get(),
        reason,
    )
    .affected(tx)
    .await?;
    Ok(replaced > 0)
}
