//! Schedulers: one row per running process, which the process renews; the terms of their roles; and
//! the notices by which they wake each other.
//!
//! When the row expires, the other schedulers know that the process is gone.
//!
//! A process keeps its roles as long as it renews its row. An expired row is never renewed, because
//! its process may have lost its roles; the process must register again.
//!
//! Invariants: the number of a role's term is raised by one when a scheduler takes the role, and at
//! no other time. No scheduler takes a role before the leader's row has expired by Postgres' clock.
//! A transaction that passed [`check`] can commit only before another scheduler takes the role.
//!
//! A notice is a hint and may be lost.

use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Executor as _, PgConnection};

use crate::model::{SchedulerId, TermNumber, words};
use crate::status::{DiskSpace, SchedulerStatus};
use crate::store::agents::sessions;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::servers::Servers;
use crate::store::types::{Interval, Unsigned, whole};
use crate::store::{Error, Tx};

/// Registers this process, with the free and total space of its disk.
pub async fn join(
    conn: &mut PgConnection,
    url: &str,
    version: &str,
    life: Duration,
    disk: Option<DiskSpace>,
) -> Result<SchedulerId, Error> {
    sqlx::query_scalar!(
        r#"
        insert into schedulers (url, version, expires_at, disk_free, disk_size)
        values ($1, $2, now() + $3::interval, $4, $5) returning id
        "#,
        url,
        version,
        Interval(life),
        disk.map(|disk| whole::<i64, _>(disk.free)),
        disk.map(|disk| whole::<i64, _>(disk.size)),
    )
    .one(conn)
    .await
}

/// Renews the row of this process, and stores the space of its disk. Returns `false` if the row has
/// expired or was deleted.
pub async fn renew(
    conn: &mut PgConnection,
    scheduler: SchedulerId,
    life: Duration,
    disk: Option<DiskSpace>,
) -> Result<bool, Error> {
    let renewed = sqlx::query!(
        r#"
        update schedulers set renewed_at = now(), expires_at = now() + $2::interval, disk_free = $3, disk_size = $4
        where id = $1 and expires_at > now()
        "#,
        scheduler.get(),
        Interval(life),
        disk.map(|disk| whole::<i64, _>(disk.free)),
        disk.map(|disk| whole::<i64, _>(disk.size)),
    )
    .affected(conn)
    .await?;
    Ok(renewed == 1)
}

/// Deletes the row of this process, which frees its roles at once.
pub async fn leave(tx: &mut Tx<'_>, scheduler: SchedulerId) -> Result<(), Error> {
    free(tx, scheduler).await?;
    sqlx::query!("delete from schedulers where id = $1", scheduler.get()).run(tx).await
}

/// Deletes the rows that expired at least an hour ago and to which no term refers any more.
pub async fn forget(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!(
        r#"
        delete from schedulers s
        where expires_at < now() - interval '1 hour' and not exists (select from terms t where t.holder = s.id)
        "#,
    )
    .run(conn)
    .await
}

/// The schedulers of this database, in the order in which they started. If several rows have the
/// same URL, only the newest is listed, because a restarted scheduler leaves its previous row
/// behind.
pub async fn list(conn: &mut PgConnection) -> Result<Vec<SchedulerStatus>, Error> {
    let rows = sqlx::query!(
        r#"
        select s.url, s.version, s.started_at, s.expires_at > now() as "running!",
               s.disk_free as "disk_free: Unsigned<u64>", s.disk_size as "disk_size: Unsigned<u64>",
               array(select t.role::text from terms t where t.holder = s.id order by t.role) as "roles!"
        from schedulers s
        where not exists (select from schedulers newer where newer.url = s.url and newer.id > s.id)
        order by s.started_at, s.id
        "#,
    )
    .all(conn)
    .await?;
    let schedulers = rows.into_iter().map(|row| SchedulerStatus {
        url: row.url,
        version: row.version,
        started_at: row.started_at,
        running: row.running,
        roles: if row.running { row.roles } else { Vec::new() },
        disk: disk(row.disk_free, row.disk_size),
    });
    Ok(schedulers.collect())
}

/// The free and total space of a file system; `None` if either is unknown.
pub(in crate::store) fn disk(free: Option<Unsigned<u64>>, size: Option<Unsigned<u64>>) -> Option<DiskSpace> {
    Some(DiskSpace { free: free?.0, size: size?.0 })
}

