//! Finds the elected landmark that is lost, and replaces it. A landmark is lost if it stays
//! disconnected.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::AgentId;

use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::types::Interval;

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
pub async fn replace(conn: &mut PgConnection, lost: AgentId, by: AgentId, reason: &str) -> Result<bool, Error> {
    let replaced = sqlx::query!(
        "update landmarks set agent_id = $2, reason = $3, elected = true, chosen_at = now() where agent_id = $1",
        lost.get(),
        by.get(),
        reason,
    )
    .affected(conn)
    .await?;
    Ok(replaced > 0)
}
