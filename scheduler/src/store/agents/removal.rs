//! Removals: an operator's command that takes an agent out of the fleet.
//!
//! A removal locks the agent's row first, as drains, grants and new sessions do. A lease ended by a
//! removal does not count as a crash of its task.

use sqlx::PgConnection;

use super::drains::{DrainError, DrainResult, active_leases, locked};
use super::sessions::{self, EndCause};
use crate::store::assignments::{self, UnassignScope};
use crate::store::leases;
use crate::store::rows::Statement;

/// Removes an agent: ends its session, revokes its credential and keeps its history. An agent with
/// leases is removed only with `force`, which releases the leases. An elected landmark stays in the
/// list of landmarks until another agent is elected in its place. A landmark set by hand is deleted
/// from the list at once. Run in a transaction.
pub async fn remove(
    conn: &mut PgConnection,
    name: &str,
    force: bool,
    max_crashes: u32,
) -> Result<DrainResult, DrainError> {
    let agent = locked(conn, name).await?;
    if agent.removed_at.is_some() {
        return Ok(DrainResult { withdrawn: 0, leases: 0, before: true });
    }
    let leases = active_leases(conn, agent.id).await?;
    if leases > 0 && !force {
        return Err(DrainError::HoldsLeases { name: name.to_owned(), leases });
    }
    sqlx::query!("update agents set removed_at = now() where id = $1", agent.id.get()).run(conn).await?;
    sessions::close_active(conn, agent.id, EndCause::Removed).await?;
    leases::release_of_ended_sessions(conn, max_crashes).await?;
    let withdrawn = assignments::unassign(conn, UnassignScope::Agent(agent.id), i64::MAX).await?;
    sqlx::query!("delete from landmarks where agent_id = $1 and not elected", agent.id.get()).run(conn).await?;
    // `withdrawn` includes the tasks whose leases were released above.
    Ok(DrainResult { withdrawn: withdrawn.saturating_sub(leases), leases, before: false })
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::store::agents;
    use crate::store::agents::drains::drain;
    use crate::store::agents::drains::tests::{busy, states};
    use crate::store::agents::sessions::OpenError;
    use crate::store::fixtures::{self, Conn};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_agent_with_leases_is_removed_only_by_force_and_does_not_come_back(mut conn: Conn) {
        let (agent, session, tasks) = busy(&mut conn).await;
        let refused = remove(&mut conn, "a", false, fixtures::MAX_CRASHES).await.expect_err("it holds leases");
        assert!(matches!(refused, DrainError::HoldsLeases { leases: 2, .. }), "{refused}");
        assert_eq!(states(&mut conn, &tasks).await, ["leased", "leased", "assigned"]);

        let removed = remove(&mut conn, "a", true, fixtures::MAX_CRASHES).await.expect("remove");
        assert_eq!(removed, DrainResult { withdrawn: 1, leases: 2, before: false });
        assert_eq!(states(&mut conn, &tasks).await, ["located", "located", "located"]);
        assert!(
            !sessions::renew(&mut conn, session, fixtures::LIFETIME, sessions::MachineReport::default())
                .await
                .expect("renew")
        );
        let back = sessions::open(&mut conn, agent, &fixtures::registration(), fixtures::TERMS).await;
        assert!(matches!(back, Err(OpenError::Removed)));
        assert!(remove(&mut conn, "a", false, fixtures::MAX_CRASHES).await.expect("remove").before, "once");
        assert!(matches!(drain(&mut conn, "a").await, Err(DrainError::Removed { .. })));
        assert!(matches!(drain(&mut conn, "nobody").await, Err(DrainError::Unknown(_))));

        assert_eq!(agents::by_name(&mut conn, "a").await.expect("look"), None);
        let shown = agents::show(&mut conn, "a").await.expect("look").expect("it is remembered");
        assert!(shown.removed_at.is_some());
        let reported = crate::store::reports::agents(&mut conn, None).await.expect("report");
        assert_eq!(reported.len(), 1, "its history stays");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_removed_landmark_is_none_or_is_replaced_at_once(pool: PgPool) {
        use crate::store::embeddings::landmarks::{self, ChosenBy};
        use crate::store::embeddings::lost_landmarks;
        let mut conn = pool.acquire().await.expect("connect");
        let (agent, _) = fixtures::crawler(&mut conn, "a").await;
        let an_hour = std::time::Duration::from_secs(3600);
        for (by, standing) in [(ChosenBy::Election, 1), (ChosenBy::Hand, 0)] {
            let mut tx = sqlx::Connection::begin(&mut *conn).await.expect("begin");
            landmarks::replace(&mut tx, &[(agent, "chosen".to_owned())], by).await.expect("choose");
            remove(&mut tx, "a", false, fixtures::MAX_CRASHES).await.expect("remove");
            assert_eq!(landmarks::list(&mut tx).await.expect("list").len(), standing, "{by:?}");
            let lost = lost_landmarks::longest_absent(&mut tx, an_hour).await.expect("look");
            assert_eq!(lost.map(|lost| lost.name), (by == ChosenBy::Election).then(|| "a".to_owned()));
            tx.rollback().await.expect("rollback");
        }
    }
}
