//! The only way to the database: a pool of connections, the transactions on it, and their counts.
//!
//! sqlx returns a connection to its pool inside an open transaction if the caller is dropped while
//! `BEGIN` is under way, for example because a client cancels its call. Statements of later callers
//! then belong to that transaction, and are lost with it. Therefore `Db` connects, begins and
//! commits in tasks of their own, which the caller's end does not stop. The pool also checks each
//! returned connection.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Row};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::counts::{Counts, Timer, TransactionCount};
use super::tx::{Tx, finish};
use crate::store::rows_and_errors::Error;
use crate::store::schema::histories;
use crate::store::servers::Servers;

/// Maximum time that a caller waits for a free connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time in which a returned connection must end its last statement. After this time the
/// connection is closed, so abandoned statements do not occupy the pool.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of times that a transaction is tried if it conflicts with others. Two conflicts in a row
/// are rare, because a conflict ends only one of the transactions concerned.
const ATTEMPTS: u32 = 4;
/// Timeouts of statements and transactions, which Postgres enforces. Even a statement that inserts
/// ten thousand sites takes less than 60 s, so a statement that takes longer probably waits for a
/// lock that is never released. The timeout of idle transactions releases the locks of a scheduler
/// that hangs in the middle of a transaction. Postgres ends the statement of a closed connection
/// within a second, since version 14.
///
/// This statement sets them, and not the beginning of the connection, at which pgbouncer ignores or
/// refuses settings.
const LIMIT: &str = "
    select set_config(name, value, false)
    from (values ('statement_timeout', '60s'), ('idle_in_transaction_session_timeout', '60s'),
                 ('client_connection_check_interval', '1s')) limits (name, value)
    where current_setting(name, true) is not null
";

/// Who shares a pool's connections. The sum, 24, lets two schedulers and other programs, such as
/// backups, together stay below Postgres' default limit of 100 connections.
#[derive(Debug, Clone, Copy)]
pub enum Share {
    /// Agents' sessions and jobs.
    Fleet,
    /// Operators' calls and pages.
    Operators,
    /// The check whether the scheduler is ready.
    Readiness,
}

impl Share {
    const fn connections(self) -> u32 {
        match self {
            Self::Fleet => 16,
            Self::Operators => 7,
            Self::Readiness => 1,
        }
    }
}

/// A pool of connections. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Db {
    pool: PgPool,
    /// One place for each connection. Callers queue here and not in the pool, because a caller that
    /// is dropped leaves this queue without stopping a connection attempt.
    places: Arc<Semaphore>,
    counts: Arc<Counts>,
    /// Maximum time that a transaction waits for one lock; `None` for the timeout of statements.
    patience: Option<Duration>,
    moved: Arc<LastMove>,
}

/// When the pool last moved to another server; `None` if it never did.
#[derive(Debug, Default)]
struct LastMove(Mutex<Option<Instant>>);

impl LastMove {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a connection of this age was made after the last move.
    fn is_before(&self, age: Duration) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none_or(|moved| age < moved.elapsed())
    }
}

/// Connects outside the pools, for statements that must not queue behind others.
pub async fn connect(servers: &Servers) -> Result<PgConnection, Error> {
    let mut conn = servers.connect().await?.conn;
    histories::verify(&mut conn).await?;
    Ok(conn)
}

impl Db {
    /// Opens a share of the connections to a database that [`super::prepare`] has prepared.
    pub async fn open(options: PgConnectOptions, share: Share) -> Result<Self, Error> {
        let moved = Arc::<LastMove>::default();
        let pool = PgPoolOptions::new()
            .max_connections(share.connections())
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .after_connect(|conn, _| {
                Box::pin(async move {
                    sqlx::raw_sql(LIMIT).execute(&mut *conn).await?;
                    histories::verify(conn).await.map_err(|error| match error {
                        Error::Database(cause) => cause,
                        other => sqlx::Error::Protocol(other.to_string()),
                    })
                })
            })
            .before_acquire({
                let moved = Arc::clone(&moved);
                move |_, conn| Box::pin(std::future::ready(Ok(moved.is_before(conn.age))))
            })
            .after_release(|conn, _| Box::pin(async move { Ok(is_at_rest(conn).await) }))
            .connect_with(options)
            .await?;
        Ok(Self { moved, ..Self::of(pool) })
    }

