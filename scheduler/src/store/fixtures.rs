//! Rows for store tests: minimal agents, batches, tasks and leases, and helpers to change and read
//! them.

use std::collections::HashSet;
use std::time::Duration;

use chrono::DateTime;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{Decode, Encode, FromRow, PgConnection, PgPool, Postgres, Type};

use crate::model::constraints::ConstraintsRequest;
use crate::model::{AgentId, BatchId, CrawlEnding, CrawlPolicy, LeaseToken, OrderId, SessionId, SiteId, TaskId};

use super::assignments::{self, Pool};
use super::leases;
use super::{Db, Error, Locked, Share, Tx, settings};
use crate::store::agents;
use crate::store::agents::drain_remove_and_tag::{self, DrainResult};
use crate::store::agents::new_enrolments::{AgentRequest, Name};
use crate::store::agents::sessions::{self, HeartbeatReport, OpenError, OpenedSession, Registration, SessionTerms};
use crate::store::batches::changes::{self, BeginError, Change, ChangeKind};
use crate::store::batches::pieces::{self, Piece, Step};
use crate::store::batches::{self, Batch, constraints_and_quotas};
use crate::store::embeddings::landmarks::{self, ChosenBy};
use crate::store::leases::outcomes::{self, OutcomeAnswer, OutcomeReport};
use crate::store::measurements::{self, MeasurementReport, ReportTarget};
use crate::store::sites::addresses::PermitRequest;

pub(crate) type Conn = PoolConnection<Postgres>;

/// The lifetime of sessions. It is so long that a session expires only if the test makes it expire.
pub(crate) const LIFETIME: Duration = Duration::from_secs(3600);

/// Time after which a test fails if a connection has not waited for another connection's lock.
/// Normally, a connection begins to wait much sooner.
const PATIENCE: Duration = Duration::from_secs(30);

/// Limits for sessions. `max_supersessions` is so high that no test reaches it.
pub(crate) const TERMS: SessionTerms =
    SessionTerms { lifetime: LIFETIME, max_supersessions: 1000, max_crashes: MAX_CRASHES };

/// The default of `lease.max_crashes`.
pub(crate) const MAX_CRASHES: u32 = 5;

/// The token of the first lease of every task.
pub(crate) const TOKEN: LeaseToken = LeaseToken::new(1);

pub(crate) async fn begin(pool: &PgPool) -> Tx<'static> {
    Db::of(pool.clone()).begin().await.expect("begin")
}