/// The URLs of the other running schedulers, in the order in which they started.
pub async fn others(conn: &mut PgConnection, url: &str) -> Result<Vec<String>, Error> {
    sqlx::query_scalar!(
        r#"
        select url from schedulers where expires_at > now() and url <> $1
        group by url order by min(started_at), url
        "#,
        url,
    )
    .all(conn)
    .await
}

words!(
    /// Duties that only one scheduler at a time may have.
    ///
    /// Reaping has its own role, so that it continues while a fit keeps a slow machine busy.
    /// Fitting has its own role, because the whole map must be made by a single scheduler. All
    /// passes that bring tasks to agents share one role, because they wake each other often and so
    /// should run in one process.
    Role {
        /// Ends expired sessions and leases, and deletes old events.
        Reap = "reap",
        /// Makes the map: elects landmarks, fits embeddings, quarantines agents.
        Fit = "fit",
        /// Brings tasks to agents: measures, locates, confirms, assigns.
        Plan = "plan",
    }
);

/// A term that this scheduler has just taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenTerm {
    pub number: TermNumber,
    /// Number of sessions that were extended because agents may have been unable to renew them.
    pub extended: u64,
}

/// Takes the role if it is free or its leader has expired. Returns `None` if another scheduler has
/// the role. Waits for open transactions of the former leader.
///
/// A scheduler calls this function only if, as far as it knows, it does not have the role. If the
/// database says that this scheduler already has the role, the answer to an earlier commit must
/// have been lost. The scheduler then takes another term; otherwise the role would be idle for as
/// long as the process runs.
///
/// Taking the role `reap` also extends every session, in the same transaction. `lifetime` is the
/// lifetime of a session.
pub async fn take(
    tx: &mut Tx<'_>,
    role: Role,
    scheduler: SchedulerId,
    lifetime: Duration,
) -> Result<Option<TakenTerm>, Error> {
    if !is_free(tx, role, scheduler).await? {
        return Ok(None);
    }
    let locked = sqlx::query!("select holder from terms where role = $1 for update", role);
    locked.one(tx).await?;
    // The check is repeated in a new statement. If another transaction had locked the row, the
    // statement above waited for that transaction, which may have taken the role.
    if !is_free(tx, role, scheduler).await? {
        return Ok(None);
    }
    let former = sqlx::query!(
        r#"
        select t.taken_at, coalesce(s.renewed_at, t.served_until) as served_until
        from terms t left join schedulers s on s.id = t.holder where t.role = $1
        "#,
        role,
    )
    .one(tx)
    .await?;
    let number = sqlx::query_scalar!(
        r#"
        update terms set holder = $2, number = number + 1, taken_at = clock_timestamp(), served_until = null
        where role = $1
        returning number
        "#,
        role,
        scheduler.get(),
    )
    .one(tx)
    .await?;
    let extended = match role {
        Role::Reap => sessions::extend(tx, lifetime, former.taken_at, former.served_until).await?,
        Role::Fit | Role::Plan => 0,
    };
    Ok(Some(TakenTerm { number, extended }))
}

async fn is_free(conn: &mut PgConnection, role: Role, scheduler: SchedulerId) -> Result<bool, Error> {
    sqlx::query_scalar!(
        r#"
        select not exists (
            select from schedulers s where s.id = t.holder and s.id <> $2 and s.expires_at > clock_timestamp()
        ) as "free!"
        from terms t where t.role = $1
        "#,
        role,
        scheduler.get(),
    )
    .one(conn)
    .await
}

/// Whether this scheduler still has this term. Each transaction that acts in this role must call
/// this function, because its row lock prevents other schedulers from taking the role until the
/// transaction ends. Postgres aborts the transaction if it is idle for longer than `patience`
/// between two statements, so that a suspended scheduler does not block other schedulers.
pub async fn check(
    tx: &mut Tx<'_>,
    role: Role,
    scheduler: SchedulerId,
    number: TermNumber,
    patience: Duration,
) -> Result<bool, Error> {
    let still = sqlx::query!(
        r#"
        select set_config('idle_in_transaction_session_timeout', $4, true),
               -- Events that this transaction writes contain this term.
               set_config('landfall.term', t.role || ' ' || t.number, true) as term
        from terms t join schedulers s on s.id = t.holder
        where t.role = $1 and t.holder = $2 and t.number = $3 and s.expires_at > clock_timestamp()
        for share of t
        "#,
        role,
        scheduler.get(),
        number.get(),
        patience.as_millis().to_string(),
    )
    .optional(tx)
    .await?;
    Ok(still.is_some())
}

