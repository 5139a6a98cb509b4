//! Releases leases that agents return, whose crawl crashed or must pause, or whose session has
//! ended.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, LeaseToken, TaskId};
use crate::store::Error;
use crate::store::leases::ending::{Ending, end};
use crate::store::rows::Rows;
use crate::store::tasks::holds::{self, Cause};

/// Releases a lease that the agent returns, or whose crawl crashed (then `crash` is the error). A
/// task fails once it has crashed `max_crashes` times. Returns `false` if the lease is not active
/// or belongs to another agent.
pub async fn release(
    conn: &mut PgConnection,
    agent: AgentId,
    task: TaskId,
    token: LeaseToken,
    crash: Option<&str>,
    max_crashes: u32,
) -> Result<bool, Error> {
    let ending = crash.map_or(Ending::HandedBack, |with| Ending::Crashed { with, most: max_crashes });
    Ok(!end(conn, &[(task, token)], Some(agent), ending).await?.is_empty())
}

/// Releases a lease because the site asked for a pause: no agent crawls the site until `pause` is
/// over. Returns `false` if the lease is not active or belongs to another agent. Run in a
/// transaction.
pub async fn pause(
    conn: &mut PgConnection,
    agent: AgentId,
    task: TaskId,
    token: LeaseToken,
    pause: Duration,
) -> Result<bool, Error> {
    if end(conn, &[(task, token)], Some(agent), Ending::Anew).await?.is_empty() {
        return Ok(false);
    }
    holds::hold(conn, &[(task, Cause::Pause(pause))]).await?;
    Ok(true)
}

/// Releases the active leases of all ended sessions. A release counts as a crash of the task if the
/// session expired, or if another process superseded it. A task fails once it has crashed
/// `max_crashes` times. Returns the number of released leases.
pub async fn release_of_ended_sessions(conn: &mut PgConnection, max_crashes: u32) -> Result<u64, Error> {
    let rows = sqlx::query!(
        r#"
        -- Finds each next session with leases by index. Most leases belong to active sessions, and
        -- are not read.
        with recursive holding (session_id) as (
            select min(session_id) from leases where state = 'active'
            union all
            select (select min(l.session_id) from leases l where l.state = 'active' and l.session_id > h.session_id)
            from holding h where h.session_id is not null
        )
        select l.task_id as "task_id!", l.token as "token!"
        from holding
        join sessions s on s.id = holding.session_id and s.state <> 'active'
        -- `offset 0` prevents a join, which would read all active leases.
        cross join lateral (
            select task_id, token from leases where session_id = s.id and state = 'active' offset 0
        ) l
        "#,
    )
    .all(conn)
    .await?;
    let lost: Vec<(TaskId, LeaseToken)> = rows.into_iter().map(|row| (row.task_id, row.token)).collect();
    let ended = end(conn, &lost, None, Ending::Lost { most: max_crashes }).await?;
    Ok(u64::try_from(ended.len()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::agents::sessions::{self, Registration};
    use crate::store::fixtures::{self, Conn};
    use crate::store::leases::granting::grant;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn only_its_holder_can_hand_a_lease_back(mut conn: Conn) {
        let agent = fixtures::agent(&mut conn, "a").await;
        let other = fixtures::agent(&mut conn, "b").await;
        let session = fixtures::session(&mut conn, agent).await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, agent).await;
        let token = grant(&mut conn, agent, session).await.expect("grant")[0].token;
        assert!(!release(&mut conn, other, task, token, None, fixtures::MAX_CRASHES).await.expect("release"));
        assert!(release(&mut conn, agent, task, token, None, fixtures::MAX_CRASHES).await.expect("release"));
        assert!(!release(&mut conn, agent, task, token, None, fixtures::MAX_CRASHES).await.expect("release"), "once");
        assert_eq!(fixtures::state(&mut conn, task).await, "assigned");
    }

    #[derive(Debug, Clone, Copy)]
    enum End {
        Panic,
        Loss,
        Restart,
        Reconnection,
        HandBack,
        Goodbye,
    }

    /// Grants the only task and ends its lease. Returns the task's state, reason and number of
    /// crashes.
    async fn grant_and_end(
        conn: &mut PgConnection,
        agent: AgentId,
        task: TaskId,
        end: End,
    ) -> (String, Option<String>, i32) {
        let session = fixtures::session(conn, agent).await;
        let token = grant(conn, agent, session).await.expect("grant")[0].token;
        match end {
            End::Panic => {
                assert!(
                    release(conn, agent, task, token, Some("index out of range"), fixtures::MAX_CRASHES)
                        .await
                        .expect("release")
                );
            }
            End::HandBack => {
                assert!(release(conn, agent, task, token, None, fixtures::MAX_CRASHES).await.expect("release"));
            }
            End::Loss => {
                fixtures::execute(
                    conn,
                    "update sessions set expires_at = now() - interval '1 second' where state = 'active'",
                )
                .await;
                sessions::expire_due(conn).await.expect("expire");
                release_of_ended_sessions(conn, fixtures::MAX_CRASHES).await.expect("release");
            }
            // The agent's new process reports no lease.
            End::Restart => _ = fixtures::session(conn, agent).await,
            End::Reconnection => {
                let process = Some(7);
                let set =
                    sqlx::query("update sessions set process = $2 where id = $1").bind(session.get()).bind(process);
                set.execute(&mut *conn).await.expect("it said which process it is");
                let registration = Registration { process, ..fixtures::registration() };
                sessions::open(conn, agent, &registration, fixtures::TERMS).await.expect("open");
            }
            End::Goodbye => {
                sessions::close(conn, session).await.expect("close");
                release_of_ended_sessions(conn, fixtures::MAX_CRASHES).await.expect("release");
            }
        }
        sqlx::query_as("select state::text, reason, crashes from tasks where id = $1")
            .bind(task.get())
            .fetch_one(conn)
            .await
            .expect("read the task")
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_fifth_crash_of_a_task_is_its_last_and_what_is_handed_back_is_no_crash(mut conn: Conn) {
        let agent = fixtures::agent(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, agent).await;
        let ends = [
            (End::HandBack, 0),
            (End::Panic, 1),
            (End::Loss, 2),
            (End::Goodbye, 2),
            (End::Restart, 3),
            (End::Reconnection, 3),
            (End::HandBack, 3),
            (End::Panic, 4),
        ];
        for (end, crashes) in ends {
            let now = grant_and_end(&mut conn, agent, task, end).await;
            assert_eq!(now, ("assigned".to_owned(), None, crashes), "{end:?}");
        }
        for (end, reason) in [
            (End::Panic, "poison: its crawl crashed 5 times, at last with: index out of range"),
            (End::Loss, "poison: its agent was lost, 5 crashes in all"),
        ] {
            let mut tx = sqlx::Connection::begin(&mut *conn).await.expect("begin");
            let now = grant_and_end(&mut tx, agent, task, end).await;
            assert_eq!(now, ("failed".to_owned(), Some(reason.to_owned()), 5), "{end:?}");
            tx.rollback().await.expect("rollback");
        }
    }
}
