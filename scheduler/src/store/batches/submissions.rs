//! Submissions: turn a list of sites into tasks of a batch, which is created at its first
//! submission or found by its name.
//!
//! Invariants: a submission is stored completely, in the caller's transaction, or not at all.
//! Submitting the same sites to the same batch again adds nothing. A submission repeated with its
//! idempotency key gets the first answer again; another submission with that key is an error. If a
//! name is an alias, the task is made for the site to which the alias points. The cost per site
//! does not depend on the size of the tables. Sites are inserted in the order of their names, so
//! that concurrent submissions wait for each other instead of deadlocking. Tasks are inserted in
//! the order of the list.
//!
//! A batch's strategy and policy never change.

use std::collections::HashSet;

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::model::constraints::ConstraintsRequest;
use crate::model::geo::Position;
use crate::model::site_name::SiteName;
use crate::model::{BatchId, CrawlPolicy, OutOfBounds, PolicyDifference, PolicyRequest, Strategy};
use crate::store::batches::changes::{self, ChangeKind};
use crate::store::batches::{self, constraints_and_quotas};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::sites::positions_and_verdicts;
use crate::store::tasks::measuring_and_rounds;
use crate::store::types::{Unsigned, whole};
use crate::store::{Error, Locked, Tx, settings};

/// Number of rows inserted by one statement. It is large enough that the latency of a statement
/// does not matter, and small enough that the statement's arrays take only a few megabytes.
const CHUNK: usize = 10_000;

/// If fewer rows than this were added, the planner needs no new statistics.
const FEW_ADDED: u64 = 1_000;

#[derive(Debug, Clone)]
pub struct Submission {
    /// The batch's name; a new name creates a batch.
    pub batch: String,
    /// The requested strategy. `None` means the default strategy if the batch is new, and otherwise
    /// the strategy that the batch has.
    pub strategy: Option<Strategy>,
    /// The requested policy fields. The other fields come from `default_policy` for a new batch,
    /// otherwise from the existing batch.
    pub policy: PolicyRequest,
    /// The requested constraints. A new batch gets exactly the requested constraints; an existing
    /// batch keeps its own.
    pub constraints: ConstraintsRequest,
    /// The policy that is configured for this scheduler.
    pub default_policy: CrawlPolicy,
    /// A submission without a key cannot be repeated safely.
    pub idempotency: Option<Idempotency>,
    pub sites: Vec<SiteName>,
    /// Positions of the sites for which the list gives one.
    pub positions: Vec<(SiteName, Position)>,
    /// Number of repeated names that were already dropped from the list.
    pub duplicates: u64,
}

/// Identifies a submission, so that a repeat of it is answered and not stored again.
#[derive(Debug, Clone)]
pub struct Idempotency {
    /// The key, chosen by the client.
    pub key: String,
    /// The SHA-256 of the request. A repeat must have the same one.
    pub request: [u8; 32],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubmissionResult {
    /// Number of new tasks.
    pub added: u64,
    /// Number of sites that the batch already contained.
    pub already_present: u64,
    /// Number of repeats in the list, including different names of one site.
    pub duplicates: u64,
    /// Number of the batch's tasks after the submission.
    pub batch_total: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    #[error("no contact URL is set: run `landfall contact set URL`")]
    NoContactUrl,
    #[error(
        "batch {batch} has the strategy {has}, but {asked} was requested: choose another batch or leave out --strategy"
    )]
    OtherStrategy { batch: String, has: Strategy, asked: Strategy },
    #[error(
        "strategy: {strategy} draws among more agents than the {agents} that are enrolled: enrol more, or choose a smaller K"
    )]
    TooFewAgents { strategy: Strategy, agents: usize },
    #[error("strategy: {0} chooses by load, which this scheduler ignores: its configuration has draws = \"static\"")]
    IgnoresLoad(Strategy),
    /// The batch has another policy, or other constraints, than the request asks for.
    #[error("batch {batch} has {}: choose another batch or leave out that setting", listed(.differences))]
    Differs {
        batch: String,
        /// The fields that differ, each with the batch's value and the requested one.
        differences: Vec<PolicyDifference>,
    },
    #[error("batch {0} is being removed: finish that with `landfall batches remove {0}`, then the name is free")]
    BeingRemoved(String),
    #[error("batch {0} is being cancelled: try again when that has ended")]
    BeingCancelled(String),
    /// Two fields of the policy contradict each other.
    #[error("policy.{0}")]
    Policy(OutOfBounds),
    #[error("idempotency_key: '{key}' was used for another submission, to batch {batch}: choose a new key")]
    KeyOfOtherSubmission { key: String, batch: String },
    #[error("store a submission")]
    Store(#[from] Error),
}

