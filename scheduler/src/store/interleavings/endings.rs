//! Every two endings of a lease that can meet, in either order; and holds that begin as what they wait for ends.

use std::time::Duration;

use chrono::DateTime;
use sqlx::{PgConnection, PgPool};

use crate::model::{AgentId, BatchId, LeaseToken, SessionId, SiteId, TaskId};
use crate::store::addresses::{self, Claim, Claimed};
use crate::store::batch_changes::{self, Extent};
use crate::store::confirmations::{self, Wanted};
use crate::store::holds::{self, Which};
use crate::store::outcomes::{Answer, Ending, Report};
use crate::store::{alarms, drains, fixtures, leases, recalls};

const ADDRESS: &str = "192.0.2.7";
const DAY: Duration = Duration::from_secs(86_400);

/// What may end a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Outcome,
    HandBack,
    Pause,
    AddressFull,
    Recall,
    Expiry,
    Removal,
    Cancel,
}

const ALL: [End; 8] =
    [End::Outcome, End::HandBack, End::Pause, End::AddressFull, End::Recall, End::Expiry, End::Removal, End::Cancel];

/// A lease of an agent of its own, in a batch of its own.
struct Lease {
    name: String,
    agent: AgentId,
    session: SessionId,
    batch: BatchId,
    task: TaskId,
}

const TOKEN: LeaseToken = LeaseToken::new(1);

impl Lease {
    async fn new(conn: &mut PgConnection, name: &str) -> Self {
        let agent = fixtures::agent(conn, name).await;
        let session = fixtures::session(conn, agent).await;
        let batch = fixtures::batch(conn, name, "random").await;
        let site = fixtures::site(conn, &format!("{name}.cn")).await;
        let task = fixtures::assigned(conn, batch, site, agent).await;
        assert_eq!(leases::grant(conn, agent, session).await.expect("grant").len(), 1);
        Self { name: name.to_owned(), agent, session, batch, task }
    }

    const fn claim(&self, address: std::net::IpAddr) -> Claim {
        Claim { agent: self.agent, session: self.session, task: self.task, token: TOKEN, address }
    }

    /// One that was asked for, and whose session has expired if that is to end it.
    async fn that_may_end(conn: &mut PgConnection, name: &str, ends: [End; 2]) -> Self {
        let lease = Self::new(conn, name).await;
        let recalled = "insert into recalls (task_id, token, agent_id, to_agent_id, here_ms, there_ms)
                        values ($1, 1, $2, $2, 1000, 100)";
        sqlx::query(recalled).bind(lease.task.get()).bind(lease.agent.get()).execute(&mut *conn).await.expect("recall");
        if ends.contains(&End::Expiry) {
            let expire = "update sessions set state = 'expired', end_cause = 'expired', ended_at = now() where id = $1";
            sqlx::query(expire).bind(lease.session.get()).execute(conn).await.expect("expire");
        }
        lease
    }

    /// Whether it did anything.
    async fn end(&self, conn: &mut PgConnection, by: End) -> bool {
        let Self { agent, task, .. } = *self;
        match by {
            End::Outcome => matches!(self.complete(conn).await, Answer::Accepted { .. }),
            End::HandBack => leases::release(conn, agent, task, TOKEN, None, 5).await.expect("release"),
            End::Pause => leases::pause(conn, agent, task, TOKEN, DAY).await.expect("pause"),
            End::AddressFull => {
                let claim = self.claim(ADDRESS.parse().expect("an address"));
                addresses::claim(conn, &claim, 1).await.expect("claim") == Claimed::Full { crawls: 1 }
            }
            End::Recall => recalls::release(conn, agent, task, TOKEN).await.expect("release"),
            End::Expiry => leases::release_of_ended_sessions(conn, 5).await.expect("release") == 1,
            End::Removal => drains::remove(conn, &self.name, true, 5).await.expect("remove").leases == 1,
            End::Cancel => {
                let cancelled = batch_changes::cancel(conn, self.batch, &self.name, &Extent::All).await;
                cancelled.expect("cancel").tasks == 1
            }
        }
    }

