//! Tests every pair of endings of a lease that can be concurrent, in both orders. Also tests tasks
//! on which one transaction places a hold while another transaction ends the cause of the hold (a
//! confirmation, an open circuit).

use std::time::Duration;

use sqlx::{PgConnection, PgPool};

use crate::model::{SiteId, TaskId};
use crate::store::agents::drain_remove_and_tag;
use crate::store::batches::cancel_and_retry::{self, ChangeScope};
use crate::store::fixtures::{self, LeasedTask};
use crate::store::leases::outcomes::OutcomeAnswer;
use crate::store::leases::{self, preemptions};
use crate::store::sites::addresses::{self, PermitResult};
use crate::store::sites::open_circuits;
use crate::store::tasks::confirmations::{self, ConfirmationRequest};
use crate::store::tasks::holds::{self, HoldFilter};

const ADDRESS: &str = "192.0.2.7";
const DAY: Duration = Duration::from_secs(86_400);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseEnding {
    Outcome,
    HandBack,
    Pause,
    AddressFull,
    Preempt,
    Expiry,
    Removal,
    Cancel,
}

const ALL: [LeaseEnding; 8] = [
    LeaseEnding::Outcome,
    LeaseEnding::HandBack,
    LeaseEnding::Pause,
    LeaseEnding::AddressFull,
    LeaseEnding::Preempt,
    LeaseEnding::Expiry,
    LeaseEnding::Removal,
    LeaseEnding::Cancel,
];

/// Makes a preempted lease. If one of the endings is expiry, the lease's session has expired.
async fn lease(conn: &mut PgConnection, name: &str, ends: [LeaseEnding; 2]) -> LeasedTask {
    let lease = fixtures::leased(conn, name).await;
    let preempted = "insert into preemptions (task_id, token, agent_id, to_agent_id, here_ms, there_ms)
                    select task_id, token, agent_id, agent_id, 1000, 100 from leases where task_id = $1";
    fixtures::execute_for(conn, preempted, lease.task).await;
    if ends.contains(&LeaseEnding::Expiry) {
        let expire = "update sessions set state = 'expired', end_cause = 'expired', ended_at = now() where id = $1";
        fixtures::execute_for(conn, expire, lease.session).await;
    }
    lease
}

/// Ends a lease. Returns whether that changed anything. The agent and the batch are called `name`.
async fn end(conn: &mut PgConnection, lease: LeasedTask, name: &str, by: LeaseEnding) -> bool {
    let LeasedTask { agent, batch, task, .. } = lease;
    match by {
        LeaseEnding::Outcome => matches!(fixtures::complete(conn, agent, task).await, OutcomeAnswer::Accepted { .. }),
        LeaseEnding::HandBack => fixtures::hand_back(conn, agent, task).await,
        LeaseEnding::Pause => leases::pause(conn, agent, task, fixtures::TOKEN, DAY).await.expect("pause"),
        LeaseEnding::AddressFull => {
            let answer = addresses::permit(conn, &lease.permit_request(ADDRESS), 1).await.expect("permit");
            answer == PermitResult::Full { crawls: 1 }
        }
        LeaseEnding::Preempt => preemptions::release(conn, agent, task, fixtures::TOKEN).await.expect("release"),
        LeaseEnding::Expiry => fixtures::reap(conn).await == 1,
        LeaseEnding::Removal => {
            drain_remove_and_tag::remove(conn, name, true, fixtures::MAX_CRASHES).await.expect("remove").leases == 1
        }
        LeaseEnding::Cancel => {
            cancel_and_retry::cancel(conn, batch, name, &ChangeScope::All).await.expect("cancel").tasks == 1
        }
    }
}

/// The states of a task and its lease, and the task's hold.
async fn states(conn: &mut PgConnection, task: TaskId) -> (String, String, Option<String>) {
    sqlx::query_as(
        "select t.state::text, l.state::text, h.cause::text
         from tasks t join leases l on l.task_id = t.id left join task_holds h on h.task_id = t.id and t.held
         where t.id = $1",
    )
    .bind(task)
    .fetch_one(conn)
    .await
    .expect("read")
}

/// The states (as in [`states`]) after one ending.
const fn leaves(by: LeaseEnding) -> (&'static str, &'static str, Option<&'static str>) {
    match by {
        LeaseEnding::Outcome => ("done", "completed", None),
        LeaseEnding::HandBack => ("assigned", "released", None),
        LeaseEnding::Pause => ("located", "released", Some("pause")),
        LeaseEnding::AddressFull => ("located", "released", Some("address")),
        LeaseEnding::Preempt => ("located", "released", None),
        LeaseEnding::Expiry => ("assigned", "expired", None),
        LeaseEnding::Removal => ("located", "expired", None),
        LeaseEnding::Cancel => ("cancelled", "revoked", None),
    }
}

