//! Roles: only the leader of a role can access the database for the background jobs of that role.
//!
//! A job of a role has a [`Leader`] instead of a pool. Each transaction of a role first checks the
//! term, and holds a lock that prevents other schedulers from taking the role before the
//! transaction ends. If the scheduler has lost the role, the pass ends without an error and its
//! uncommitted changes are rolled back. One loop per scheduler renews the scheduler's row in the
//! database and takes free roles; see decision 9 in `docs/decisions`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sqlx::PgConnection;
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::sync::CancellationToken;

use crate::Scheduler;
use crate::config::Config;
use crate::jobs::geoip::GeoIp;
use crate::machine::disk::DiskWatch;
use crate::model::{SchedulerId, TermNumber};
use crate::status::DiskSpace;
use crate::store::schedulers::Role;
use crate::store::servers::Servers;
use crate::store::{self, Db, Tx, clock, schedulers};
use crate::wake::Wakes;

use crate::jobs::refined_map::MapCache;

/// Number of renewals of a scheduler's row during a term's life. The scheduler keeps the term even
/// if three consecutive renewals fail.
const RENEWALS_PER_LIFE: u32 = 4;
/// Maximum idle time between two statements of a role's transaction, as a multiple of a term's
/// life. The maximum is never below `LEAST_STANDSTILL`.
const STANDSTILL_LIVES: u32 = 2;
const LEAST_STANDSTILL: Duration = Duration::from_secs(5);

/// The reason why a pass does nothing in this process: another scheduler leads the role.
#[derive(Debug, thiserror::Error)]
#[error("another scheduler leads")]
pub struct NotLeader;

/// The state that the jobs of one role share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Leader {
    role: Role,
    terms: HeldTerms,
    pub wakes: Arc<Wakes>,
    pub maps: Arc<MapCache>,
    /// Positions of IP addresses, if the operator configured a file that lists them.
    pub geoip: Option<Arc<GeoIp>>,
    pub config: Arc<Config>,
    /// Locked by a job's computation until it ends, even if its pass was dropped.
    computing: Arc<AsyncMutex<()>>,
}

impl Leader {
    /// Runs `work` in a transaction that commits only while this scheduler leads the role. `work`
    /// may run several times ([`store::Db::tx`]).
    ///
    /// # Errors
    /// [`NotLeader`] if another scheduler is the leader of the role, otherwise the error of `work`
    /// or of the database.
    pub async fn tx<'env, T>(
        &'env self,
        name: &'static str,
        work: impl for<'t> FnMut(&'t mut Tx<'env>) -> BoxFuture<'t, anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let (scheduler, number) = self.terms.held(self.role).ok_or(NotLeader)?;
        let patience = (self.terms.life * STANDSTILL_LIVES).max(LEAST_STANDSTILL);
        self.terms
            .db
            .checked_tx(
                name,
                |tx| {
                    async move {
                        if schedulers::check(tx, self.role, scheduler, number, patience).await? {
                            return Ok(());
                        }
                        self.terms.lost(self.role, number);
                        Err(NotLeader.into())
                    }
                    .boxed()
                },
                work,
            )
            .await
            .context(name)
    }

    /// Runs a computation on a thread outside the async runtime's own threads. A dropped pass does
    /// not stop its computation. The job's next computation waits for its end, so that a job never
    /// occupies two threads.
    pub async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
        let turn = Arc::clone(&self.computing).lock_owned().await;
        let computed = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        computed.await.context("compute")
    }
}

/// The terms that one scheduler considers its own. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HeldTerms {
    db: Db,
    servers: Servers,
    url: Arc<str>,
    life: Duration,
    /// Lifetime of a session, including its grace period. When a scheduler takes the role reap, it
    /// extends every session by up to this time.
    lifetime: Duration,
    disk: Option<DiskWatch>,
    entry: Arc<Mutex<SchedulerEntry>>,
}