/// Frees every role of this scheduler.
async fn free(conn: &mut PgConnection, scheduler: SchedulerId) -> Result<(), Error> {
    sqlx::query!(
        r#"
        update terms t set holder = null, served_until = case when s.expires_at > now() then now() else s.renewed_at end
        from schedulers s where s.id = t.holder and t.holder = $1
        "#,
        scheduler.get(),
    )
    .run(conn)
    .await
}

const CHANNEL: &str = "landfall";

/// Notifies all listeners. The statement's commit does not wait for the disk, because a notice
/// stores nothing.
pub async fn notify(conn: &mut PgConnection, payload: &str) -> Result<(), Error> {
    sqlx::query!(
        r#"select set_config('synchronous_commit', 'off', false) as off, pg_notify($1, $2) as "told: ()""#,
        CHANNEL,
        payload,
    )
    .one(conn)
    .await?;
    Ok(())
}

#[derive(Debug)]
pub struct Listener(PgListener);

impl Listener {
    pub async fn connect(servers: &Servers) -> Result<Self, Error> {
        let server = servers.connect().await?.server;
        let pool = PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let mut listener = PgListener::connect_with(&pool.connect_with(server).await?).await?;
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        Ok(Self(listener))
    }

    /// Waits for the next notice; `None` if the connection is lost. Cancelling the call loses no
    /// notice.
    pub async fn next(&mut self) -> Result<Option<String>, Error> {
        Ok(self.0.try_recv().await?.map(|notice| notice.payload().to_owned()))
    }