    async fn complete(&self, conn: &mut PgConnection) -> Answer {
        let report = Report {
            task: self.task,
            token: TOKEN,
            ending: Ending::Complete,
            pages: 1,
            bytes: 1,
            errors: 0,
            started_at: DateTime::UNIX_EPOCH,
            duration: Duration::from_secs(1),
            rtt: None,
            message: String::new(),
            refetched: 0,
            trapped: 0,
        };
        fixtures::record(conn, self.agent, &report).await.expect("record")
    }

    /// The states of its task and of itself, and what holds the task.
    async fn stands(&self, conn: &mut PgConnection) -> (String, String, Option<String>) {
        sqlx::query_as(
            "select t.state::text, l.state::text, h.cause::text
             from tasks t join leases l on l.task_id = t.id left join task_holds h on h.task_id = t.id and t.held
             where t.id = $1",
        )
        .bind(self.task.get())
        .fetch_one(conn)
        .await
        .expect("read")
    }
}

/// What an ending alone leaves behind.
const fn leaves(by: End) -> (&'static str, &'static str, Option<&'static str>) {
    match by {
        End::Outcome => ("done", "completed", None),
        End::HandBack => ("assigned", "released", None),
        End::Pause => ("located", "released", Some("pause")),
        End::AddressFull => ("located", "released", Some("address")),
        End::Recall => ("located", "released", None),
        End::Expiry => ("assigned", "expired", None),
        End::Removal => ("located", "expired", None),
        End::Cancel => ("cancelled", "revoked", None),
    }
}