/// This process's row in the table of schedulers. Never locked across an await.
#[derive(Debug, Default)]
struct SchedulerEntry {
    scheduler: Option<SchedulerId>,
    held: HashMap<Role, TermNumber>,
}

impl HeldTerms {
    /// The terms of a scheduler that agents reach at `url`. The scheduler has no term before the
    /// first [`HeldTerms::renew`].
    pub fn new(scheduler: &Scheduler, url: &str) -> Self {
        let (term, lease) = (&scheduler.config.term, &scheduler.config.lease);
        Self {
            db: scheduler.db.clone(),
            servers: scheduler.servers.clone(),
            url: url.into(),
            life: term.life,
            lifetime: lease.life + lease.grace,
            disk: scheduler.disk.clone(),
            entry: Arc::default(),
        }
    }

    /// Gives the jobs of a role access to the database.
    pub fn on(&self, role: Role, scheduler: &Scheduler) -> Leader {
        Leader {
            role,
            terms: self.clone(),
            wakes: Arc::clone(&scheduler.wakes),
            maps: Arc::clone(&scheduler.maps),
            geoip: scheduler.geoip.clone(),
            config: Arc::clone(&scheduler.config),
            computing: Arc::default(),
        }
    }

    fn held(&self, role: Role) -> Option<(SchedulerId, TermNumber)> {
        let entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        Some((entry.scheduler?, *entry.held.get(&role)?))
    }

    fn lost(&self, role: Role, number: TermNumber) {
        let mut entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        if entry.held.get(&role) == Some(&number) {
            entry.held.remove(&role);
            tracing::warn!(role = role.name(), term = %number, "another scheduler may have taken over a role");
        }
    }

    /// Registers this process, so that it is listed before it answers its first request.
    pub async fn register(&self, conn: &mut PgConnection) -> Result<(), store::Error> {
        let space = self.disk.as_ref().and_then(DiskWatch::look);
        self.join(conn, None, space).await.map(drop)
    }

    /// Renews this process's row and takes every free role. Returns the roles that were just taken.
    pub async fn renew(&self, conn: &mut PgConnection) -> Result<Vec<Role>, store::Error> {
        let scheduler = self.entry.lock().unwrap_or_else(PoisonError::into_inner).scheduler;
        let space = self.disk.as_ref().and_then(DiskWatch::look);
        if let Some(by) = clock::set_back(conn).await? {
            let mut tx = Tx::on(conn).await?;
            clock::follow(&mut tx, self.lifetime).await?;
            tx.commit().await?;
            tracing::warn!(?by, "the database's clock was set back: nothing waits longer because of that");
        }
        let scheduler = match scheduler {
            Some(scheduler) if schedulers::renew(conn, scheduler, self.life, space).await? => scheduler,
            former => self.join(conn, former, space).await?,
        };
        let mut taken = Vec::new();
        for &role in Role::ALL {
            if self.held(role).is_some() {
                continue;
            }
            let mut tx = Tx::on(conn).await?;
            let Some(term) = schedulers::take(&mut tx, role, scheduler, self.lifetime).await? else { continue };
            tx.commit().await?;
            self.entry.lock().unwrap_or_else(PoisonError::into_inner).held.insert(role, term.number);
            tracing::info!(role = role.name(), term = %term.number, sessions = term.extended, "took a role");
            taken.push(role);
        }
        Ok(taken)
    }

    /// Registers this process, for the first time or again. Afterwards the process has no terms,
    /// because its earlier terms are lost.
    async fn join(
        &self,
        conn: &mut PgConnection,
        former: Option<SchedulerId>,
        space: Option<DiskSpace>,
    ) -> Result<SchedulerId, store::Error> {
        *self.entry.lock().unwrap_or_else(PoisonError::into_inner) = SchedulerEntry::default();
        let mut tx = Tx::on(conn).await?;
        if let Some(former) = former {
            schedulers::leave(&mut tx, former).await?;
            tracing::warn!("this scheduler did not renew its terms in time: other schedulers may take its roles");
        }
        schedulers::forget(&mut tx).await?;
        let scheduler = schedulers::join(&mut tx, &self.url, crate::VERSION, self.life, space).await?;
        tx.commit().await?;
        self.entry.lock().unwrap_or_else(PoisonError::into_inner).scheduler = Some(scheduler);
        Ok(scheduler)
    }