    /// Connects to this server from now on, and closes the former connections before their next
    /// use.
    pub fn move_to(&self, server: &PgConnectOptions) {
        self.pool.set_connect_options(server.clone());
        self.moved.note();
    }

    /// Uses the connections of `pool`.
    pub fn of(pool: PgPool) -> Self {
        let places = Semaphore::new(pool.options().get_max_connections() as usize);
        Self { pool, places: Arc::new(places), counts: Arc::default(), patience: None, moved: Arc::default() }
    }

    /// The same pool, whose transactions fail (SQLSTATE 55P03) after waiting `patience` for a lock.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self.clone() }
    }

    #[cfg(test)]
    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// How many transactions of each name have ended, and how long they took.
    pub fn counts(&self) -> BTreeMap<&'static str, TransactionCount> {
        self.counts.read()
    }

    /// Runs `work` in a transaction and commits. An error of `work` rolls back. A transaction that
    /// conflicts with others is repeated, so `work` may run several times.
    ///
    /// # Errors
    /// The error of `work`, or that of `BEGIN` or `COMMIT`. It is unknown whether a transaction was
    /// committed if its `COMMIT` lost the connection.
    pub async fn tx<'env, T, E>(
        &self,
        name: &'static str,
        work: impl for<'t> FnMut(&'t mut Tx<'env>) -> BoxFuture<'t, Result<T, E>>,
    ) -> Result<T, E>
    where
        E: From<Error> + MayConflict,
    {
        self.checked_tx(name, |_| Box::pin(async { Ok(()) }), work).await
    }

    /// Like [`Db::tx`], but runs `check` before `work` in the same transaction.
    ///
    /// # Errors
    /// Those of [`Db::tx`], and the error of `check`.
    pub async fn checked_tx<'env, T, E>(
        &self,
        name: &'static str,
        mut check: impl for<'t> FnMut(&'t mut Tx<'env>) -> BoxFuture<'t, Result<(), E>>,
        mut work: impl for<'t> FnMut(&'t mut Tx<'env>) -> BoxFuture<'t, Result<T, E>>,
    ) -> Result<T, E>
    where
        E: From<Error> + MayConflict,
    {
        let mut attempt = 1;
        loop {
            let begun = Instant::now();
            let done = async {
                let mut tx = self.begin().await?;
                check(&mut tx).await?;
                let done = work(&mut tx).await?;
                tx.commit().await.map_err(Error::from)?;
                Ok(done)
            }
            .await;
            let conflict = done.as_ref().err().is_some_and(MayConflict::is_conflict);
            self.counts.add(name, begun.elapsed(), done.is_ok(), conflict);
            if !conflict {
                return done;
            }
            if attempt == ATTEMPTS {
                tracing::warn!(transaction = name, attempt, "a transaction conflicts with others and is given up");
                return done;
            }
            attempt += 1;
        }
    }

    /// A connection for statements that only read, each in a transaction of its own.
    pub async fn read(&self, name: &'static str) -> Result<Reader, Error> {
        let place = self.place().await?;
        let pool = self.pool.clone();
        let conn = finish(async move { pool.acquire().await }).await?;
        Ok(Reader { conn, timer: Timer::start(name, &self.counts), _place: place })
    }

    /// A read-only transaction in which all statements see one snapshot.
    pub async fn snapshot(&self, name: &'static str) -> Result<Snapshot, Error> {
        let tx = self.begin_with("begin transaction isolation level repeatable read, read only".to_owned()).await?;
        Ok(Snapshot { tx, timer: Timer::start(name, &self.counts) })
    }

    pub(super) async fn begin<'env>(&self) -> Result<Tx<'env>, Error> {
        let begin = match self.patience {
            Some(patience) => format!("begin; set local lock_timeout = {}", patience.as_millis()),
            None => "begin".to_owned(),
        };
        self.begin_with(begin).await
    }

    async fn begin_with<'env>(&self, statement: String) -> Result<Tx<'env>, Error> {
        let place = self.place().await?;
        let pool = self.pool.clone();
        // The statement contains no text from outside.
        let tx = finish(async move { pool.begin_with(AssertSqlSafe(statement)).await }).await?;
        Ok(Tx::pooled(tx, place))
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, Error> {
        let place = Arc::clone(&self.places).acquire_owned();
        let place = tokio::time::timeout(ACQUIRE_TIMEOUT, place).await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        // The semaphore is never closed.
        Ok(place.map_err(|_| sqlx::Error::PoolClosed)?)
    }
}

