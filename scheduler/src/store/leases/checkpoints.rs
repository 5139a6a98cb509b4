//! Checkpoints: the progress of active crawls. A task has at most one checkpoint: the newest one,
//! stored under its newest lease.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, LeaseToken, SessionId, TaskId};

use crate::store::Error;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::{Interval, Millis, whole};

/// Maximum size in bytes of the crawl's state in a checkpoint.
pub const MOST_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub task: TaskId,
    pub token: LeaseToken,
    pub pages: u32,
    /// The crawl's state, in a format that only agents can read; at most [`MOST_BYTES`].
    pub state: Vec<u8>,
    pub rate_state: RateState,
}

/// Why a crawl is slow or paused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RateState {
    /// The minimum interval that the agent keeps between two requests to the site; `None` if no
    /// interval was reported.
    pub interval: Option<Duration>,
    /// Time, counted from the report, during which the agent sends the site no request.
    pub pause: Option<Duration>,
    /// Number of requests that the site refused (429, 503). The agent resets this count after 30
    /// minutes without a refusal.
    pub turned_away: u32,
    pub failed_in_a_row: u32,
    /// Number of requests in the last minute.
    pub recent_requests: u32,
    pub recent_errors: u32,
    /// The newest error; empty if there was none.
    pub last_error: String,
}

/// Stores a checkpoint. Returns `false` if the agent's session does not hold the lease.
pub async fn save(
    conn: &mut PgConnection,
    agent: AgentId,
    session: SessionId,
    checkpoint: &Checkpoint,
) -> Result<bool, Error> {
    let RateState { interval, pause, last_error, .. } = &checkpoint.rate_state;
    let rate_state = &checkpoint.rate_state;
    let saved = sqlx::query!(
        r#"
        insert into checkpoints (task_id, token, pages, state, interval_ms, paused_until, turned_away, failed_in_a_row,
                                 recent_requests, recent_errors, last_error)
        select t.id, t.token, $5, $6, $7, now() + $8::interval, $9, $10, $11, $12, $13
        from tasks t
        join leases l on l.task_id = t.id and l.token = t.token
        where t.id = $1 and t.state = 'leased' and t.token = $2
          and l.agent_id = $3 and l.session_id = $4 and l.state = 'active'
        -- The lease must not end before the insert, because its end may delete the checkpoint. The
        -- task is locked, because transactions that end a lease also lock its task first.
        for share of t
        on conflict (task_id) do update
        set token = excluded.token, pages = excluded.pages, state = excluded.state, saved_at = now(),
            interval_ms = excluded.interval_ms, paused_until = excluded.paused_until, turned_away = excluded.turned_away,
            failed_in_a_row = excluded.failed_in_a_row, recent_requests = excluded.recent_requests,
            recent_errors = excluded.recent_errors, last_error = excluded.last_error
        "#,
        checkpoint.task.get(),
        checkpoint.token.get(),
        agent.get(),
        session.get(),
        whole::<i32, _>(checkpoint.pages),
        &checkpoint.state,
        interval.map(Millis) as Option<Millis>,
        pause.map(Interval),
        whole::<i32, _>(rate_state.turned_away),
        whole::<i32, _>(rate_state.failed_in_a_row),
        whole::<i32, _>(rate_state.recent_requests),
        whole::<i32, _>(rate_state.recent_errors),
        last_error.as_str(),
    )
    .affected(conn)
    .await?;
    Ok(saved == 1)
}

/// The states of these tasks' crawls, from the checkpoints; a task without a checkpoint is absent.
pub async fn of(conn: &mut PgConnection, tasks: &[TaskId]) -> Result<HashMap<TaskId, Vec<u8>>, Error> {
    let rows = sqlx::query!("select task_id, state from checkpoints where task_id = any($1)", tasks as _);
    let rows = rows.all(conn).await?;
    Ok(rows.into_iter().map(|row| (row.task_id, row.state)).collect())
}

/// Deletes checkpoints of tasks that ended without an outcome. Returns their number.
pub async fn prune(conn: &mut PgConnection) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        delete from checkpoints c using tasks t
        where t.id = c.task_id and t.state in ('done', 'failed', 'cancelled')
        "#,
    )
    .affected(conn)
    .await
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::store::fixtures::{self, Conn, LeasedTask};
    use crate::store::{Tx, leases};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn only_who_holds_the_lease_says_how_far_its_crawl_has_come(mut conn: Conn) {
        let LeasedTask { agent: a, session: of_a, task, .. } = fixtures::leased(&mut conn, "a").await;
        let (b, of_b) = fixtures::crawler(&mut conn, "b").await;
        let checkpoint = |token, pages: u32| {
            let state = vec![7; usize::try_from(pages).expect("a number")];
            Checkpoint { task, token: LeaseToken::new(token), pages, state, rate_state: RateState::default() }
        };
        assert!(!save(&mut conn, b, of_b, &checkpoint(1, 9)).await.expect("save"), "another agent");
        assert!(!save(&mut conn, a, of_a, &checkpoint(2, 9)).await.expect("save"), "a lease that nobody has");
        assert!(of(&mut conn, &[task]).await.expect("load").is_empty());
        for pages in [3, 5] {
            assert!(save(&mut conn, a, of_a, &checkpoint(1, pages)).await.expect("save"));
        }
        assert_eq!(of(&mut conn, &[task]).await.expect("load"), HashMap::from([(task, vec![7; 5])]));
        assert!(fixtures::hand_back(&mut conn, a, task).await);
        assert!(!save(&mut conn, a, of_a, &checkpoint(1, 6)).await.expect("save"), "it was handed back");
        assert_eq!(prune(&mut conn).await.expect("prune"), 0, "its task goes on");
        fixtures::execute(&mut conn, "update tasks set state = 'cancelled'").await;
        assert_eq!(prune(&mut conn).await.expect("prune"), 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn one_that_comes_while_its_lease_ends_waits_and_is_late(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let LeasedTask { agent, session, task, .. } = fixtures::leased(&mut conn, "a").await;
        // Every transaction that ends a lease locks the task and then changes the lease.
        let mut ending = fixtures::begin(&pool).await;
        sqlx::query("select from tasks for update").execute(&mut *ending).await.expect("hold the task");
        let token = fixtures::TOKEN;
        let checkpoint = Checkpoint { task, token, pages: 9, state: vec![7], rate_state: RateState::default() };
        let saving = async |tx: &mut Tx<'_>| save(tx, agent, session, &checkpoint).await;
        let release = async |ending: &mut Tx<'_>| {
            assert!(leases::release(ending, agent, task, token, None, 5).await.expect("neither waits for the other"));
        };
        let saved = fixtures::behind_what_goes_on(&pool, ending, release, saving).await;
        assert!(!saved.expect("neither waits for the other"), "it was handed back");
        assert!(of(&mut conn, &[task]).await.expect("load").is_empty());
    }
}
