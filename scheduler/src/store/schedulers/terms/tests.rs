use std::time::Duration;

use sqlx::{PgPool, Postgres, Transaction};

use super::*;
use crate::model::{AgentId, SessionId};
use crate::store::fixtures::{self, LeasedTask};
use crate::store::schedulers;

/// The lifetime of a scheduler's row. It is so long that a row expires only if the test makes it
/// expire.
const LIFE: Duration = Duration::from_secs(3600);

async fn join(pool: &PgPool) -> SchedulerId {
    schedulers::join(&mut pool.acquire().await.expect("connect"), "http://127.0.0.1:1", "1.0.0", LIFE, None)
        .await
        .expect("join")
}

async fn begin(pool: &PgPool) -> Transaction<'static, Postgres> {
    fixtures::begin(pool).await
}

/// Tries to take a role. Returns the number of the new term.
async fn taken(conn: &mut PgConnection, role: Role, scheduler: SchedulerId) -> Option<i64> {
    take(conn, role, scheduler, fixtures::LIFETIME).await.expect("take").map(|taken| taken.number.get())
}

async fn is_held(conn: &mut PgConnection, role: Role, scheduler: SchedulerId, number: i64) -> bool {
    check(conn, role, scheduler, TermNumber::new(number), LIFE).await.expect("check")
}

async fn silence(pool: &PgPool, scheduler: SchedulerId) {
    sqlx::query("update schedulers set expires_at = now() - interval '1 second' where id = $1")
        .bind(scheduler.get())
        .execute(pool)
        .await
        .expect("let the time pass");
}

/// A scheduler that has the role `reap`, and a second scheduler that waits for this role.
async fn two(pool: &PgPool) -> (SchedulerId, SchedulerId) {
    let (first, second) = (join(pool).await, join(pool).await);
    let mut conn = pool.acquire().await.expect("connect");
    assert_eq!(taken(&mut conn, Role::Reap, first).await, Some(1));
    (first, second)
}

/// An active session whose expiry time has passed, with one lease.
async fn overdue(pool: &PgPool) -> (AgentId, SessionId) {
    let mut conn = pool.acquire().await.expect("connect");
    let LeasedTask { agent, session, .. } = fixtures::leased(&mut conn, "a").await;
    fixtures::overdue(&mut conn).await;
    (agent, session)
}