    /// Frees every role, after waiting for running passes.
    pub(super) async fn leave(&self, conn: &mut PgConnection) -> Result<(), store::Error> {
        let former = std::mem::take(&mut *self.entry.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(scheduler) = former.scheduler {
            let mut tx = Tx::on(conn).await?;
            schedulers::leave(&mut tx, scheduler).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    /// Renews and takes roles until `shutdown`, then frees them. Uses a separate connection, so
    /// that renewals do not queue behind the transactions of the roles.
    pub async fn keep(&self, wakes: &Wakes, shutdown: CancellationToken) {
        let mut connection = None;
        let mut failing = false;
        let keeping = async {
            loop {
                let kept = tokio::time::timeout(self.life, self.keep_once(&mut connection, wakes)).await;
                let problem = match kept {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(format!("{error:#}")),
                    Err(_) => Some(format!("no answer in {:?}", self.life)),
                };
                if let Some(problem) = &problem {
                    connection = None;
                    if !failing {
                        tracing::warn!(problem, "this scheduler's roles could not be renewed; retrying");
                    }
                }
                failing = problem.is_some();
                tokio::time::sleep(self.life / RENEWALS_PER_LIFE).await;
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = keeping => {}
        }
        let handing_over = async {
            // The old connection may still be executing a statement, so a new connection is opened.
            let mut conn = store::connect(&self.servers).await?;
            self.leave(&mut conn).await
        };
        match tokio::time::timeout(self.life, handing_over).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = %error, "roles could not be handed over; they expire instead"),
            Err(_) => tracing::warn!("roles could not be handed over in time; they expire instead"),
        }
    }

    async fn keep_once(&self, connection: &mut Option<PgConnection>, wakes: &Wakes) -> anyhow::Result<()> {
        let mut conn = match connection.take() {
            Some(conn) => conn,
            None => store::connect(&self.servers).await.context("connect")?,
        };
        let taken = self.renew(&mut conn).await?;
        let others = schedulers::others(&mut conn, &self.url).await.context("read who else is there")?;
        *connection = Some(conn);
        let held = Role::ALL.iter().copied().filter(|role| self.held(*role).is_some());
        wakes.set_peers(others, held);
        taken.into_iter().for_each(|role| wakes.wake_role(role));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use sqlx::{AssertSqlSafe, PgPool};

    use super::*;
    use crate::jobs::fixtures::Trial;

    const OVERDUE: &str = "update sessions set expires_at = now() - interval '1 second'";
    const SILENCE: &str = "update schedulers set expires_at = now() - interval '1 second'";
    const ACTIVE: &str = "select count(*) from sessions where state = 'active'";

    fn is_not_leader(pass: anyhow::Result<()>) -> bool {
        pass.is_err_and(|error| error.is::<NotLeader>())
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_a_killed_scheduler_did_another_does_once_its_term_ran_out(pool: PgPool) {
        let killed = Trial::new(pool.clone(), 1).await;
        let other = Trial::beside(&pool, Config::default());
        assert_eq!(other.renew().await, [], "everything is taken");
        killed.execute(OVERDUE).await;
        assert!(is_not_leader(other.try_pass("reap").await));
        assert_eq!(killed.count(ACTIVE).await, 1, "nothing was changed");

        killed.execute(SILENCE).await;
        assert_eq!(other.renew().await, Role::ALL);
        assert!(is_not_leader(killed.try_pass("reap").await), "it wakes up too late");
        assert!(is_not_leader(killed.try_pass("assign").await));
        other.reap().await;
        assert_eq!(killed.count(ACTIVE).await, 1, "a term that begins gives sessions their time back");
        killed.execute(OVERDUE).await;
        assert!(is_not_leader(killed.try_pass("reap").await), "it does not even ask");
        assert_eq!(killed.count(ACTIVE).await, 1);
        other.reap().await;
        assert_eq!(killed.count(ACTIVE).await, 0);

        assert_eq!(killed.renew().await, [], "it is among the others again, without a role");
        other.leave().await;
        assert_eq!(killed.renew().await, Role::ALL, "what is handed over is free at once");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn no_session_expires_for_the_time_the_database_was_away(pool: PgPool) {
        let trial = Trial::new(pool, 1).await;
        trial.execute(OVERDUE).await;
        trial.execute(SILENCE).await;
        assert!(is_not_leader(trial.try_pass("reap").await), "its own term ran out as well");
        assert_eq!(trial.renew().await, Role::ALL);
        trial.try_pass("reap").await.expect("a pass");
        assert_eq!(trial.count(ACTIVE).await, 1, "extended");
        trial.execute(OVERDUE).await;
        assert_eq!(trial.renew().await, []);
        trial.try_pass("reap").await.expect("a pass");
        assert_eq!(trial.count(ACTIVE).await, 0, "only once");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_clock_may_be_set_back_while_no_scheduler_runs(pool: PgPool) {
        let killed = Trial::new(pool.clone(), 1).await;
        for table in ["schedulers", "sessions"] {
            let back = format!(
                "update {table} set renewed_at = renewed_at + interval '1 day', expires_at = expires_at + interval '1 day'"
            );
            sqlx::raw_sql(AssertSqlSafe(back)).execute(&pool).await.expect("set the clock back");
        }
        let other = Trial::beside(&pool, Config::default());
        assert_eq!(other.renew().await, [], "everything is taken");
        let late = "select count(*) from (
                        select expires_at from schedulers union all select expires_at from sessions
                    ) waiting where expires_at > now() + interval '1 hour'";
        assert_eq!(killed.count(late).await, 0);
        killed.execute(SILENCE).await;
        assert_eq!(other.renew().await, Role::ALL);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_error_names_its_transaction_and_still_says_what_it_is(pool: PgPool) {
        let other = Trial::beside(&pool, Config::default()).on(Role::Reap);
        let lost = other.tx("nothing", |_| async { Ok(()) }.boxed()).await.expect_err("no term");
        assert!(lost.is::<NotLeader>(), "{lost:#}");
        let leader = Trial::new(pool, 0).await.on(Role::Reap);
        let failing = leader.tx("a name", |_| async { Err::<(), _>(store::Error::HalfRestored.into()) }.boxed());
        let failed = failing.await.expect_err("it fails");
        assert!(format!("{failed:#}").starts_with("a name: "), "{failed:#}");
        assert!(matches!(failed.downcast_ref(), Some(store::Error::HalfRestored)), "{failed:#}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_computation_of_a_dropped_pass_ends_before_the_next_begins(pool: PgPool) {
        let leader = Trial::new(pool, 0).await.on(Role::Fit);
        let ((begun, begins), (end, ends)) = (mpsc::channel(), mpsc::channel::<()>());
        let first = leader.compute(move || {
            begun.send(()).expect("a test that waits");
            ends.recv().expect("a test that ends it");
        });
        tokio::select! {
            biased;
            _ = first => unreachable!("nobody ended it"),
            begun = tokio::task::spawn_blocking(move || begins.recv()) => begun.expect("no panic").expect("it began"),
        }
        let mut second = std::pin::pin!(leader.compute(|| ()));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(Arc::clone(&leader.computing).try_lock_owned().is_err(), "the dropped pass still computes");
        end.send(()).expect("it still runs");
        second.await.expect("it runs next");
    }
}
