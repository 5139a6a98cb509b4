//! Tests pairs of concurrent transactions on leases, sessions, holds and endings, in both orders.
//! The second transaction must wait for the first one and then see its changes.
//!
//! Locks enforce the order: the first transaction commits only when Postgres reports that the
//! second one waits for it.
//!
//! Also tests tasks on which one transaction places a hold while another transaction ends the cause
//! of the hold (a confirmation, an open circuit).

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};

use crate::model::{AgentId, BatchId, ChoiceReasons, OrderId, Rtt, SessionId, SiteId, Strategy, TaskId};
use crate::store::Tx;
use crate::store::agents::drain_remove_and_tag;
use crate::store::agents::sessions::{self, OpenError, Registration};
use crate::store::assignments::{self, Assignment, UnassignScope, waiting_tasks};
use crate::store::batches::cancel_and_retry;
use crate::store::fixtures::{self, LeasedTask};
use crate::store::leases::outcomes::OutcomeAnswer;
use crate::store::leases::{self, preemptions};
use crate::store::measurements::quarantines_and_contradictions::{self, CrawlRtt};
use crate::store::measurements::{self, MeasurementReport, ReportTarget};
use crate::store::sites::addresses::{self, PermitResult};
use crate::store::sites::{names_and_origins, open_circuits};
use crate::store::tasks::confirmations::{self, ConfirmationRequest};
use crate::store::tasks::holds::{self, HoldFilter};
use crate::strategy::Choice;

/// An agent with two slots and some assigned tasks.
struct Scene {
    pool: PgPool,
    agent: AgentId,
    session: SessionId,
    batch: BatchId,
    tasks: Vec<TaskId>,
}

impl Scene {
    async fn new(pool: PgPool, tasks: usize) -> Self {
        let mut conn = pool.acquire().await.expect("connect");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let tasks = fixtures::queue(&mut conn, batch, agent, &["s0.cn", "s1.cn", "s2.cn"][..tasks]).await;
        Self { pool, agent, session, batch, tasks }
    }

    /// Makes a scene whose first task is leased.
    async fn leased(pool: PgPool) -> Self {
        let scene = Self::new(pool, 1).await;
        assert_eq!(scene.grant(&mut *scene.conn().await).await, 1);
        scene
    }

    async fn conn(&self) -> PoolConnection<Postgres> {
        self.pool.acquire().await.expect("connect")
    }