fn listed(differences: &[PolicyDifference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Stores a submission.
pub async fn submit(tx: &mut Tx<'_>, submission: &Submission) -> Result<SubmissionResult, SubmitError> {
    if let Some(idempotency) = &submission.idempotency
        && let Some(first) = first_answer(tx, idempotency).await?
    {
        return Ok(first);
    }
    if settings::contact_url(tx).await?.is_none() {
        return Err(SubmitError::NoContactUrl);
    }
    let batch = agreed_batch(tx, submission).await?;
    expect_growth(tx).await?;
    let sites = site_ids(tx, &submission.sites).await?;
    positions_and_verdicts::listed(tx, &submission.positions).await?;
    let added = add_tasks(tx, batch, &sites).await?;
    let present = u64::try_from(sites.len()).unwrap_or(u64::MAX);
    let names = u64::try_from(submission.sites.len()).unwrap_or(u64::MAX);
    let submitted = SubmissionResult {
        added,
        already_present: present - added,
        duplicates: submission.duplicates + (names - present),
        batch_total: task_count(tx, batch).await?,
    };
    if let Some(idempotency) = &submission.idempotency {
        remember(tx, idempotency, batch, &submitted).await?;
    }
    Ok(submitted)
}

/// Returns the answer to an earlier submission with this key, which must have been the same
/// request. Locks the key until the transaction ends.
async fn first_answer(
    tx: &mut Tx<'_>,
    Idempotency { key, request }: &Idempotency,
) -> Result<Option<SubmissionResult>, SubmitError> {
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended($1, 7173))", key).run(tx).await?;
    let row = sqlx::query!(
        r#"
        select b.name, s.request_sha256, s.added, s.already_present, s.duplicates, s.batch_total
        from submissions s join batches b on b.id = s.batch_id
        where s.idempotency_key = $1
        "#,
        key,
    )
    .optional(tx)
    .await?;
    let Some(row) = row else { return Ok(None) };
    if row.request_sha256 != request {
        return Err(SubmitError::KeyOfOtherSubmission { key: key.clone(), batch: row.name });
    }
    Ok(Some(SubmissionResult {
        added: row.added.0,
        already_present: row.already_present.0,
        duplicates: row.duplicates.0,
        batch_total: row.batch_total.0,
    }))
}

async fn remember(
    conn: &mut PgConnection,
    Idempotency { key, request }: &Idempotency,
    batch: BatchId,
    submitted: &SubmissionResult,
) -> Result<(), Error> {
    sqlx::query!(
        r#"
        insert into submissions (idempotency_key, request_sha256, batch_id, added, already_present, duplicates, batch_total)
        values ($1, $2, $3, $4, $5, $6, $7)
        "#,
        key,
        &request[..],
        batch.get(),
        whole::<i64, _>(submitted.added),
        whole::<i64, _>(submitted.already_present),
        whole::<i64, _>(submitted.duplicates),
        whole::<i64, _>(submitted.batch_total),
    )
    .run(conn)
    .await
}

/// Returns the batch if it is new, or if it has the requested strategy, policy and constraints.
async fn agreed_batch(tx: &mut Tx<'_>, submission: &Submission) -> Result<BatchId, SubmitError> {
    let strategy = submission.strategy.unwrap_or_default();
    let policy = submission.policy.or(&submission.default_policy);
    let (locked, batch) = batches::lock_or_create(tx, &submission.batch, strategy, &policy).await?;
    if batch.removing {
        return Err(SubmitError::BeingRemoved(batch.name));
    }
    let change = changes::of_batch(tx, batch.id).await?.filter(|change| !change.finished);
    if change.is_some_and(|change| change.kind == ChangeKind::Cancel) {
        return Err(SubmitError::BeingCancelled(batch.name));
    }
    if let Some(asked) = submission.strategy.filter(|asked| *asked != batch.strategy) {
        return Err(SubmitError::OtherStrategy { batch: batch.name, has: batch.strategy, asked });
    }
    let has = constraints_and_quotas::settle(tx, locked, &submission.constraints).await?;
    let mut differences = submission.policy.differences(&batch.policy);
    differences.extend(submission.constraints.differences(&has));
    if !differences.is_empty() {
        return Err(SubmitError::Differs { batch: batch.name, differences });
    }
    // The policy is checked last, because the values of all its fields are known only here. After
    // an error, the caller's transaction is rolled back, which also undoes the creation of a batch.
    batch.policy.agreed().map_err(SubmitError::Policy)?;
    Ok(batch.id)
}

/// The sites that have these names, each once, in the order of the list. An unknown name becomes a
/// new site.
async fn site_ids(conn: &mut PgConnection, names: &[SiteName]) -> Result<Vec<i64>, Error> {
    // The identifiers are stored in the order of the sorted names, so that no name is stored twice.
    let mut sorted: Vec<&str> = names.iter().map(SiteName::as_str).collect();
    sorted.sort_unstable();
    let mut ids = Vec::with_capacity(names.len());
    for chunk in sorted.chunks(CHUNK) {
        sqlx::query!(
            "insert into sites (name) select name from unnest($1::text[]) as listed (name) on conflict (name) do nothing",
            chunk as _,
        )
        .run(conn)
        .await?;
        let found = sqlx::query_scalar!(
            r#"
            select coalesce(s.alias_of, s.id) as "id!"
            from unnest($1::text[]) with ordinality as listed (name, place)
            cross join lateral (select id, alias_of from sites where name = listed.name limit 1) s
            order by place
            "#,
            chunk as _,
        );
        ids.extend(found.all(conn).await?);
    }
    let mut seen = HashSet::with_capacity(names.len());
    let of_name = |name: &SiteName| ids.get(sorted.binary_search(&name.as_str()).ok()?).copied();
    Ok(names.iter().filter_map(of_name).filter(|id| seen.insert(*id)).collect())
}

/// Makes a task for each site that has none in this batch. Returns the number of new tasks.
async fn add_tasks(conn: &mut PgConnection, batch: BatchId, sites: &[i64]) -> Result<u64, Error> {
    let (mut added, distanced) = (0, measuring_and_rounds::distanced());
    for chunk in sites.chunks(CHUNK) {
        let done = sqlx::query!(
            r#"
            insert into tasks (batch_id, site_id, state, choice)
            select $1, site_id, case when b.strategy = any($3) then 'submitted'::task_state else 'located' end, b.choice
            from unnest($2::bigint[]) with ordinality as listed (site_id, position)
            cross join (select strategy, choice from batches where id = $1) b
            -- The planner would turn `not exists` into a join. It expects a new batch to be empty,
            -- so the join would compare every site with all tasks of the batch.
            where (select id from tasks t where t.batch_id = $1 and t.site_id = listed.site_id order by t.round limit 1) is null
            order by position
            on conflict (batch_id, site_id, round) do nothing
            "#,
            batch.get(),
            chunk,
            &distanced,
        )
        .affected(conn)
        .await?;
        added += done;
    }
    Ok(added)
}

/// Discards the connection's plans, and makes new plans use indexes until the transaction ends,
/// because the tables are about to grow. A connection keeps its plans, even those for foreign-key
/// checks. A plan made when a table had one page would read the whole table for every added row.
async fn expect_growth(tx: &mut Tx<'_>) -> Result<(), Error> {
    sqlx::query!("discard plans").run(tx).await?;
    sqlx::query!("select set_config('enable_seqscan', 'off', true) as scan, set_config('jit', 'off', true) as jit")
        .one(tx)
        .await?;
    Ok(())
}

/// Updates the planner's statistics of sites and tasks if `added` is more than a tenth of the
/// tasks. After the transaction commits, every connection makes plans for the new size. Skips a
/// table that another transaction is analysing.
pub async fn has_grown(conn: &mut PgConnection, added: u64) -> Result<(), Error> {
    if added < FEW_ADDED {
        return Ok(());
    }
    let added: i64 = whole(added);
    let much = sqlx::query_scalar!(
        r#"select $1::bigint > reltuples / 10 as "much!" from pg_class where oid = 'tasks'::regclass"#,
        added
    )
    .one(conn)
    .await?;
    if much {
        sqlx::query!("analyze (skip_locked) sites, tasks").run(conn).await?;
    }
    Ok(())
}

/// Number of the batch's tasks. Only the newest round of each site counts.
pub async fn task_count(conn: &mut PgConnection, batch: BatchId) -> Result<u64, Error> {
    let count = sqlx::query_scalar!(
        r#"
        select submitted + measuring + located + assigned + leased + done + failed + cancelled as "count!: Unsigned<u64>"
        from batch_progress where batch_id = $1
        "#,
        batch.get()
    );
    Ok(count.one(conn).await?.0)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub id: BatchId,
    pub name: String,
    pub strategy: Strategy,
    pub policy: CrawlPolicy,
    pub removing: bool,
}

pub async fn by_name(conn: &mut PgConnection, name: &str) -> Result<Option<Batch>, Error> {
    sqlx::query_as!(
        Batch,
        r#"
        select id, name, strategy, policy, removing_since is not null as "removing!"
        from batches where name = $1
        "#,
        name
    )
    .optional(conn)
    .await
}

/// Returns the batch of this name, creating it if it is new. Locks the batch against other
/// submissions until the transaction ends.
pub async fn lock_or_create(
    tx: &mut Tx<'_>,
    name: &str,
    strategy: Strategy,
    policy: &CrawlPolicy,
) -> Result<(Locked<BatchId>, Batch), Error> {
    // `for update` would also block inserts of tasks; `for no key update` does not.
    sqlx::query!(
        "insert into batches (name, strategy, policy) values ($1, $2, $3) on conflict (name) do nothing",
        name,
        strategy.to_string(),
        Json(policy) as _,
    )
    .run(tx)
    .await?;
    let batch = sqlx::query_as!(
        Batch,
        r#"
        select id, name, strategy, policy, removing_since is not null as "removing!"
        from batches where name = $1
        for no key update
        "#,
        name,
    );
    let batch = batch.one(tx).await?;
    Ok((Locked::by(tx, batch.id), batch))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::{AssertSqlSafe, PgPool, Row};

    use super::*;
    use crate::store::fixtures::{self, Conn};

    fn names(range: std::ops::Range<u32>) -> Vec<SiteName> {
        range.map(|number| format!("site{number}.cn").parse().expect("a name")).collect()
    }

    fn submission(sites: Vec<SiteName>) -> Submission {
        Submission {
            batch: "autumn".into(),
            strategy: None,
            policy: PolicyRequest::default(),
            constraints: ConstraintsRequest::default(),
            default_policy: CrawlPolicy::default(),
            idempotency: None,
            sites,
            positions: Vec::new(),
            duplicates: 0,
        }
    }

    async fn run(pool: &PgPool, submission: &Submission) -> Result<SubmissionResult, SubmitError> {
        let mut tx = fixtures::begin(pool).await;
        let submitted = submit(&mut tx, submission).await?;
        tx.commit().await.expect("commit");
        Ok(submitted)
    }

    async fn with_contact(pool: &PgPool) {
        let mut conn = pool.acquire().await.expect("a connection");
        settings::set_contact_url(&mut conn, "https://example.org/bot").await.expect("a contact URL");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_same_list_twice_adds_nothing(pool: PgPool) {
        with_contact(&pool).await;
        let list = submission(names(0..25_000));
        let first = run(&pool, &list).await.expect("submitted");
        assert_eq!(first, SubmissionResult { added: 25_000, already_present: 0, duplicates: 0, batch_total: 25_000 });
        let second = run(&pool, &list).await.expect("submitted");
        assert_eq!(second, SubmissionResult { added: 0, already_present: 25_000, duplicates: 0, batch_total: 25_000 });
        let more = run(&pool, &submission(names(24_990..25_010))).await.expect("submitted");
        assert_eq!((more.added, more.already_present, more.batch_total), (10, 10, 25_010));
    }

    /// Number of rows that Postgres read to execute a plan, from `explain (analyze)`.
    fn looked_at(plan: &serde_json::Value) -> f64 {
        let told = |name: &str| plan[name].as_f64().unwrap_or(0.0);
        let rows = told("Actual Rows") + told("Rows Removed by Filter") + told("Rows Removed by Join Filter");
        rows * told("Actual Loops") + plan["Plans"].as_array().into_iter().flatten().map(looked_at).sum::<f64>()
    }

    async fn small_batches(conn: &mut PgConnection, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let small = Submission { batch: format!("small-{number}"), ..submission(names(0..21)) };
            fixtures::tx(conn, async |tx| submit(tx, &small).await).await.expect("submitted");
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_costs_the_same_when_the_planner_knows_small_batches_only(pool: PgPool) {
        with_contact(&pool).await;
        let (mut conn, mut other) = (pool.acquire().await.expect("one"), pool.acquire().await.expect("another"));
        small_batches(&mut other, 0..10).await;
        // This connection executes the statement that inserts tasks only twice here. For the first
        // five executions Postgres makes a new plan from the statistics each time, which this test
        // needs.
        small_batches(&mut conn, 10..11).await;
        fixtures::execute(&mut conn, "analyze").await;
        // Makes Postgres plan the checks of foreign keys while the tables have one page.
        small_batches(&mut conn, 11..12).await;

        let mut tx = Tx::on(&mut conn).await.expect("a transaction");
        submit(&mut tx, &submission(names(100..20_100))).await.expect("submitted");
        let whole: i64 = fixtures::scalar(
            &mut tx,
            "select sum(seq_tup_read)::bigint from pg_stat_xact_user_tables where relname in ('sites', 'tasks')",
        )
        .await;
        assert!(whole < 100_000, "{whole} rows were read by reading whole tables");

        // Executes the statement that inserts tasks once more, for ten thousand more sites.
        let later = site_ids(&mut tx, &names(30_000..40_000)).await.expect("sites");
        let statement: String = fixtures::scalar(
            &mut tx,
            "select name from pg_prepared_statements where statement like '%insert into tasks %'",
        )
        .await;
        let batch: i64 = fixtures::scalar(&mut tx, "select id from batches where name = 'autumn'").await;
        let ids = later.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let explained = format!("explain (analyze, format json) execute {statement}({batch}, '{{{ids}}}', '{{}}')");
        let row = sqlx::query(AssertSqlSafe(explained)).fetch_one(&mut *tx).await.expect("explained");
        let plan: String = row.try_get_unchecked(0).expect("a text");
        let plan: serde_json::Value = serde_json::from_str(&plan).expect("JSON");
        let rows = looked_at(&plan[0]["Plan"]);
        assert!(rows < 100_000.0, "{rows} rows were looked at to add 10,000 sites: {plan:#}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn many_sites_let_every_connection_plan_anew(pool: PgPool) {
        with_contact(&pool).await;
        let counted = async || -> f32 {
            sqlx::query_scalar("select greatest(reltuples, 0) from pg_class where oid = 'tasks'::regclass")
                .fetch_one(&pool)
                .await
                .expect("statistics")
        };
        for (from, to, expected) in [(0, 2_000, 2_000.0), (2_000, 2_100, 2_000.0), (2_100, 4_000, 4_000.0)] {
            let mut tx = fixtures::begin(&pool).await;
            let submitted = submit(&mut tx, &submission(names(from..to))).await.expect("submitted");
            has_grown(&mut tx, submitted.added).await.expect("counted");
            tx.commit().await.expect("committed");
            assert_eq!(counted().await, expected, "after {to}");
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_repeated_key_gets_the_first_answer(pool: PgPool) {
        with_contact(&pool).await;
        let keyed = |request| {
            let idempotency = Some(Idempotency { key: "k".into(), request });
            Submission { idempotency, ..submission(names(0..3)) }
        };
        let first = run(&pool, &keyed([1; 32])).await.expect("submitted");
        assert_eq!(run(&pool, &keyed([1; 32])).await.expect("submitted"), first);
        let refused = run(&pool, &keyed([2; 32])).await.expect_err("refused").to_string();
        assert_eq!(refused, "idempotency_key: 'k' was used for another submission, to batch autumn: choose a new key");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_name_of_a_known_site_becomes_that_sites_task(pool: PgPool) {
        with_contact(&pool).await;
        let mut conn = pool.acquire().await.expect("a connection");
        fixtures::execute(&mut conn, "insert into sites (name) values ('site0.cn')").await;
        fixtures::execute(&mut conn, "insert into sites (name, alias_of) select 'site1.cn', id from sites").await;
        let submitted = run(&pool, &submission(names(0..3))).await.expect("submitted");
        assert_eq!(submitted, SubmissionResult { added: 2, already_present: 0, duplicates: 1, batch_total: 2 });
        let sites: Vec<String> =
            sqlx::query_scalar("select name from sites where id in (select site_id from tasks) order by name")
                .fetch_all(&mut *conn)
                .await
                .expect("sites");
        assert_eq!(sites, ["site0.cn", "site2.cn"]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_batch_keeps_its_strategy_and_its_policy(pool: PgPool) {
        with_contact(&pool).await;
        run(&pool, &submission(names(0..1))).await.expect("submitted");
        let mut other = submission(names(1..2));
        other.strategy = Some(Strategy::Random);
        let refused = run(&pool, &other).await.expect_err("refused").to_string();
        assert!(refused.contains("gnp-top3") && refused.contains("random was requested"), "{refused}");
        other.strategy = Some(Strategy::GNP_TOP3);
        other.policy = PolicyRequest { max_pages: Some(7), ..PolicyRequest::default() };
        let refused = run(&pool, &other).await.expect_err("refused").to_string();
        assert!(
            refused
                == "batch autumn has max_pages 200 (7 was requested): choose another batch or leave out that setting",
            "{refused}"
        );
        other.policy = PolicyRequest { max_pages: Some(200), ..PolicyRequest::default() };
        // A change of the scheduler's default policy does not affect an existing batch.
        other.default_policy.max_depth = 1;
        assert_eq!(run(&pool, &other).await.expect("submitted").batch_total, 2);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_policy_is_kept_whole(pool: PgPool) {
        with_contact(&pool).await;
        let mut asking = submission(names(0..1));
        asking.policy = PolicyRequest {
            shortest_interval: Some(Duration::from_millis(250)),
            sitemaps: Some(false),
            store: Some(false),
            include: Some(vec!["/a".into()]),
            exclude: Some(vec!["/*.pdf$".into(), "/b".into()]),
            contact_url: Some("https://example.org/study".into()),
            user_agent: Some("StudyBot/1.2".into()),
            ..PolicyRequest::default()
        };
        run(&pool, &asking).await.expect("submitted");
        run(&pool, &asking).await.expect("the same again");
        let mut conn = pool.acquire().await.expect("a connection");
        let batch = batches::by_name(&mut conn, "autumn").await.expect("read").expect("a batch");
        assert_eq!(batch.policy, asking.policy.or(&CrawlPolicy::default()));
        // The error names the field that is missing in the stored policy.
        let sql = "update batches set policy = policy - 'max_depth' where name = 'autumn'";
        sqlx::query(sql).execute(&mut *conn).await.expect("written");
        let error = batches::by_name(&mut conn, "autumn").await.expect_err("half a policy").to_string();
        assert!(error.starts_with("inconsistent row: batches.policy is missing field `max_depth`"), "{error}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn large_sites_are_not_asked_less_often_than_small_ones(pool: PgPool) {
        with_contact(&pool).await;
        let mut asking = submission(names(0..1));
        asking.policy.shortest_interval = Some(Duration::from_secs(2));
        let refused = run(&pool, &asking).await.expect_err("refused").to_string();
        assert_eq!(refused, "policy.shortest_interval: 2s is more than the request_interval of 1s");
        asking.policy.request_interval = Some(Duration::from_secs(3));
        run(&pool, &asking).await.expect("no batch was left behind");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_batch_keeps_the_constraints_it_was_made_with(pool: PgPool) {
        with_contact(&pool).await;
        let mut asking = submission(names(0..1));
        asking.constraints.tags = vec!["fast".into()];
        run(&pool, &asking).await.expect("a new batch");
        run(&pool, &asking).await.expect("the same");
        run(&pool, &submission(names(1..2))).await.expect("leaves it as it is");
        asking.constraints.tags = vec!["slow".into()];
        let refused = run(&pool, &asking).await.expect_err("refused").to_string();
        assert_eq!(
            refused,
            "batch autumn has tag fast (slow was requested): choose another batch or leave out that setting"
        );
        let plain = Submission { batch: "plain".into(), ..submission(names(0..1)) };
        run(&pool, &plain).await.expect("a batch without");
        let refused = run(&pool, &Submission { batch: "plain".into(), ..asking }).await.expect_err("refused");
        assert!(matches!(refused, SubmitError::Differs { .. }), "{refused}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn nothing_is_taken_without_a_contact_url(pool: PgPool) {
        let refused = run(&pool, &submission(names(0..1))).await.expect_err("refused");
        assert!(matches!(refused, SubmitError::NoContactUrl), "{refused}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn overlapping_submissions_at_once_add_each_site_once(pool: PgPool) {
        with_contact(&pool).await;
        let mut backwards = names(0..5_000);
        backwards.reverse();
        let (forwards, mut backwards) = (submission(names(0..5_000)), submission(backwards));
        backwards.batch = "winter".into();
        let (same, other, again) = tokio::join!(run(&pool, &forwards), run(&pool, &backwards), run(&pool, &forwards));
        let (same, other, again) = (same.expect("submitted"), other.expect("submitted"), again.expect("submitted"));
        assert_eq!(same.added + again.added, 5_000);
        assert_eq!(other.added, 5_000);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_policy_of_a_row_that_says_none_is_the_default(mut conn: Conn) {
        fixtures::execute(&mut conn, "insert into batches (name, strategy) values ('b', 'random')").await;
        let batch = by_name(&mut conn, "b").await.expect("read").expect("a batch");
        assert_eq!(batch.policy, CrawlPolicy::default());
    }
}
