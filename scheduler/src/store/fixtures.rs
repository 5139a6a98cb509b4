//! Rows for store tests: just enough of each noun to stand on.

use std::time::Duration;

use sqlx::{PgConnection, PgPool, Postgres, Transaction};

use crate::model::{AgentId, BatchId, CrawlPolicy, SessionId, SiteId, TaskId};

use super::outcomes::{self, Answer, Report};
use super::sessions::{self, Registration, Terms};

/// Long enough that nothing expires by itself during a test.
pub(crate) const LIFETIME: Duration = Duration::from_secs(3600);

/// How long a connection may take to wait for another: far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// As often superseded as a test likes.
pub(crate) const TERMS: Terms = Terms { lifetime: LIFETIME, max_supersessions: 1000, max_crashes: MAX_CRASHES };

/// The default.
pub(crate) const MAX_CRASHES: u32 = 5;

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

pub(crate) async fn session(conn: &mut PgConnection, agent: AgentId) -> SessionId {
    sessions::open(conn, agent, &registration(), TERMS).await.expect("open a session").session
}

/// Records one outcome.
pub(crate) async fn record(conn: &mut PgConnection, agent: AgentId, report: &Report) -> Result<Answer, super::Error> {
    Ok(outcomes::record_all(conn, &[(agent, report)]).await?[0])
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

/// A task assigned to an agent, as the chooser would leave it.
pub(crate) async fn assigned(conn: &mut PgConnection, batch: BatchId, site: SiteId, agent: AgentId) -> TaskId {
    let task = task(conn, batch, site, "located").await;
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
    task
}

pub(crate) async fn state(conn: &mut PgConnection, task: TaskId) -> String {
    sqlx::query_scalar("select state::text from tasks where id = $1")
        .bind(task.get())
        .fetch_one(conn)
        .await
        .expect("read a task")
}

/// What the second comes to when it runs into the locks of the first, which commits as soon as Postgres says so.
pub(crate) async fn behind<T>(
    pool: &PgPool,
    first: Transaction<'static, Postgres>,
    second: impl AsyncFnOnce(&mut PgConnection) -> T,
) -> T {
    behind_what_goes_on(pool, first, async |_| (), second).await
}

/// The same where the first does something more before it commits: in the wrong order of locks, the two wait for each other.
pub(crate) async fn behind_what_goes_on<T>(
    pool: &PgPool,
    mut first: Transaction<'static, Postgres>,
    goes_on: impl AsyncFnOnce(&mut PgConnection),
    second: impl AsyncFnOnce(&mut PgConnection) -> T,
) -> T {
    let mut conn = pool.acquire().await.expect("connect");
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *conn).await.expect("its number");
    let then = async {
        waits(pool, pid).await;
        goes_on(&mut first).await;
        first.commit().await.expect("commit");
    };
    let both = async { tokio::join!(second(&mut conn), then).0 };
    tokio::time::timeout(PATIENCE, both).await.expect("the second never waited for the first")
}

/// Returns when that connection waits for another's lock.
async fn waits(pool: &PgPool, pid: i32) {
    let mut conn = pool.acquire().await.expect("connect");
    let asked = "select cardinality(pg_blocking_pids($1)) > 0";
    while !sqlx::query_scalar::<_, bool>(asked).bind(pid).fetch_one(&mut *conn).await.expect("ask") {
        tokio::task::yield_now().await;
    }
}