    async fn begin(&self) -> Tx<'static> {
        fixtures::begin(&self.pool).await
    }

    async fn grant(&self, conn: &mut PgConnection) -> usize {
        fixtures::grant(conn, self.agent, self.session).await.len()
    }

    async fn complete(&self, conn: &mut PgConnection) -> OutcomeAnswer {
        fixtures::complete(conn, self.agent, self.tasks[0]).await
    }

    async fn cancel(&self, tx: &mut Tx<'_>) -> cancel_and_retry::CancelResult {
        let all = ["s0.cn", "s1.cn", "s2.cn"].map(|name| name.parse().expect("a name"));
        cancel_and_retry::cancel(tx, self.batch, "b", &all[..self.tasks.len()]).await.expect("cancel")
    }

    /// Opens a new session, in which the agent reports the lease of the first task as held.
    async fn reopen(&self, conn: &mut PgConnection) -> Result<sessions::OpenedSession, OpenError> {
        let held = vec![(self.tasks[0], fixtures::TOKEN)];
        let registration = Registration { held, ..fixtures::registration() };
        fixtures::open_session(conn, self.agent, &registration).await
    }

    async fn overdue(&self) {
        fixtures::overdue(&mut *self.conn().await).await;
    }

    /// Marks the session as expired without releasing its leases.
    async fn expired(&self) {
        self.overdue().await;
        assert_eq!(sessions::expire_due(&mut *self.conn().await).await.expect("expire"), [self.agent]);
    }

    async fn task(&self) -> String {
        fixtures::state(&mut *self.conn().await, self.tasks[0]).await
    }

    async fn lease(&self) -> String {
        fixtures::scalar(&mut *self.conn().await, "select state::text from leases where token = 1").await
    }

    async fn behind<T>(&self, first: Tx<'static>, second: impl AsyncFnOnce(&mut Tx<'_>) -> T) -> T {
        fixtures::behind(&self.pool, first, second).await
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_heartbeat_that_comes_while_its_session_expires_is_late(pool: PgPool) {
    let scene = Scene::leased(pool).await;
    scene.overdue().await;
    let mut reaper = scene.begin().await;
    assert_eq!(sessions::expire_due(&mut reaper).await.expect("expire"), [scene.agent]);
    assert!(!scene.behind(reaper, async |tx| fixtures::renew(tx, scene.session).await).await);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_session_that_is_renewed_while_the_reaper_looks_lives(pool: PgPool) {
    let scene = Scene::leased(pool).await;
    scene.overdue().await;
    let mut heartbeat = scene.begin().await;
    assert!(fixtures::renew(&mut heartbeat, scene.session).await);
    let mut conn = scene.conn().await;
    assert_eq!(sessions::expire_due(&mut conn).await.expect("expire"), [], "it does not wait");
    heartbeat.commit().await.expect("commit");
    assert_eq!(sessions::expire_due(&mut conn).await.expect("expire"), []);
    assert_eq!(fixtures::reap(&mut conn).await, 0);
    assert_eq!(scene.lease().await, "active");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn what_is_granted_while_the_session_expires_goes_back(pool: PgPool) {
    let scene = Scene::new(pool, 1).await;
    scene.overdue().await;
    let mut granting = scene.begin().await;
    assert_eq!(scene.grant(&mut granting).await, 1);
    let mut conn = scene.conn().await;
    assert_eq!(sessions::expire_due(&mut conn).await.expect("expire"), [], "it does not wait");
    granting.commit().await.expect("commit");
    assert_eq!(sessions::expire_due(&mut conn).await.expect("expire"), [scene.agent]);
    assert_eq!(fixtures::reap(&mut conn).await, 1);
    assert_eq!((scene.task().await, scene.lease().await), ("assigned".into(), "expired".into()));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn nothing_is_granted_to_a_session_that_expires_meanwhile(pool: PgPool) {
    let scene = Scene::new(pool, 1).await;
    scene.overdue().await;
    let mut reaper = scene.begin().await;
    assert_eq!(sessions::expire_due(&mut reaper).await.expect("expire"), [scene.agent]);
    assert_eq!(scene.behind(reaper, async |tx| scene.grant(tx).await).await, 0);
    assert_eq!(scene.task().await, "assigned");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_lease_that_its_agent_takes_along_is_not_reaped(pool: PgPool) {
    let scene = Scene::leased(pool).await;
    scene.expired().await;
    let mut returning = scene.begin().await;
    let opened = scene.reopen(&mut returning).await.expect("open");
    assert_eq!(opened.kept, [(scene.tasks[0], fixtures::TOKEN)]);
    assert_eq!(scene.behind(returning, async |tx| fixtures::reap(tx).await).await, 0);
    assert_eq!((scene.task().await, scene.lease().await), ("leased".into(), "active".into()));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_lease_that_was_reaped_is_not_taken_along(pool: PgPool) {
    let scene = Scene::leased(pool).await;
    scene.expired().await;
    let mut reaper = scene.begin().await;
    assert_eq!(fixtures::reap(&mut reaper).await, 1);
    let opened = scene.behind(reaper, async |tx| scene.reopen(tx).await).await.expect("open");
    assert_eq!(opened.kept, []);
    assert_eq!((scene.task().await, scene.lease().await), ("assigned".into(), "expired".into()));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn what_is_granted_while_it_is_cancelled_is_revoked(pool: PgPool) {
    let scene = Scene::new(pool, 1).await;
    let mut granting = scene.begin().await;
    assert_eq!(scene.grant(&mut granting).await, 1);
    let cancelled = scene.behind(granting, async |tx| scene.cancel(tx).await).await;
    assert_eq!((cancelled.tasks, cancelled.leases), (1, 1));
    assert_eq!((scene.task().await, scene.lease().await), ("cancelled".into(), "revoked".into()));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn nothing_is_granted_of_what_is_being_cancelled(pool: PgPool) {
    let scene = Scene::new(pool, 1).await;
    let mut cancelling = scene.begin().await;
    assert_eq!(scene.cancel(&mut cancelling).await.tasks, 1);
    assert_eq!(scene.grant(&mut *scene.conn().await).await, 0, "it does not even wait");
    cancelling.commit().await.expect("commit");
    assert_eq!(scene.grant(&mut *scene.conn().await).await, 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_drain_counts_what_is_being_granted(pool: PgPool) {
    let scene = Scene::new(pool, 3).await;
    let mut granting = scene.begin().await;
    assert_eq!(scene.grant(&mut granting).await, 2);
    let drained = scene.behind(granting, async |tx| drain_remove_and_tag::drain(tx, "a").await).await.expect("drain");
    assert_eq!((drained.leases, drained.withdrawn), (2, 1));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn nothing_is_granted_to_an_agent_that_is_being_drained(pool: PgPool) {
    let scene = Scene::new(pool, 1).await;
    let mut draining = scene.begin().await;
    assert_eq!(drain_remove_and_tag::drain(&mut draining, "a").await.expect("drain").withdrawn, 1);
    assert_eq!(scene.behind(draining, async |tx| scene.grant(tx).await).await, 0);
    assert_eq!(scene.task().await, "located");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_agent_that_is_being_removed_cannot_connect(pool: PgPool) {
    let scene = Scene::leased(pool).await;
    let mut removing = scene.begin().await;
    assert_eq!(
        drain_remove_and_tag::remove(&mut removing, "a", true, fixtures::MAX_CRASHES).await.expect("remove").leases,
        1
    );
    let opened = scene.behind(removing, async |tx| scene.reopen(tx).await).await;
    assert!(matches!(opened, Err(OpenError::Removed)));
    assert_eq!((scene.task().await, scene.lease().await), ("located".into(), "expired".into()));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn two_grants_at_once_share_the_agents_slots(pool: PgPool) {
    let scene = Scene::new(pool, 3).await;
    let mut granting = scene.begin().await;
    assert_eq!(scene.grant(&mut granting).await, 2);
    assert_eq!(scene.behind(granting, async |tx| scene.grant(tx).await).await, 0, "both slots are taken");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn two_agents_granted_one_site_at_once_do_not_both_get_it(pool: PgPool) {
    let scene = Scene::new(pool, 1).await;
    let mut conn = scene.conn().await;
    let (other, session) = fixtures::crawler(&mut conn, "other").await;
    let batch = fixtures::batch(&mut conn, "second", "random").await;
    let site: i64 = fixtures::scalar(&mut conn, "select id from sites").await;
    let task = fixtures::assigned(&mut conn, batch, SiteId::new(site), other).await;
    let mut granting = scene.begin().await;
    assert_eq!(scene.grant(&mut granting).await, 1);
    let grant = async |tx: &mut Tx<'_>| fixtures::grant(tx, other, session).await.len();
    assert_eq!(scene.behind(granting, grant).await, 0);
    assert_eq!(fixtures::state(&mut conn, task).await, "assigned", "it waits its turn");
    scene.complete(&mut conn).await;
    assert_eq!(fixtures::grant(&mut conn, other, session).await.len(), 1);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_outcome_whose_answer_was_lost_is_offered_again_and_counts_once(pool: PgPool) {
    let scene = Scene::leased(pool).await;
    let mut recording = scene.begin().await;
    assert!(matches!(scene.complete(&mut recording).await, OutcomeAnswer::Accepted { .. }));
    // The agent stopped waiting for the answer. It reports again on another connection before the
    // first report's transaction commits.
    let mut conn = scene.conn().await;
    assert_eq!(scene.complete(&mut conn).await, OutcomeAnswer::Busy, "it does not wait");
    recording.commit().await.expect("commit");
    assert_eq!(scene.complete(&mut conn).await, OutcomeAnswer::Duplicate);
    assert_eq!(scene.task().await, "done");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_outcome_and_a_measurement_of_one_site_do_not_deadlock(pool: PgPool) {
    const ORIGIN: &str = "https://www.a.cn:443";
    let mut conn = pool.acquire().await.expect("connect");
    let keeper = fixtures::site(&mut conn, "www.a.cn").await;
    fixtures::tx(&mut conn, async |tx| names_and_origins::settle(tx, keeper, ORIGIN).await).await.expect("settle");
    // The agent hands the lease back and then reports an outcome, so the task is open meanwhile.
    let LeasedTask { agent, site, task, .. } = fixtures::leased(&mut conn, "a").await;
    assert!(fixtures::hand_back(&mut conn, agent, task).await);
    fixtures::execute(&mut conn, "update sites set contradictions = 1").await;
    fixtures::execute(&mut conn, "update assignments set measured_us = array[1000]").await;

    let mut recording = fixtures::begin(&pool).await;
    assert!(matches!(fixtures::complete(&mut recording, agent, task).await, OutcomeAnswer::Accepted { .. }));
    let note = async |tx: &mut Tx<'_>| {
        let rtt = Rtt::try_new(Duration::from_millis(900)).expect("a round trip");
        let noted = quarantines_and_contradictions::note(tx, &[CrawlRtt { agent, site, task, rtt }]).await;
        assert_eq!(noted.expect("no deadlock"), []);
    };
    // The measurement locks the site and then waits for the task.
    let measure = async |tx: &mut Tx<'_>| names_and_origins::settle(tx, site, ORIGIN).await.expect("no deadlock");
    assert_eq!(fixtures::behind_what_goes_on(&pool, recording, note, measure).await, keeper);
    assert_eq!(fixtures::state(&mut conn, task).await, "done");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_measurement_and_a_crawl_that_settle_one_site_do_not_deadlock(pool: PgPool) {
    const ORIGIN: &str = "https://www.a.cn:443";
    let mut conn = pool.acquire().await.expect("connect");
    let (prober, _) = fixtures::crawler(&mut conn, "a").await;
    let (keeper, site) = (fixtures::site(&mut conn, "www.a.cn").await, fixtures::site(&mut conn, "a.cn").await);
    let order = "insert into measurement_orders (prober_id, site_id, expires_at)
                 select a.id, s.id, now() + interval '1 hour' from agents a, sites s where s.name = 'a.cn' returning id";
    let order = OrderId::new(fixtures::scalar(&mut conn, order).await);
    let address = Some("192.0.2.7".parse().expect("an address"));
    let refused = MeasurementReport::from(Err("connection refused".into()));
    let report = MeasurementReport { origin: Some(ORIGIN.to_owned()), address, ..refused };

    // The crawl's transaction locks the origin, and later the site and its order.
    let mut settling = fixtures::begin(&pool).await;
    names_and_origins::settle(&mut settling, keeper, ORIGIN).await.expect("settle");
    let goes_on = async |tx: &mut Tx<'_>| {
        assert_eq!(names_and_origins::settle(tx, site, ORIGIN).await.expect("no deadlock"), keeper);
    };
    let record = async |tx: &mut Tx<'_>| measurements::record(tx, prober, order, &report).await.expect("no deadlock");
    let recorded = fixtures::behind_what_goes_on(&pool, settling, goes_on, record).await;
    assert_eq!(recorded, ReportTarget::Unknown, "a site that became an alias needs no measurement");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_cancellation_and_a_retry_of_the_same_sites_do_not_deadlock(pool: PgPool) {
    let scene = Scene::new(pool, 2).await;
    let failed = "update tasks set state = 'failed', reason = '', recrawl_at = now() + interval '1 hour' where id = $1";
    fixtures::execute_for(&mut *scene.conn().await, failed, scene.tasks[1]).await;
    // The retry has locked the first of its tasks.
    let mut retrying = scene.begin().await;
    fixtures::lock(&mut retrying, &scene.tasks[..1]).await;
    let goes_on = async |tx: &mut Tx<'_>| {
        let named = ["s0.cn", "s1.cn"].map(|name| name.parse().expect("a name"));
        assert_eq!(cancel_and_retry::retry(tx, scene.batch, "b", &named).await.expect("no deadlock").tasks, 1);
    };
    let cancel = async |tx: &mut Tx<'_>| scene.cancel(tx).await.tasks;
    assert_eq!(fixtures::behind_what_goes_on(&scene.pool, retrying, goes_on, cancel).await, 2, "the new round, too");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_retry_made_twice_at_once_is_made_once(pool: PgPool) {
    let scene = Scene::new(pool, 1).await;
    sqlx::query("update tasks set state = 'failed', reason = 'unreachable'")
        .execute(&scene.pool)
        .await
        .expect("fail it");
    let retry = async |tx: &mut Tx<'_>| {
        let named = ["s0.cn".parse().expect("a name")];
        cancel_and_retry::retry(tx, scene.batch, "b", &named).await.expect("retry").tasks
    };
    let mut retrying = scene.begin().await;
    assert_eq!(retry(&mut retrying).await, 1);
    assert_eq!(scene.behind(retrying, retry).await, 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn two_sessions_of_an_agent_opened_at_once_leave_the_newer_one(pool: PgPool) {
    let scene = Scene::leased(pool).await;
    let mut opening = scene.begin().await;
    let first = scene.reopen(&mut opening).await.expect("open");
    let second = scene.behind(opening, async |tx| scene.reopen(tx).await).await.expect("open");
    assert!(second.incarnation > first.incarnation);
    assert_eq!(second.kept, first.kept, "the lease is bound to the newest");
    let active: Vec<i64> = sqlx::query_scalar("select id from sessions where state = 'active'")
        .fetch_all(&scene.pool)
        .await
        .expect("read the sessions");
    assert_eq!(active, [second.session.get()]);
}

/// Makes another agent, and reads the scene's first task, which waits at the first agent.
async fn rebalanced(scene: &Scene) -> (AgentId, SessionId, waiting_tasks::QueuedTask) {
    let mut conn = scene.conn().await;
    let (other, session) = fixtures::crawler(&mut conn, "b").await;
    let waiting =
        waiting_tasks::waiting_at(&mut conn, &[scene.agent], 10).await.expect("look").pop().expect("it waits");
    (other, session, waiting)
}

/// Tries to move the task to this agent. Returns whether it was moved.
async fn rebalance(conn: &mut PgConnection, waiting: &waiting_tasks::QueuedTask, agent: AgentId) -> bool {
    fixtures::tx(conn, async |tx| {
        let held = waiting_tasks::hold_on(tx, &[waiting]).await.expect("hold on");
        let choice = Choice { agent, candidates: Vec::new(), strategy: Strategy::Random, fallback: None };
        let moved = held.iter().map(|task| (*task, Assignment::new(1, choice.clone(), ChoiceReasons::default())));
        assignments::insert(tx, &moved.collect::<Vec<_>>()).await.expect("rebalance");
        !held.is_empty()
    })
    .await
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_task_that_is_being_granted_is_not_rebalanced(pool: PgPool) {
    let scene = Scene::new(pool, 1).await;
    let (other, _, waiting) = rebalanced(&scene).await;
    let mut granting = scene.begin().await;
    assert_eq!(scene.grant(&mut granting).await, 1);
    let mut conn = scene.conn().await;
    assert!(!rebalance(&mut conn, &waiting, other).await, "it does not wait");
    granting.commit().await.expect("commit");
    assert!(!rebalance(&mut conn, &waiting, other).await, "it has begun");
    assert_eq!((scene.task().await.as_str(), scene.lease().await.as_str()), ("leased", "active"));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_task_that_is_being_rebalanced_is_granted_to_the_other_alone(pool: PgPool) {
    let scene = Scene::new(pool, 1).await;
    let (other, session, waiting) = rebalanced(&scene).await;
    let mut passing = scene.begin().await;
    assert!(rebalance(&mut passing, &waiting, other).await);
    let mut conn = scene.conn().await;
    assert_eq!(scene.grant(&mut conn).await, 0, "somebody is at it, and the agent's session does not wait");
    assert!(fixtures::grant(&mut conn, other, session).await.is_empty(), "nor does the other's");
    passing.commit().await.expect("commit");
    assert_eq!(scene.grant(&mut conn).await, 0);
    assert_eq!(fixtures::grant(&mut conn, other, session).await.len(), 1);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_task_that_is_withdrawn_meanwhile_is_not_rebalanced(pool: PgPool) {
    let scene = Scene::new(pool, 1).await;
    let (other, _, waiting) = rebalanced(&scene).await;
    let mut draining = scene.begin().await;
    assert_eq!(drain_remove_and_tag::drain(&mut draining, "a").await.expect("drain").withdrawn, 1);
    let mut conn = scene.conn().await;
    assert!(!rebalance(&mut conn, &waiting, other).await);
    draining.commit().await.expect("commit");
    assert!(!rebalance(&mut conn, &waiting, other).await);
    assert_eq!(scene.task().await, "located");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn two_schedulers_pass_a_task_on_once(pool: PgPool) {
    let scene = Scene::new(pool, 1).await;
    let (other, _, waiting) = rebalanced(&scene).await;
    let mut one = scene.begin().await;
    assert!(rebalance(&mut one, &waiting, other).await);
    let mut conn = scene.conn().await;
    assert!(!rebalance(&mut conn, &waiting, other).await);
    one.commit().await.expect("commit");
    assert!(!rebalance(&mut conn, &waiting, other).await, "by that assignment no more");
}

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
    fixtures::tx(conn, async |tx| end_in(tx, lease, name, by).await).await
}

async fn end_in(tx: &mut Tx<'_>, lease: LeasedTask, name: &str, by: LeaseEnding) -> bool {
    let LeasedTask { agent, batch, task, .. } = lease;
    match by {
        LeaseEnding::Outcome => matches!(fixtures::complete(tx, agent, task).await, OutcomeAnswer::Accepted { .. }),
        LeaseEnding::HandBack => fixtures::hand_back(tx, agent, task).await,
        LeaseEnding::Pause => leases::pause(tx, agent, task, fixtures::TOKEN, DAY).await.expect("pause"),
        LeaseEnding::AddressFull => {
            let answer = addresses::permit(tx, &lease.permit_request(ADDRESS), 1).await.expect("permit");
            answer == PermitResult::Full { crawls: 1 }
        }
        LeaseEnding::Preempt => preemptions::release(tx, agent, task, fixtures::TOKEN).await.expect("release"),
        LeaseEnding::Expiry => fixtures::reap(tx).await == 1,
        LeaseEnding::Removal => {
            drain_remove_and_tag::remove(tx, name, true, fixtures::MAX_CRASHES).await.expect("remove").leases == 1
        }
        LeaseEnding::Cancel => {
            let site = format!("{name}.cn").parse().expect("a name");
            cancel_and_retry::cancel(tx, batch, name, &[site]).await.expect("cancel").tasks == 1
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
async fn of_any_two_endings_of_a_lease_the_second_finds_it_ended_and_some_do_not_wait_for_the_first(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let occupant = fixtures::leased(&mut conn, "occupant").await.permit_request(ADDRESS);
    let permit = fixtures::tx(&mut conn, async |tx| addresses::permit(tx, &occupant, 1).await).await;
    assert_eq!(permit.expect("permit"), PermitResult::Granted);
    let pairs = ALL.iter().flat_map(|first| ALL.iter().map(move |second| (*first, *second)));
    for (number, (first, second)) in pairs.enumerate() {
        let name = format!("a{number}");
        let lease = lease(&mut conn, &name, [first, second]).await;
        let mut ending = fixtures::begin(&pool).await;
        assert!(end(&mut ending, lease, &name, first).await, "{first:?} ends it");
        if (first, second) == (LeaseEnding::Removal, LeaseEnding::Removal) {
            ending.commit().await.expect("commit");
            assert!(!end(&mut conn, lease, &name, second).await);
        } else if matches!(second, LeaseEnding::Outcome | LeaseEnding::Expiry | LeaseEnding::Removal) {
            // These do not wait for the lock of a task. They are repeated: the outcome by the session,
            // the others by jobs.
            let early = end(&mut conn, lease, &name, second).await;
            assert_eq!(early, second == LeaseEnding::Removal, "{first:?}, then {second:?}: only an agent is removed");
            ending.commit().await.expect("commit");
            if second == LeaseEnding::Removal {
                fixtures::reap(&mut conn).await;
                let unavailable = UnassignScope::Unavailable(Duration::ZERO);
                let unassign = async |tx: &mut Tx<'_>| assignments::unassign(tx, unavailable, 10).await;
                fixtures::tx(&mut conn, unassign).await.expect("withdraw");
            } else {
                end(&mut conn, lease, &name, second).await;
            }
        } else {
            let again = fixtures::behind(&pool, ending, async |tx| end(tx, lease, &name, second).await).await;
            // A removal counts the leases that were active when it began.
            if matches!(first, LeaseEnding::Outcome | LeaseEnding::Cancel) && second != LeaseEnding::Removal {
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

async fn want(tx: &mut Tx<'_>, ConfirmationRequest { task, site, patience }: ConfirmationRequest) {
    let task = fixtures::lock(tx, &[task]).await[0];
    confirmations::want(tx, &[ConfirmationRequest { task, site, patience }], DAY).await.expect("want");
}

async fn hold_broken(conn: &mut PgConnection, task: TaskId) -> Vec<TaskId> {
    fixtures::tx(conn, async |tx| {
        let locked = fixtures::lock(tx, &[task]).await;
        open_circuits::hold(tx, &locked).await.expect("hold")
    })
    .await
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
    fixtures::behind(&pool, ending, async |tx| want(tx, wanted).await).await;
    assert_eq!(held(&mut conn).await, 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn what_is_held_as_its_confirmation_ends_goes_on(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let (wanted, _) = confirmed(&mut conn).await;
    let mut wanting = fixtures::begin(&pool).await;
    want(&mut wanting, wanted).await;
    assert_eq!(held(&mut wanting).await, 1);
    let end = async |tx: &mut Tx<'_>| confirmations::end(tx, DAY).await.expect("end");
    assert_eq!(fixtures::behind(&pool, wanting, end).await, 1);
    assert_eq!(held(&mut conn).await, 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_confirmation_that_is_wanted_as_it_is_looked_at_is_not_forgotten(pool: PgPool) {
    let mut conn = pool.acquire().await.expect("connect");
    let (wanted, site) = confirmed(&mut conn).await;
    fixtures::execute(&mut conn, "update confirmations set began_at = null").await;
    let mut wanting = fixtures::begin(&pool).await;
    want(&mut wanting, wanted).await;
    let due = async |conn: &mut PgConnection| {
        fixtures::tx(conn, async |tx| confirmations::due(tx, 10, 10).await.expect("look")).await
    };
    assert_eq!(due(&mut conn).await.looked_at, 0, "somebody is at it");
    wanting.commit().await.expect("commit");
    assert_eq!(due(&mut conn).await.sites, [site]);
    // A confirmation for which no task waits is deleted.
    let release = async |tx: &mut Tx<'_>| holds::release(tx, HoldFilter::Confirming(&[site]), 10).await;
    assert_eq!(fixtures::tx(&mut conn, release).await.expect("release").len(), 1);
    assert_eq!(due(&mut conn).await.sites, []);
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
    assert_eq!(hold_broken(&mut holding, task).await, [task]);
    let reopen = async || {
        let mut tx = fixtures::begin(&pool).await;
        let reopened = open_circuits::reopen(&mut tx, None, SiteId::new(0)).await.expect("reopen");
        tx.commit().await.expect("commit");
        (reopened.sites, reopened.tasks, reopened.busy)
    };
    assert_eq!(reopen().await, (0, 0, 1), "the circuit is in use, and is not waited for");
    holding.commit().await.expect("commit");
    let mut using = fixtures::begin(&pool).await;
    fixtures::execute(&mut using, "select from tasks for update").await;
    assert_eq!(reopen().await, (0, 0, 1), "a task is in use, and is not waited for");
    assert_eq!(held(&mut conn).await, 1, "the circuit is still open");
    using.commit().await.expect("commit");
    assert_eq!(reopen().await, (1, 1, 0));
    assert_eq!(held(&mut conn).await, 0);

    open_circuits::open(&mut conn, &[(site, agent, "no answer")]).await.expect("open");
    let mut reopening = fixtures::begin(&pool).await;
    let reopened = open_circuits::reopen(&mut reopening, None, SiteId::new(0)).await.expect("reopen");
    assert_eq!(reopened.sites, 1);
    assert_eq!(hold_broken(&mut conn, task).await, [], "it counts as closed, and is not waited for");
    reopening.commit().await.expect("commit");
    assert_eq!(held(&mut conn).await, 0);
}