    pub async fn ping(&mut self) -> Result<(), Error> {
        self.0.execute("").await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::model::{AgentId, SessionId};
    use crate::store::fixtures::{self, Conn, LeasedTask};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_scheduler_that_stopped_without_notice_is_listed_until_it_starts_again(mut conn: Conn) {
        let life = Duration::from_secs(60);
        let disk = Some(DiskSpace { free: 1, size: 2 });
        let lost = join(&mut conn, "http://a", "1.0.0", life, disk).await.expect("join");
        let other = join(&mut conn, "http://b", "1.1.0", life, None).await.expect("join");
        let roles = "update terms set holder = (select min(id) from schedulers) where role = 'reap'";
        fixtures::execute(&mut conn, roles).await;
        let listed = list(&mut conn).await.expect("list");
        let shown: Vec<_> = listed.iter().map(|one| (one.url.as_str(), one.version.as_str(), one.running)).collect();
        assert_eq!(shown, [("http://a", "1.0.0", true), ("http://b", "1.1.0", true)]);
        assert_eq!((&*listed[0].roles, listed[0].disk, listed[1].disk), (&["reap".to_owned()][..], disk, None));
        let expire = "update schedulers set expires_at = now() - interval '1 second' where url = 'http://a'";
        fixtures::execute(&mut conn, expire).await;
        assert!(!renew(&mut conn, lost, life, disk).await.expect("renew"));
        assert!(renew(&mut conn, other, life, disk).await.expect("renew"));
        let listed = list(&mut conn).await.expect("list");
        assert_eq!((listed[0].running, listed[0].roles.len(), listed[1].disk), (false, 0, disk));
        join(&mut conn, "http://a", "1.0.0", life, disk).await.expect("join");
        let listed = list(&mut conn).await.expect("list");
        assert!(listed.len() == 2 && listed.iter().all(|one| one.running), "{listed:?}");
    }

    /// The lifetime of a scheduler's row. It is so long that a row expires only if the test makes
    /// it expire.
    const LIFE: Duration = Duration::from_secs(3600);

    async fn joined(pool: &PgPool) -> SchedulerId {
        join(&mut pool.acquire().await.expect("connect"), "http://127.0.0.1:1", "1.0.0", LIFE, None)
            .await
            .expect("join")
    }

    /// Tries to take a role. Returns the number of the new term.
    async fn taken(conn: &mut PgConnection, role: Role, scheduler: SchedulerId) -> Option<i64> {
        let taken = fixtures::tx(conn, async |tx| take(tx, role, scheduler, fixtures::LIFETIME).await).await;
        taken.expect("take").map(|taken| taken.number.get())
    }

    async fn is_held(conn: &mut PgConnection, role: Role, scheduler: SchedulerId, number: i64) -> bool {
        let number = TermNumber::new(number);
        fixtures::tx(conn, async |tx| check(tx, role, scheduler, number, LIFE).await).await.expect("check")
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
        let (first, second) = (joined(pool).await, joined(pool).await);
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
        assert!(!renew(&mut conn, first, LIFE, None).await.expect("renew"), "too late");
        assert_eq!(taken(&mut conn, Role::Reap, second).await, Some(2));
        assert!(is_held(&mut conn, Role::Reap, second, 2).await && !is_held(&mut conn, Role::Reap, first, 1).await);

        fixtures::tx(&mut conn, async |tx| leave(tx, second).await).await.expect("leave");
        let third = joined(&pool).await;
        assert_eq!(taken(&mut conn, Role::Reap, third).await, Some(3), "at once");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_term_whose_commit_was_not_answered_is_taken_again_by_the_same_scheduler(pool: PgPool) {
        let (first, second) = two(&pool).await;
        let mut conn = pool.acquire().await.expect("connect");
        // The scheduler does not know that it has term 1, and takes the role again.
        let mut old = fixtures::begin(&pool).await;
        assert!(is_held(&mut old, Role::Reap, first, 1).await);
        let again = async |tx: &mut Tx<'_>| taken(tx, Role::Reap, first).await;
        assert_eq!(fixtures::behind(&pool, old, again).await, Some(2), "behind what it may have under way");
        assert!(!is_held(&mut conn, Role::Reap, first, 1).await && is_held(&mut conn, Role::Reap, first, 2).await);
        assert_eq!(taken(&mut conn, Role::Reap, second).await, None);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn two_that_take_a_free_role_at_once_do_not_both_get_it(pool: PgPool) {
        let (first, second) = (joined(&pool).await, joined(&pool).await);
        let mut taking = fixtures::begin(&pool).await;
        assert_eq!(taken(&mut taking, Role::Plan, first).await, Some(1));
        assert_eq!(fixtures::behind(&pool, taking, async |conn| taken(conn, Role::Plan, second).await).await, None);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_reaper_whose_term_ran_out_in_the_middle_commits_before_it_is_taken_over(pool: PgPool) {
        let (first, second) = two(&pool).await;
        let (agent, _) = overdue(&pool).await;
        let mut reaping = fixtures::begin(&pool).await;
        assert!(is_held(&mut reaping, Role::Reap, first, 1).await);
        silence(&pool, first).await;
        assert_eq!(sessions::expire_due(&mut reaping).await.expect("expire"), [agent]);
        let then = async |tx: &mut Tx<'_>| taken(tx, Role::Reap, second).await;
        assert_eq!(fixtures::behind(&pool, reaping, then).await, Some(2), "whoever takes over waits for it");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_reaper_whose_term_is_being_taken_changes_nothing(pool: PgPool) {
        let (first, second) = two(&pool).await;
        let (_, session) = overdue(&pool).await;
        silence(&pool, first).await;
        let mut taking = fixtures::begin(&pool).await;
        assert_eq!(taken(&mut taking, Role::Reap, second).await, Some(2));
        // The former leader's row is valid again, so only the number shows that its term is over.
        sqlx::query("update schedulers set expires_at = now() + interval '1 hour'")
            .execute(&pool)
            .await
            .expect("revive");
        let check = async |tx: &mut Tx<'_>| is_held(tx, Role::Reap, first, 1).await;
        assert!(!fixtures::behind(&pool, taking, check).await);
        assert!(
            left(&pool, session).await > 3000.0,
            "and the session was given its time back before anything may expire"
        );
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_dead_agent_is_lost_however_often_the_reaper_changes(pool: PgPool) {
        const ROUNDS: i32 = 200;
        let (mut reaper, _) = two(&pool).await;
        let (agent, session) = overdue(&pool).await;
        let mut conn = pool.acquire().await.expect("connect");
        let mut served = 0;
        for number in 2..ROUNDS {
            // Each leader of the role `reap` serves for a minute, and then no scheduler has the
            // role for an hour.
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
            let next = joined(&pool).await;
            let mut taking = fixtures::begin(&pool).await;
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
        assert!(renew(&mut conn, first, LIFE, None).await.expect("renew"));
        assert!(left(&pool, session).await < 0.0, "a renewal is no new term");
        fixtures::tx(&mut conn, async |tx| leave(tx, first).await).await.expect("leave");
        assert_eq!(taken(&mut conn, Role::Plan, second).await, Some(1));
        assert!(left(&pool, session).await < 0.0, "nor is another role");
        assert_eq!(taken(&mut conn, Role::Reap, second).await, Some(2));
        assert!(sessions::expire_due(&mut conn).await.expect("expire").is_empty());
        assert!(left(&pool, session).await > 3000.0);
    }
}