/// Runs `work` in a transaction, or in a savepoint of the connection's transaction, and commits.
pub(crate) async fn tx<T>(conn: &mut PgConnection, work: impl AsyncFnOnce(&mut Tx<'_>) -> T) -> T {
    let mut tx = Tx::on(conn).await.expect("begin");
    let done = work(&mut tx).await;
    tx.commit().await.expect("commit");
    done
}

/// Locks tasks, in the given order.
pub(crate) async fn lock(tx: &mut Tx<'_>, tasks: &[TaskId]) -> Vec<Locked<TaskId>> {
    let found = sqlx::query_scalar::<_, TaskId>("select id from tasks where id = any($1) order by id for update");
    let found: HashSet<TaskId> = found.bind(tasks).fetch_all(&mut **tx).await.expect("lock").into_iter().collect();
    Locked::all(tx, tasks.iter().copied().filter(|task| found.contains(task)))
}

/// Prepares a database and opens a pool.
pub(crate) async fn open(options: PgConnectOptions) -> Result<PgPool, Error> {
    super::prepare(&options).await?;
    Ok(Db::open(options, Share::Fleet).await?.pool().clone())
}

pub(crate) async fn execute(conn: &mut PgConnection, sql: &'static str) {
    sqlx::query(sql).execute(conn).await.expect(sql);
}

pub(crate) async fn execute_for<T>(conn: &mut PgConnection, sql: &'static str, parameter: T)
where
    T: for<'q> Encode<'q, Postgres> + Type<Postgres> + Send + 'static,
{
    sqlx::query(sql).bind(parameter).execute(conn).await.expect(sql);
}

pub(crate) async fn scalar<T>(conn: &mut PgConnection, sql: &'static str) -> T
where
    T: for<'r> Decode<'r, Postgres> + Type<Postgres> + Send + Unpin,
{
    sqlx::query_scalar(sql).fetch_one(conn).await.expect(sql)
}

pub(crate) async fn rows<T>(conn: &mut PgConnection, sql: &'static str) -> Vec<T>
where
    T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    sqlx::query_as(sql).fetch_all(conn).await.expect(sql)
}

/// Requires agents with constraints for a batch, which has no task yet.
pub(crate) async fn constrain(conn: &mut PgConnection, batch: BatchId, asked: &ConstraintsRequest) {
    tx(conn, async |tx| {
        let found = sqlx::query_scalar("select id from batches where id = $1 for no key update").bind(batch);
        let batch = found.fetch_one(&mut **tx).await.expect("lock");
        let locked = Locked::by(tx, batch);
        constraints_and_quotas::settle(tx, locked, asked).await.expect("settle");
    })
    .await;
}

pub(crate) async fn tag(conn: &mut PgConnection, agent: &str, tags: &[String]) {
    tx(conn, async |tx| {
        let (agent, _) = agents::lock_tags(tx, agent).await.expect("look").expect("the agent");
        agents::set_tags(tx, agent, tags).await.expect("tag");
    })
    .await;
}

pub(crate) async fn drain(conn: &mut PgConnection, agent: &str) -> DrainResult {
    tx(conn, async |tx| drain_remove_and_tag::drain(tx, agent).await).await.expect("drain")
}

pub(crate) async fn set_landmarks(conn: &mut PgConnection, chosen: &[(AgentId, String)], by: ChosenBy) {
    tx(conn, async |tx| {
        let locked = settings::lock(tx).await.expect("lock");
        landmarks::replace(tx, &locked, chosen, by).await.expect("set landmarks");
    })
    .await;
}

pub(crate) async fn measure(
    conn: &mut PgConnection,
    agent: AgentId,
    order: OrderId,
    report: &MeasurementReport,
) -> ReportTarget {
    tx(conn, async |tx| measurements::record(tx, agent, order, report).await).await.expect("record")
}

pub(crate) async fn agent(conn: &mut PgConnection, name: &str) -> AgentId {
    let id = sqlx::query_scalar::<_, i64>(
        "insert into agents (name, city, carrier, capacity, credential_hash) values ($1, 'Harbin', 'CERNET', 2, sha256($1::bytea))
         returning id",
    )
    .bind(name)
    .fetch_one(conn)
    .await
    .expect("insert an agent");
    AgentId::new(id)
}

pub(crate) fn registration() -> Registration {
    Registration {
        city: "Harbin".into(),
        carrier: "CERNET".into(),
        country: "CN".into(),
        capacity: 2,
        version: "0.1.0".into(),
        beacon_url: None,
        address: None,
        held: Vec::new(),
        yields: false,
        process: None,
    }
}

/// A request for a token, for an agent without a position and without tags.
pub(crate) fn agent_request(name: Name) -> AgentRequest {
    AgentRequest {
        name,
        city: "Harbin".into(),
        carrier: "CERNET".into(),
        country: "CN".into(),
        position: None,
        tags: Vec::new(),
        valid_for: LIFETIME,
        replaces: false,
    }
}

pub(crate) async fn session(conn: &mut PgConnection, agent: AgentId) -> SessionId {
    open_session(conn, agent, &registration()).await.expect("open a session").session
}

pub(crate) async fn open_session(
    conn: &mut PgConnection,
    agent: AgentId,
    registration: &Registration,
) -> Result<OpenedSession, OpenError> {
    tx(conn, async |tx| sessions::open(tx, agent, registration, TERMS).await).await
}

pub(crate) async fn crawler(conn: &mut PgConnection, name: &str) -> (AgentId, SessionId) {
    let agent = agent(conn, name).await;
    (agent, session(conn, agent).await)
}

/// Renews a session. Returns whether it is active.
pub(crate) async fn renew(conn: &mut PgConnection, session: SessionId) -> bool {
    let report = HeartbeatReport::default();
    sessions::renew(conn, session, LIFETIME, report).await.expect("renew a session").is_some()
}

/// Moves the expiry time of every active session into the past.
pub(crate) async fn overdue(conn: &mut PgConnection) {
    execute(conn, "update sessions set expires_at = now() - interval '1 second' where state = 'active'").await;
}

pub(crate) fn report(task: TaskId, token: LeaseToken, ending: CrawlEnding) -> OutcomeReport {
    OutcomeReport {
        task,
        token,
        ending,
        pages: 3,
        bytes: 1000,
        errors: 1,
        started_at: DateTime::UNIX_EPOCH,
        duration: Duration::from_secs(2),
        rtt: None,
        message: "no route".into(),
        refetched: 0,
        trapped: 0,
        hosts: Vec::new(),
    }
}

pub(crate) async fn record(conn: &mut PgConnection, agent: AgentId, report: &OutcomeReport) -> OutcomeAnswer {
    tx(conn, async |tx| outcomes::record_all(tx, &[(agent, report)]).await.expect("record an outcome")[0]).await
}

/// Records a complete crawl under the task's first lease.
pub(crate) async fn complete(conn: &mut PgConnection, agent: AgentId, task: TaskId) -> OutcomeAnswer {
    record(conn, agent, &report(task, TOKEN, CrawlEnding::Complete)).await
}

pub(crate) async fn batch(conn: &mut PgConnection, name: &str, strategy: &str) -> BatchId {
    let policy = CrawlPolicy {
        max_pages: 10,
        max_bytes: 100_000,
        max_depth: 3,
        max_duration: Duration::from_secs(60),
        ..CrawlPolicy::default()
    };
    let id =
        sqlx::query_scalar::<_, i64>("insert into batches (name, strategy, policy) values ($1, $2, $3) returning id")
            .bind(name)
            .bind(strategy)
            .bind(sqlx::types::Json(&policy))
            .fetch_one(conn)
            .await
            .expect("insert a batch");
    BatchId::new(id)
}

/// Cancels, retries or removes a whole batch, piece by piece.
pub(crate) async fn change(conn: &mut PgConnection, batch: BatchId, kind: ChangeKind) -> Change {
    let name: String = sqlx::query_scalar("select name from batches where id = $1")
        .bind(batch.get())
        .fetch_one(&mut *conn)
        .await
        .expect("the batch's name");
    let batch = batches::by_name(conn, &name).await.expect("look").expect("the batch");
    begin_change(conn, &batch, kind, false).await.expect("begin a change");
    loop {
        let piece = piece(conn, batch.id).await.expect("it is unfinished");
        assert_ne!(piece.step, Step::Waits, "nothing is locked");
        if piece.step == Step::Finished {
            return changes::of_batch(conn, batch.id).await.expect("look").expect("the change");
        }
    }
}

pub(crate) async fn begin_change(
    conn: &mut PgConnection,
    batch: &Batch,
    kind: ChangeKind,
    cancel: bool,
) -> Result<Change, BeginError> {
    tx(conn, async |tx| changes::begin(tx, batch.id, &batch.name, kind, cancel).await).await
}

pub(crate) async fn piece(conn: &mut PgConnection, batch: BatchId) -> Option<Piece> {
    tx(conn, async |tx| pieces::piece_of(tx, batch).await.expect("a piece")).await
}

pub(crate) async fn site(conn: &mut PgConnection, name: &str) -> SiteId {
    let id = sqlx::query_scalar::<_, i64>(
        "insert into sites (name) values ($1) on conflict (name) do update set name = excluded.name returning id",
    )
    .bind(name)
    .fetch_one(conn)
    .await
    .expect("insert a site");
    SiteId::new(id)
}

pub(crate) async fn task(conn: &mut PgConnection, batch: BatchId, site: SiteId, state: &str) -> TaskId {
    let id = sqlx::query_scalar::<_, i64>(
        "insert into tasks (batch_id, site_id, state, choice) select $1, $2, $3::task_state, choice from batches where id = $1 returning id",
    )
    .bind(batch.get())
    .bind(site.get())
    .bind(state)
    .fetch_one(conn)
    .await
    .expect("insert a task");
    TaskId::new(id)
}

/// Makes a task in the state that it enters when an agent is chosen for it.
pub(crate) async fn assigned(conn: &mut PgConnection, batch: BatchId, site: SiteId, agent: AgentId) -> TaskId {
    let task = task(conn, batch, site, "located").await;
    assign(conn, task, agent).await;
    task
}

/// Assigns a located task to an agent.
pub(crate) async fn assign(conn: &mut PgConnection, task: TaskId, agent: AgentId) {
    sqlx::query(
        "with made as (
             insert into assignments (task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us)
             values ($1, $2, 'random', 1, array[$2], array[null]::bigint[], array[null]::bigint[]) returning id
         )
         update tasks set state = 'assigned', assignment_id = made.id from made where tasks.id = $1",
    )
    .bind(task.get())
    .bind(agent.get())
    .execute(conn)
    .await
    .expect("assign a task");
}

/// Makes tasks of sites with these names, assigned to an agent.
pub(crate) async fn queue(conn: &mut PgConnection, batch: BatchId, agent: AgentId, hosts: &[&str]) -> Vec<TaskId> {
    let mut tasks = Vec::new();
    for host in hosts {
        let site = site(conn, host).await;
        tasks.push(assigned(conn, batch, site, agent).await);
    }
    tasks
}

/// Makes located tasks of sites with these names.
pub(crate) async fn located(conn: &mut PgConnection, batch: BatchId, hosts: &[&str]) -> Vec<TaskId> {
    let mut tasks = Vec::new();
    for host in hosts {
        let site = site(conn, host).await;
        tasks.push(task(conn, batch, site, "located").await);
    }
    tasks
}

/// A leased task in a batch of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeasedTask {
    pub(crate) agent: AgentId,
    pub(crate) session: SessionId,
    pub(crate) batch: BatchId,
    pub(crate) site: SiteId,
    pub(crate) task: TaskId,
}

impl LeasedTask {
    pub(crate) fn permit_request(&self, address: &str) -> PermitRequest {
        let Self { agent, session, task, .. } = *self;
        PermitRequest { agent, session, task, token: TOKEN, address: address.parse().expect("an address") }
    }
}

/// Makes an agent and a batch, both called `name`, and leases the batch's site `NAME.cn` to the
/// agent.
pub(crate) async fn leased(conn: &mut PgConnection, name: &str) -> LeasedTask {
    let (agent, session) = crawler(conn, name).await;
    let batch = batch(conn, name, "random").await;
    let site = site(conn, &format!("{name}.cn")).await;
    let task = assigned(conn, batch, site, agent).await;
    assert_eq!(grant(conn, agent, session).await, [(task, TOKEN)]);
    LeasedTask { agent, session, batch, site, task }
}

pub(crate) async fn grant(conn: &mut PgConnection, agent: AgentId, session: SessionId) -> Vec<(TaskId, LeaseToken)> {
    let granted = tx(conn, async |tx| leases::grant(tx, agent, session).await.expect("grant")).await;
    granted.iter().map(|grant| (grant.task, grant.token)).collect()
}

/// Releases the task's first lease.
pub(crate) async fn hand_back(conn: &mut PgConnection, agent: AgentId, task: TaskId) -> bool {
    let release = async |tx: &mut Tx<'_>| leases::release(tx, agent, task, TOKEN, None, MAX_CRASHES).await;
    tx(conn, release).await.expect("hand a lease back")
}

/// Releases the leases of ended sessions. Returns the number of released leases.
pub(crate) async fn reap(conn: &mut PgConnection) -> u64 {
    let all = leases::ReleaseScope::All;
    tx(conn, async |tx| leases::release_of_ended_sessions(tx, all, MAX_CRASHES).await.expect("take leases back")).await
}

/// The next tasks that need an agent, among tasks whose strategies choose an agent for each task
/// separately.
pub(crate) async fn chosen(conn: &mut PgConnection) -> Vec<TaskId> {
    let (waiting, _) =
        tx(conn, async |tx| assignments::waiting(tx, Pool::EachByItself, 100).await).await.expect("look");
    waiting.into_iter().map(|task| task.task).collect()
}

/// Stores an agent's measurement of a site. `ago` is the measurement's age as a Postgres interval.
pub(crate) async fn measured(conn: &mut PgConnection, site: SiteId, prober: AgentId, micros: i64, ago: &str) {
    let measured = "insert into site_measurements (site_id, prober_id, rtt_us, answered, lost, measured_at)
                    values ($1, $2, $3, 5, 0, now() - $4::text::interval)";
    let measured = sqlx::query(measured).bind(site).bind(prober).bind(micros).bind(ago);
    measured.execute(conn).await.expect("measure a site");
}

pub(crate) async fn state(conn: &mut PgConnection, task: TaskId) -> String {
    sqlx::query_scalar("select state::text from tasks where id = $1")
        .bind(task.get())
        .fetch_one(conn)
        .await
        .expect("read a task")
}

/// Starts the transaction `second` while the transaction `first` is open. Commits `first` when
/// Postgres reports that `second` waits for a lock. Returns the result of `second`.
pub(crate) async fn behind<T>(pool: &PgPool, first: Tx<'static>, second: impl AsyncFnOnce(&mut Tx<'_>) -> T) -> T {
    behind_what_goes_on(pool, first, async |_| (), second).await
}