/// What two leave behind: the lease ends by the first. The second ends the task if it is the end of that, and takes it from its agent
/// where that is removed.
fn leave(first: End, second: End) -> (&'static str, &'static str, Option<&'static str>) {
    let (task, lease, hold) = leaves(first);
    match second {
        _ if matches!(first, End::Outcome | End::Cancel) => (task, lease, hold),
        End::Outcome => leaves(second),
        End::Cancel => ("cancelled", lease, None),
        End::Removal if task == "assigned" => ("located", lease, hold),
        _ => (task, lease, hold),
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn of_any_two_endings_of_a_lease_the_second_waits_and_finds_it_ended(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let occupant = Lease::new(&mut conn, "occupant").await.claim(ADDRESS.parse().expect("an address"));
    assert_eq!(addresses::claim(&mut conn, &occupant, 1).await.expect("claim"), Claimed::Granted);
    let pairs = ALL.iter().flat_map(|first| ALL.iter().map(move |second| (*first, *second)));
    for (number, (first, second)) in pairs.enumerate() {
        let lease = Lease::that_may_end(&mut conn, &format!("a{number}"), [first, second]).await;
        let mut ending = super::super::begin(&pool).await.expect("begin");
        assert!(lease.end(&mut ending, first).await, "{first:?} ends it");
        if (first, second) == (End::Removal, End::Removal) {
            ending.commit().await.expect("commit");
            assert!(!lease.end(&mut conn, second).await);
        } else {
            fixtures::behind(&pool, ending, async |conn| {
                // As the session and the tasks do it: in a transaction.
                let mut tx = sqlx::Connection::begin(conn).await.expect("begin");
                lease.end(&mut tx, second).await;
                tx.commit().await.expect("commit");
            })
            .await;
        }
        let (task, state, hold) = lease.stands(&mut conn).await;
        assert_eq!(
            (task.as_str(), state.as_str(), hold.as_deref()),
            leave(first, second),
            "{first:?}, then {second:?}"
        );
        let left = "select count(*) from task_holds h join tasks t on t.id = h.task_id where not t.held";
        let left: i64 = sqlx::query_scalar(left).fetch_one(&mut *conn).await.expect("count");
        assert_eq!(left, 0, "{first:?}, then {second:?}");
    }
}

/// A located task of a `gnp-confirmed` batch, and a confirmation of its site that is under way.
async fn confirmed(conn: &mut PgConnection) -> (Wanted, SiteId) {
    let batch = fixtures::batch(conn, "b", "gnp-confirmed").await;
    let site = fixtures::site(conn, "a.cn").await;
    let task = fixtures::task(conn, batch, site, "located").await;
    sqlx::query("insert into confirmations (site_id, began_at) values ($1, now())")
        .bind(site.get())
        .execute(conn)
        .await
        .expect("begin to confirm");
    (Wanted { task, site, patience: None }, site)
}

async fn held(conn: &mut PgConnection) -> i64 {
    let held = "select count(*) from tasks join task_holds on task_id = id where held";
    sqlx::query_scalar(held).fetch_one(conn).await.expect("count")
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_confirmation_that_ends_as_it_is_wanted_holds_nothing(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let (wanted, _) = confirmed(&mut conn).await;
    let mut ending = super::super::begin(&pool).await.expect("begin");
    assert_eq!(confirmations::end(&mut ending, DAY).await.expect("end"), 1);
    let want = async |conn: &mut PgConnection| confirmations::want(conn, &[wanted], DAY).await.expect("want");
    fixtures::behind(&pool, ending, want).await;
    assert_eq!(held(&mut conn).await, 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn what_is_held_as_its_confirmation_ends_goes_on(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let (wanted, _) = confirmed(&mut conn).await;
    let mut wanting = super::super::begin(&pool).await.expect("begin");
    confirmations::want(&mut wanting, &[wanted], DAY).await.expect("want");
    assert_eq!(held(&mut wanting).await, 1);
    let end = async |conn: &mut PgConnection| {
        let mut tx = sqlx::Connection::begin(conn).await.expect("begin");
        assert_eq!(confirmations::end(&mut tx, DAY).await.expect("end"), 1);
        tx.commit().await.expect("commit");
    };
    fixtures::behind(&pool, wanting, end).await;
    assert_eq!(held(&mut conn).await, 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_confirmation_that_is_wanted_as_it_is_looked_at_is_not_forgotten(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let (wanted, site) = confirmed(&mut conn).await;
    sqlx::query("update confirmations set began_at = null").execute(&mut *conn).await.expect("not begun");
    let mut wanting = super::super::begin(&pool).await.expect("begin");
    confirmations::want(&mut wanting, &[wanted], DAY).await.expect("want");
    assert_eq!(confirmations::due(&mut conn, 10, 10).await.expect("look").looked_at, 0, "somebody is at it");
    wanting.commit().await.expect("commit");
    assert_eq!(confirmations::due(&mut conn, 10, 10).await.expect("look").sites, [site]);
    // And once nobody waits for it any more, it is.
    assert_eq!(holds::release(&mut conn, Which::Confirming(&[site]), 10).await.expect("release").len(), 1);
    assert_eq!(confirmations::due(&mut conn, 10, 10).await.expect("look").sites, []);
    let left = sqlx::query_scalar::<_, i64>("select count(*) from confirmations").fetch_one(&mut *conn).await;
    assert_eq!(left.expect("count"), 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn what_is_held_for_a_circuit_as_it_is_closed_goes_on(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let (Wanted { task, site, .. }, _) = confirmed(&mut conn).await;
    let agent = fixtures::agent(&mut conn, "a").await;
    alarms::raise(&mut conn, &[(site, agent, "no answer")]).await.expect("raise");
    let mut holding = super::super::begin(&pool).await.expect("begin");
    assert_eq!(alarms::hold(&mut holding, &[task]).await.expect("hold"), [task]);
    let reopen = async |conn: &mut PgConnection| {
        let mut tx = sqlx::Connection::begin(conn).await.expect("begin");
        assert_eq!(alarms::reopen(&mut tx, None).await.expect("reopen"), (1, 1));
        tx.commit().await.expect("commit");
    };
    fixtures::behind(&pool, holding, reopen).await;
    assert_eq!(held(&mut conn).await, 0);

    alarms::raise(&mut conn, &[(site, agent, "no answer")]).await.expect("raise");
    let mut reopening = super::super::begin(&pool).await.expect("begin");
    assert_eq!(alarms::reopen(&mut reopening, None).await.expect("reopen"), (1, 0));
    assert_eq!(alarms::hold(&mut conn, &[task]).await.expect("hold"), [], "it counts as closed, and is not waited for");
    reopening.commit().await.expect("commit");
    assert_eq!(held(&mut conn).await, 0);
}