/// Seconds until a session expires.
async fn left(pool: &PgPool, session: SessionId) -> f64 {
    sqlx::query_scalar("select extract(epoch from expires_at - now())::float8 from sessions where id = $1")
        .bind(session.get())
        .fetch_one(pool)
        .await
        .expect("read a session")
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_role_is_one_schedulers_until_it_expires_or_leaves(pool: PgPool) {
    let (first, second) = two(&pool).await;
    let mut conn = pool.acquire().await.expect("connect");
    assert_eq!(taken(&mut conn, Role::Reap, second).await, None);
    assert!(is_held(&mut conn, Role::Reap, first, 1).await);
    assert!(!is_held(&mut conn, Role::Fit, first, 1).await, "one role is not the other");

    silence(&pool, first).await;
    assert!(!is_held(&mut conn, Role::Reap, first, 1).await, "an expired term is no term, though nobody took it");
    assert!(!schedulers::renew(&mut conn, first, LIFE, None).await.expect("renew"), "too late");
    assert_eq!(taken(&mut conn, Role::Reap, second).await, Some(2));
    assert!(is_held(&mut conn, Role::Reap, second, 2).await && !is_held(&mut conn, Role::Reap, first, 1).await);

    schedulers::leave(&mut conn, second).await.expect("leave");
    let third = join(&pool).await;
    assert_eq!(taken(&mut conn, Role::Reap, third).await, Some(3), "at once");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_term_whose_commit_was_not_answered_is_taken_again_by_the_same_scheduler(pool: PgPool) {
    let (first, second) = two(&pool).await;
    let mut conn = pool.acquire().await.expect("connect");
    // The scheduler does not know that it has term 1, and takes the role again.
    let mut old = begin(&pool).await;
    assert!(is_held(&mut old, Role::Reap, first, 1).await);
    let again = async |conn: &mut PgConnection| taken(conn, Role::Reap, first).await;
    assert_eq!(fixtures::behind(&pool, old, again).await, Some(2), "behind what it may have under way");
    assert!(!is_held(&mut conn, Role::Reap, first, 1).await && is_held(&mut conn, Role::Reap, first, 2).await);
    assert_eq!(taken(&mut conn, Role::Reap, second).await, None);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn two_that_take_a_free_role_at_once_do_not_both_get_it(pool: PgPool) {
    let (first, second) = (join(&pool).await, join(&pool).await);
    let mut taking = begin(&pool).await;
    assert_eq!(taken(&mut taking, Role::Plan, first).await, Some(1));
    assert_eq!(fixtures::behind(&pool, taking, async |conn| taken(conn, Role::Plan, second).await).await, None);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_reaper_whose_term_ran_out_in_the_middle_commits_before_it_is_taken_over(pool: PgPool) {
    let (first, second) = two(&pool).await;
    let (agent, _) = overdue(&pool).await;
    let mut reaping = begin(&pool).await;
    assert!(is_held(&mut reaping, Role::Reap, first, 1).await);
    silence(&pool, first).await;
    assert_eq!(sessions::expire_due(&mut reaping).await.expect("expire"), [agent]);
    let then = async |conn: &mut PgConnection| taken(conn, Role::Reap, second).await;
    assert_eq!(fixtures::behind(&pool, reaping, then).await, Some(2), "whoever takes over waits for it");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_reaper_whose_term_is_being_taken_changes_nothing(pool: PgPool) {
    let (first, second) = two(&pool).await;
    let (_, session) = overdue(&pool).await;
    silence(&pool, first).await;
    let mut taking = begin(&pool).await;
    assert_eq!(taken(&mut taking, Role::Reap, second).await, Some(2));
    // The former leader's row is valid again, so only the number shows that its term is over.
    sqlx::query("update schedulers set expires_at = now() + interval '1 hour'").execute(&pool).await.expect("revive");
    let check = async |conn: &mut PgConnection| is_held(conn, Role::Reap, first, 1).await;
    assert!(!fixtures::behind(&pool, taking, check).await);
    assert!(left(&pool, session).await > 3000.0, "and the session was given its time back before anything may expire");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_dead_agent_is_lost_however_often_the_reaper_changes(pool: PgPool) {
    const ROUNDS: i32 = 200;
    let (mut reaper, _) = two(&pool).await;
    let (agent, session) = overdue(&pool).await;
    let mut conn = pool.acquire().await.expect("connect");
    let mut served = 0;
    for number in 2..ROUNDS {
        // Each leader of the role `reap` serves for a minute, and then no scheduler has the role
        // for an hour.
        fixtures::execute(
            &mut conn,
            "update sessions set expires_at = expires_at - interval '61 minutes',
                                 renewed_at = renewed_at - interval '61 minutes'",
        )
        .await;
        fixtures::execute(
            &mut conn,
            "update schedulers set expires_at = now() - interval '1 second', renewed_at = now() - interval '1 hour'",
        )
        .await;
        fixtures::execute(&mut conn, "update terms set taken_at = taken_at - interval '61 minutes'").await;
        let next = join(&pool).await;
        let mut taking = begin(&pool).await;
        assert_eq!(taken(&mut taking, Role::Reap, next).await, Some(i64::from(number)));
        taking.commit().await.expect("commit");
        reaper = next;
        if sessions::expire_due(&mut conn).await.expect("expire") == [agent] {
            break;
        }
        assert!(left(&pool, session).await <= fixtures::LIFETIME.as_secs_f64() + 1.0);
        served += 1;
    }
    // A lifetime is an hour. The session gets one whole lifetime, plus the rest of its first
    // lifetime.
    assert!((59..=121).contains(&served), "lost after {served} minutes in which somebody reaped, {reaper}");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_agent_that_lives_loses_nothing_while_nobody_reaps_and_a_renewal_extends_nothing(pool: PgPool) {
    let (first, second) = two(&pool).await;
    let (_, session) = overdue(&pool).await;
    let mut conn = pool.acquire().await.expect("connect");
    assert!(schedulers::renew(&mut conn, first, LIFE, None).await.expect("renew"));
    assert!(left(&pool, session).await < 0.0, "a renewal is no new term");
    schedulers::leave(&mut conn, first).await.expect("leave");
    assert_eq!(taken(&mut conn, Role::Plan, second).await, Some(1));
    assert!(left(&pool, session).await < 0.0, "nor is another role");
    assert_eq!(taken(&mut conn, Role::Reap, second).await, Some(2));
    assert!(sessions::expire_due(&mut conn).await.expect("expire").is_empty());
    assert!(left(&pool, session).await > 3000.0);
}