/// The states (as in [`states`]) after two endings. The first ending ends the lease. The second
/// ending may still end the task, or withdraw the task by removing its agent.
fn leave(first: LeaseEnding, second: LeaseEnding) -> (&'static str, &'static str, Option<&'static str>) {
    let (task, lease, hold) = leaves(first);
    match second {
        _ if matches!(first, LeaseEnding::Outcome | LeaseEnding::Cancel) => (task, lease, hold),
        LeaseEnding::Outcome => leaves(second),
        LeaseEnding::Cancel => ("cancelled", lease, None),
        LeaseEnding::Removal if task == "assigned" => ("located", lease, hold),
        _ => (task, lease, hold),
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn of_any_two_endings_of_a_lease_the_second_waits_and_finds_it_ended(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let occupant = fixtures::leased(&mut conn, "occupant").await.permit_request(ADDRESS);
    assert_eq!(addresses::permit(&mut conn, &occupant, 1).await.expect("permit"), PermitResult::Granted);
    let pairs = ALL.iter().flat_map(|first| ALL.iter().map(move |second| (*first, *second)));
    for (number, (first, second)) in pairs.enumerate() {
        let name = format!("a{number}");
        let lease = lease(&mut conn, &name, [first, second]).await;
        let mut ending = fixtures::begin(&pool).await;
        assert!(end(&mut ending, lease, &name, first).await, "{first:?} ends it");
        if (first, second) == (LeaseEnding::Removal, LeaseEnding::Removal) {
            ending.commit().await.expect("commit");
            assert!(!end(&mut conn, lease, &name, second).await);
        } else {
            let again = fixtures::behind(&pool, ending, async |conn| {
                // Uses a transaction, as sessions and background tasks do.
                let mut tx = sqlx::Connection::begin(conn).await.expect("begin");
                let again = end(&mut tx, lease, &name, second).await;
                tx.commit().await.expect("commit");
                again
            })
            .await;
            if first == LeaseEnding::Outcome && matches!(second, LeaseEnding::Expiry | LeaseEnding::Cancel) {
                assert!(!again, "{first:?}, then {second:?}: it counts nothing");
            }
        }
        let (task, state, hold) = states(&mut conn, lease.task).await;
        let found = (task.as_str(), state.as_str(), hold.as_deref());
        assert_eq!(found, leave(first, second), "{first:?}, then {second:?}");
        let left = "select count(*) from task_holds h join tasks t on t.id = h.task_id where not t.held";
        let left: i64 = sqlx::query_scalar(left).fetch_one(&mut *conn).await.expect("count");
        assert_eq!(left, 0, "{first:?}, then {second:?}");
    }
}

/// Makes a located task of a `gnp-confirmed` batch, with an open confirmation of its site.
async fn confirmed(conn: &mut PgConnection) -> (ConfirmationRequest, SiteId) {
    let batch = fixtures::batch(conn, "b", "gnp-confirmed").await;
    let site = fixtures::site(conn, "a.cn").await;
    let task = fixtures::task(conn, batch, site, "located").await;
    fixtures::execute_for(conn, "insert into confirmations (site_id, began_at) values ($1, now())", site).await;
    (ConfirmationRequest { task, site, patience: None }, site)
}

async fn held(conn: &mut PgConnection) -> i64 {
    let held = "select count(*) from tasks join task_holds on task_id = id where held";
    sqlx::query_scalar(held).fetch_one(conn).await.expect("count")
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_confirmation_that_ends_as_it_is_wanted_holds_nothing(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let (wanted, _) = confirmed(&mut conn).await;
    let mut ending = fixtures::begin(&pool).await;
    assert_eq!(confirmations::end(&mut ending, DAY).await.expect("end"), 1);
    let want = async |conn: &mut PgConnection| confirmations::want(conn, &[wanted], DAY).await.expect("want");
    fixtures::behind(&pool, ending, want).await;
    assert_eq!(held(&mut conn).await, 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn what_is_held_as_its_confirmation_ends_goes_on(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let (wanted, _) = confirmed(&mut conn).await;
    let mut wanting = fixtures::begin(&pool).await;
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
    fixtures::execute(&mut conn, "update confirmations set began_at = null").await;
    let mut wanting = fixtures::begin(&pool).await;
    confirmations::want(&mut wanting, &[wanted], DAY).await.expect("want");
    assert_eq!(confirmations::due(&mut conn, 10, 10).await.expect("look").looked_at, 0, "somebody is at it");
    wanting.commit().await.expect("commit");
    assert_eq!(confirmations::due(&mut conn, 10, 10).await.expect("look").sites, [site]);
    // A confirmation for which no task waits is deleted.
    assert_eq!(holds::release(&mut conn, HoldFilter::Confirming(&[site]), 10).await.expect("release").len(), 1);
    assert_eq!(confirmations::due(&mut conn, 10, 10).await.expect("look").sites, []);
    let left = sqlx::query_scalar::<_, i64>("select count(*) from confirmations").fetch_one(&mut *conn).await;
    assert_eq!(left.expect("count"), 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn what_is_held_for_a_circuit_as_it_is_closed_goes_on(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let (ConfirmationRequest { task, site, .. }, _) = confirmed(&mut conn).await;
    let agent = fixtures::agent(&mut conn, "a").await;
    open_circuits::open(&mut conn, &[(site, agent, "no answer")]).await.expect("open");
    let mut holding = fixtures::begin(&pool).await;
    assert_eq!(open_circuits::hold(&mut holding, &[task]).await.expect("hold"), [task]);
    let reopen = async |conn: &mut PgConnection| {
        let mut tx = sqlx::Connection::begin(conn).await.expect("begin");
        assert_eq!(open_circuits::reopen(&mut tx, None).await.expect("reopen"), (1, 1));
        tx.commit().await.expect("commit");
    };
    fixtures::behind(&pool, holding, reopen).await;
    assert_eq!(held(&mut conn).await, 0);

    open_circuits::open(&mut conn, &[(site, agent, "no answer")]).await.expect("open");
    let mut reopening = fixtures::begin(&pool).await;
    assert_eq!(open_circuits::reopen(&mut reopening, None).await.expect("reopen"), (1, 0));
    assert_eq!(
        open_circuits::hold(&mut conn, &[task]).await.expect("hold"),
        [],
        "it counts as closed, and is not waited for"
    );
    reopening.commit().await.expect("commit");
    assert_eq!(held(&mut conn).await, 0);
}
