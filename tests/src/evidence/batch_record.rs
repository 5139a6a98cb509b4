//! Reads the state of a finished batch from the database with the lab's own SQL. The scheduler's
//! queries are not used, because an error in them would also mislead the check.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};
use landfall_scheduler::gnp::{Embedding, Placement};
use landfall_scheduler::model::{AgentId, EmbeddingEpoch};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{FromRow, PgPool};

#[derive(Debug, Clone)]
pub struct BatchRecord {
    /// Tasks in the order of the site names.
    pub tasks: Vec<TaskRecord>,
    pub active_leases: i64,
    /// The landmarks' names, in the order of election.
    pub landmarks: Vec<String>,
    pub site_measurements: Vec<Measurement>,
    /// Measured round trips between agents.
    pub mesh_measurements: Vec<Measurement>,
    /// The newest embedding; `None` if there is none.
    pub embedding: Option<EmbeddingRecord>,
    pub trust: TrustRecord,
    /// One message for each batch whose stored progress differs from a count of its tasks.
    pub wrong_progress: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub struct TrustRecord {
    pub quarantined: Vec<String>,
    /// The reason for an alarm; `None` if there is no alarm.
    pub alarm: Option<String>,
}

#[derive(Debug, Clone, FromRow)]
pub struct TaskRecord {
    pub site: String,
    pub state: String,
    /// The reason for the state; empty if there is none.
    pub reason: String,
    pub token: i64,
    pub assignments: i64,
    pub completed_leases: i64,
    pub leases: i64,
    pub outcomes: i64,
    /// The agent of the newest assignment.
    pub agent: Option<String>,
    /// The strategy of the newest assignment.
    pub strategy: Option<String>,
    /// The fallback of the newest assignment; `None` if the strategy of the batch was used.
    pub fallback: Option<String>,
    /// The predicted round trip of the newest assignment, in microseconds.
    pub predicted_us: Option<i64>,
    pub kind: Option<String>,
    /// The budget that truncated the crawl.
    pub budget: Option<String>,
    /// The agent that reported the outcome.
    pub crawler: Option<String>,
    /// The agent with the newest lease.
    pub lessee: Option<String>,
    pub outcome_token: Option<i64>,
    pub pages: i32,
    pub bytes: i64,
    pub errors: i32,
    pub started_at: Option<DateTime<Utc>>,
    pub duration_ms: i64,
    /// The median round trip that the crawl observed, in microseconds.
    pub crawled_us: Option<i64>,
    /// The first error of the crawl.
    pub message: String,
}

#[derive(Debug, Clone, FromRow)]
pub struct Measurement {
    pub prober: String,
    /// The name of the measured site or agent.
    pub target: String,
    /// The round trip in microseconds; `None` if the target did not answer.
    pub rtt_us: Option<i64>,
}

#[derive(Debug, Clone)]
pub struct EmbeddingRecord {
    pub embedding: Embedding,
    pub agents: BTreeMap<String, Placement>,
    pub sites: BTreeMap<String, Placement>,
}

#[derive(FromRow)]
struct PlacementRow {
    id: i64,
    name: String,
    coordinate: Vec<f64>,
    fit_error: f64,
}

impl PlacementRow {
    fn placement(&self, epoch: EmbeddingEpoch) -> Placement {
        Placement { epoch, coordinate: self.coordinate.clone(), fit_error: self.fit_error }
    }
}

/// The crawl of a site. `granted_s` and `ended_s` are seconds since the batch's first grant.
#[derive(Debug, Clone, FromRow)]
pub struct TimedCrawl {
    pub site: String,
    /// The agent that reported the outcome.
    pub crawler: String,
    pub kind: String,
    /// The first error of the crawl.
    pub message: String,
    pub bytes: i64,
    pub took_s: f64,
    /// The time of the grant of the last lease of the site.
    pub granted_s: f64,
    pub ended_s: f64,
}

/// Reads the crawls of a batch, in the order in which the sites were submitted.
pub async fn crawls(pool: &PgPool, batch: &str) -> anyhow::Result<Vec<TimedCrawl>> {
    let query = "
        with held as (
            select l.* from leases l join tasks t on t.id = l.task_id join batches b on b.id = t.batch_id where b.name = $1
        ), first as (select min(granted_at) as at from held)
        select s.name as site, a.name as crawler, o.kind::text as kind, coalesce(o.message, '') as message, o.bytes,
               o.duration_ms::float8 / 1000 as took_s,
               extract(epoch from h.granted_at - first.at)::float8 as granted_s,
               extract(epoch from h.ended_at - first.at)::float8 as ended_s
        from held h
        join outcomes o on o.task_id = h.task_id and o.token = h.token
        join agents a on a.id = o.agent_id
        join tasks t on t.id = h.task_id
        join sites s on s.id = t.site_id
        cross join first
        order by t.id";
    sqlx::query_as(query).bind(batch).fetch_all(pool).await.context("read the crawls of a batch")
}

/// The time since the first lease of the batch was granted.
pub async fn since_first_grant(pool: &PgPool, batch: &str) -> anyhow::Result<Duration> {
    let query = "
        select extract(epoch from clock_timestamp() - min(l.granted_at))::float8
        from leases l join tasks t on t.id = l.task_id join batches b on b.id = t.batch_id where b.name = $1";
    let seconds: f64 =
        sqlx::query_scalar(query).bind(batch).fetch_one(pool).await.context("read when a batch began")?;
    Duration::try_from_secs_f64(seconds).context("a batch began in the future")
}

/// The agents' names, in the order of their ids.
pub async fn agents(pool: &PgPool) -> anyhow::Result<Vec<String>> {
    sqlx::query_scalar("select name from agents order by id").fetch_all(pool).await.context("read the agents")
}

pub async fn first_task(pool: &PgPool, batch: &str) -> anyhow::Result<u64> {
    let query = "select min(t.id) from tasks t join batches b on b.id = t.batch_id where b.name = $1";
    let first: i64 =
        sqlx::query_scalar(query).bind(batch).fetch_one(pool).await.context("read a batch's first task")?;
    u64::try_from(first).context("a task's identifier is negative")
}

/// Connects to a scheduler's database.
pub async fn connect(options: PgConnectOptions) -> anyhow::Result<PgPool> {
    let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(Duration::from_secs(10));
    pool.connect_with(options).await.context("connect to the scheduler's database")
}

/// Compares the progress of each batch, which SQL triggers maintain, with a count of its tasks.
/// Both are read in one snapshot.
const WRONG_PROGRESS: &str = "
    select b.name || ': ' || shown.progress || ' instead of ' || counted.progress
    from batches b
    cross join lateral (
        select array[p.submitted, p.measuring, p.located, p.assigned, p.leased, p.done, p.failed, p.cancelled, p.truncated,
                     p.pages, p.bytes]::text as progress
        from batch_progress p where p.batch_id = b.id
    ) shown
    cross join lateral (
        select array[count(*) filter (where t.state = 'submitted'), count(*) filter (where t.state = 'measuring'),
                     count(*) filter (where t.state = 'located'), count(*) filter (where t.state = 'assigned'),
                     count(*) filter (where t.state = 'leased'), count(*) filter (where t.state = 'done'),
                     count(*) filter (where t.state = 'failed'), count(*) filter (where t.state = 'cancelled'),
                     count(*) filter (where o.kind = 'truncated'), coalesce(sum(o.pages), 0), coalesce(sum(o.bytes), 0)]::text
                     as progress
        from tasks t left join outcomes o on o.task_id = t.id
        where t.batch_id = b.id and t.retried_at is null
    ) counted
    where shown.progress <> counted.progress";

pub async fn batch_record(pool: &PgPool, batch: &str) -> anyhow::Result<BatchRecord> {
    let tasks = sqlx::query_as(TASKS).bind(batch).fetch_all(pool).await.context("read the tasks")?;
    let active_leases = sqlx::query_scalar(
        "select count(*) from leases l join tasks t on t.id = l.task_id join batches b on b.id = t.batch_id \
         where b.name = $1 and l.state = 'active'",
    )
    .bind(batch)
    .fetch_one(pool)
    .await
    .context("count the active leases")?;
    let landmarks =
        sqlx::query_scalar("select a.name from landmarks l join agents a on a.id = l.agent_id order by l.position")
            .fetch_all(pool)
            .await
            .context("read the landmarks")?;
    let site_measurements = sqlx::query_as(
        "select a.name as prober, s.name as target, m.rtt_us from site_measurements m \
         join agents a on a.id = m.prober_id join sites s on s.id = m.site_id order by m.site_id, m.prober_id",
    )
    .fetch_all(pool)
    .await
    .context("read the sites' measurements")?;
    let mesh_measurements = sqlx::query_as(
        "select p.name as prober, a.name as target, m.rtt_us from mesh_measurements m \
         join agents p on p.id = m.prober_id join agents a on a.id = m.agent_id order by m.prober_id, m.agent_id",
    )
    .fetch_all(pool)
    .await
    .context("read the mesh")?;
    let (embedding, trust) = (embedding(pool).await?, trust_record(pool).await?);
    let wrong_progress = sqlx::query_scalar(WRONG_PROGRESS).fetch_all(pool).await.context("compare the progress")?;
    Ok(BatchRecord {
        tasks,
        active_leases,
        landmarks,
        site_measurements,
        mesh_measurements,
        embedding,
        trust,
        wrong_progress,
    })
}

const TASKS: &str = "
    select s.name as site, t.state::text as state, coalesce(t.reason, '') as reason, t.token,
           (select count(*) from assignments x where x.task_id = t.id) as assignments,
           (select count(*) from leases l where l.task_id = t.id) as leases,
           (select count(*) from leases l where l.task_id = t.id and l.state = 'completed') as completed_leases,
           (select count(*) from outcomes x where x.task_id = t.id) as outcomes,
           g.name as agent, a.strategy, a.fallback::text as fallback,
           a.predicted_us[array_position(a.candidates, a.agent_id)] as predicted_us,
           o.kind::text, o.budget::text, c.name as crawler, h.name as lessee, o.token as outcome_token,
           coalesce(o.pages, 0) as pages, coalesce(o.bytes, 0) as bytes, coalesce(o.errors, 0) as errors,
           o.started_at, coalesce(o.duration_ms, 0) as duration_ms, o.rtt_us as crawled_us,
           coalesce(o.message, '') as message
    from tasks t
    join batches b on b.id = t.batch_id
    join sites s on s.id = t.site_id
    left join assignments a on a.id = t.assignment_id
    left join agents g on g.id = a.agent_id
    left join outcomes o on o.task_id = t.id
    left join agents c on c.id = o.agent_id
    left join leases l on l.task_id = t.id and l.token = t.token
    left join agents h on h.id = l.agent_id
    where b.name = $1
    order by s.name";

async fn trust_record(pool: &PgPool) -> anyhow::Result<TrustRecord> {
    let query = "select a.name from quarantines q join agents a on a.id = q.agent_id where q.released_at is null";
    let quarantined = sqlx::query_scalar(query).fetch_all(pool).await.context("read the quarantines")?;
    let query = "select reason from trust_alarms where ended_at is null";
    let alarm = sqlx::query_scalar(query).fetch_optional(pool).await.context("read the alarm")?;
    Ok(TrustRecord { quarantined, alarm })
}

async fn embedding(pool: &PgPool) -> anyhow::Result<Option<EmbeddingRecord>> {
    let newest: Option<(i64, i32, f64, Vec<i64>)> =
        sqlx::query_as("select epoch, dimensions, fit_error, landmarks from embeddings order by epoch desc limit 1")
            .fetch_optional(pool)
            .await
            .context("read the embedding")?;
    let Some((epoch, dimensions, fit_error, landmarks)) = newest else { return Ok(None) };
    let agents = placements(
        pool,
        "select a.id, a.name, p.coordinate, p.fit_error from agent_placements p join agents a on a.id = p.agent_id \
         where p.epoch = $1",
        epoch,
    )
    .await?;
    let sites = placements(
        pool,
        "select s.id, s.name, p.coordinate, p.fit_error from site_placements p join sites s on s.id = p.site_id \
         where p.epoch = $1",
        epoch,
    )
    .await?;
    let epoch = EmbeddingEpoch::new(epoch);
    let placed = agents.iter().map(|row| (AgentId::new(row.id), row.placement(epoch))).collect();
    let landmarks = landmarks.into_iter().map(AgentId::new).collect();
    let dimensions = usize::try_from(dimensions).context("read the embedding's dimensions")?;
    let embedding =
        Embedding::from_parts(epoch, dimensions, landmarks, placed, fit_error).context("put the embedding together")?;
    let named =
        |placements: &[PlacementRow]| placements.iter().map(|row| (row.name.clone(), row.placement(epoch))).collect();
    Ok(Some(EmbeddingRecord { embedding, agents: named(&agents), sites: named(&sites) }))
}

async fn placements(pool: &PgPool, query: &'static str, epoch: i64) -> anyhow::Result<Vec<PlacementRow>> {
    sqlx::query_as(query).bind(epoch).fetch_all(pool).await.context("read the placements")
}