/// Whether a returned connection can be used again: no transaction is open, and its server accepts
/// changes. Waits first for the end of the connection's last statement.
async fn is_at_rest(conn: &mut PgConnection) -> bool {
    // In an open transaction, `now()` is the time of its `BEGIN`. A statement without parameters is
    // sent as one message, so both times are otherwise the same.
    //
    // If the server has become read-only, a new connection may find the primary.
    const ASK: &str = "
        select now() = statement_timestamp(),
               pg_is_in_recovery() or current_setting('default_transaction_read_only')::boolean
    ";
    let asked = sqlx::raw_sql(ASK).fetch_one(conn);
    match tokio::time::timeout(RELEASE_TIMEOUT, asked).await {
        Ok(Ok(row)) => match (row.try_get::<bool, _>(0), row.try_get::<bool, _>(1)) {
            (Ok(true), Ok(read_only)) => !read_only,
            _ => {
                tracing::error!("a connection came back inside a transaction and is closed");
                false
            }
        },
        // Also in an aborted transaction.
        Ok(Err(error)) => {
            tracing::debug!(error = %error, "a returned connection is closed");
            false
        }
        Err(_) => false,
    }
}

/// A connection outside of transactions.
#[derive(Debug)]
pub struct Reader {
    conn: PoolConnection<Postgres>,
    #[expect(dead_code, reason = "counts the use when it is dropped")]
    timer: Timer,
    _place: OwnedSemaphorePermit,
}

impl Deref for Reader {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.conn
    }
}

impl DerefMut for Reader {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.conn
    }
}

/// A read-only transaction. It ends when it is dropped.
#[derive(Debug)]
pub struct Snapshot {
    tx: Tx<'static>,
    #[expect(dead_code, reason = "counts the use when it is dropped")]
    timer: Timer,
}

impl Deref for Snapshot {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.tx
    }
}

impl DerefMut for Snapshot {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.tx
    }
}

/// An error that may say that Postgres ended a transaction because it conflicts with others.
pub trait MayConflict {
    fn is_conflict(&self) -> bool;
}

impl MayConflict for Error {
    fn is_conflict(&self) -> bool {
        conflict_in(self)
    }
}

impl MayConflict for anyhow::Error {
    fn is_conflict(&self) -> bool {
        conflict_in(self.as_ref())
    }
}