/// Like [`behind`], but the transaction `first` makes another change, `goes_on`, before it commits.
/// If `first` and `second` lock rows in different orders, the two transactions deadlock.
pub(crate) async fn behind_what_goes_on<T>(
    pool: &PgPool,
    mut first: Tx<'static>,
    goes_on: impl AsyncFnOnce(&mut Tx<'_>),
    second: impl AsyncFnOnce(&mut Tx<'_>) -> T,
) -> T {
    let mut conn = pool.acquire().await.expect("connect");
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *conn).await.expect("its number");
    let then = async {
        waits(pool, pid).await;
        goes_on(&mut first).await;
        first.commit().await.expect("commit");
    };
    let both = async { tokio::join!(tx(&mut conn, second), then).0 };
    tokio::time::timeout(PATIENCE, both).await.expect("the second never waited for the first")
}

/// Returns as soon as the connection with this process number waits for another connection's lock.
async fn waits(pool: &PgPool, pid: i32) {
    let mut conn = pool.acquire().await.expect("connect");
    let asked = "select cardinality(pg_blocking_pids($1)) > 0";
    while !sqlx::query_scalar::<_, bool>(asked).bind(pid).fetch_one(&mut *conn).await.expect("ask") {
        tokio::task::yield_now().await;
    }
}