/// Whether one of the causes of `error` is a serialization failure (40001) or a deadlock (40P01).
pub fn conflict_in(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|cause| {
        let Some(sqlx::Error::Database(cause)) = cause.downcast_ref() else { return false };
        cause.code().is_some_and(|code| matches!(code.as_ref(), "40001" | "40P01"))
    })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::FutureExt as _;

    use super::*;
    use crate::store::rows_and_errors::Statement as _;
    use crate::store::{fixtures, settings};

    /// Polls `future` at most `polls` times, and then drops it.
    async fn poll_and_drop(future: impl Future, polls: usize) {
        let mut future = pin!(future);
        for _ in 0..polls {
            if futures_util::poll!(&mut future).is_ready() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// One connection, so that each use gets the connection of the former one.
    async fn single(pool: &PgPool) -> Db {
        let options = pool.connect_options().as_ref().clone();
        let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await.expect("connect");
        Db::of(pool)
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_caller_dropped_at_any_moment_leaves_no_connection_in_a_transaction(pool: PgPool) {
        let db = single(&pool).await;
        for polls in 0..60 {
            let work = db.tx("dropped", |tx| settings::set_contact_url(tx, "https://dropped.example").boxed());
            poll_and_drop(work, polls).await;
            poll_and_drop(db.snapshot("dropped"), polls).await;
            // Whether the dropped transaction committed is unknown. The next statement must not be
            // part of it.
            let mut reader = db.read("read").await.expect("read");
            let at_rest: bool = fixtures::scalar(&mut reader, "select pg_current_xact_id_if_assigned() is null").await;
            assert!(at_rest, "after {polls} polls");
            assert!(is_at_rest(&mut reader).await, "after {polls} polls");
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_connection_that_comes_back_inside_a_transaction_is_closed(pool: PgPool) {
        let db = Db::open(pool.connect_options().as_ref().clone(), Share::Readiness).await.expect("open");
        let pid = "select pg_backend_pid()";
        let mut reader = db.read("leak").await.expect("read");
        let leaked: i32 = fixtures::scalar(&mut reader, pid).await;
        fixtures::execute(&mut reader, "begin").await;
        drop(reader);
        let next: i32 = fixtures::scalar(&mut db.read("next").await.expect("read"), pid).await;
        assert_ne!(leaked, next);
        let again: i32 = fixtures::scalar(&mut db.read("again").await.expect("read"), pid).await;
        assert_eq!(next, again, "a connection at rest is used again");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn connections_to_a_former_or_read_only_server_are_not_used_again(pool: PgPool) {
        let server = pool.connect_options().as_ref().clone();
        let db = Db::open(server.clone(), Share::Readiness).await.expect("open");
        let pid = async || -> i32 {
            fixtures::scalar(&mut db.read("pid").await.expect("read"), "select pg_backend_pid()").await
        };
        let first = pid().await;
        assert_eq!(pid().await, first);
        db.move_to(&server);
        let moved = pid().await;
        assert_ne!(moved, first);
        assert_eq!(pid().await, moved);
        let mut reader = db.read("read-only").await.expect("read");
        fixtures::execute(&mut reader, "set default_transaction_read_only = on").await;
        drop(reader);
        assert_ne!(pid().await, moved);
        let limit = "select current_setting('statement_timeout')";
        let limit: String = fixtures::scalar(&mut db.read("limit").await.expect("read"), limit).await;
        assert_eq!(limit, "1min");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_database_that_becomes_read_only_in_mid_transaction_stores_nothing_of_it(pool: PgPool) {
        let db = Db::of(pool);
        let failed = db.tx("half", |tx| {
            async move {
                settings::set_contact_url(tx, "https://first.example").await?;
                sqlx::query("set transaction read only").run(tx).await?;
                settings::set_contact_url(tx, "https://second.example").await
            }
            .boxed()
        });
        let error = failed.await.expect_err("it is read-only");
        assert!(error.passes() && error.is_read_only(), "{error:?}");
        let status = tonic::Status::from(error);
        let said = (status.code(), status.message());
        assert_eq!(said, (tonic::Code::Unavailable, "the database is read-only: try again"));
        let stored = settings::contact_url(&mut db.read("read").await.expect("read")).await.expect("read");
        assert_eq!(stored, None);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_statement_that_waits_for_a_lock_until_its_timeout_is_told_as_that(pool: PgPool) {
        let mut hand = pool.begin().await.expect("begin");
        fixtures::execute(&mut hand, "select from settings for update").await;
        let db = Db::of(pool);
        let waiting = db.tx("waits", |tx| {
            async move {
                sqlx::query("set local statement_timeout = '50ms'").run(tx).await?;
                settings::set_contact_url(tx, "https://first.example").await
            }
            .boxed()
        });
        let status = tonic::Status::from(waiting.await.expect_err("it waits in vain"));
        let said = "another transaction in the database holds what this changes: try again";
        assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, said));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_transaction_that_conflicts_is_repeated_and_counted(pool: PgPool) {
        let db = Db::of(pool);
        let tries = AtomicU32::new(0);
        let repeated = db.tx("repeated", |tx| {
            let first = tries.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                settings::set_contact_url(tx, "https://repeated.example").await?;
                let sql = "do $$ begin raise exception 'deadlock' using errcode = '40P01'; end $$";
                if first {
                    sqlx::query(sql).run(tx).await?;
                }
                Ok::<_, Error>(())
            }
            .boxed()
        });
        repeated.await.expect("the second try");
        let count = db.counts()["repeated"];
        assert_eq!((count.ended, count.failed, count.conflicts), (2, 1, 1));
        let refused = db.tx("refused", |_| async { Err::<(), _>(Error::HalfRestored) }.boxed()).await;
        refused.expect_err("no conflict, so no repetition");
        assert_eq!(db.counts()["refused"].ended, 1);
    }
}
