//! Tests how many rows passes read while all tasks wait: no pass may scan a growing table.

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection};

use super::fixtures::Trial;

/// Tables that grow with the number of submitted sites, or with time.
const GROWING: [&str; 15] = [
    "sites",
    "tasks",
    "task_holds",
    "assignments",
    "leases",
    "outcomes",
    "events",
    "submissions",
    "open_circuits",
    "site_measurements",
    "resolved_addresses",
    "site_placements",
    "site_verdicts",
    "confirmations",
    "exclusions",
];
/// Maximum number of rows that one pass may read from the growing tables. A pass handles up to
/// 1,000 tasks and may read forty rows for each of them.
const MOST_READ: i64 = 40_000;
/// Maximum number of rows that one pass may read from a growing table by sequential scans. Only a
/// table with few rows in this test can be scanned without exceeding the maximum.
const MOST_WHOLE: i64 = 1_000;

/// A hundred thousand tasks, in every state in which tasks wait. No agent takes work, so nothing
/// changes.
const WAITING: &str = "
    set session_replication_role = replica;
    update sessions set paused = 'its disk is full';
    insert into batches (name, strategy)
    values ('near', 'gnp-top3'), ('any', 'random'), ('planned', 'earliest-finish'), ('sure', 'gnp-confirmed');
    insert into sites (id, name, origin, address, crawled_address) overriding system value
    select n, 's' || n || '.cn', 'https://s' || n || '.cn', inet '10.0.0.0' + n, inet '10.1.0.0' + n % 50
    from generate_series(1, 100000) n;
    insert into tasks (id, batch_id, site_id, state, choice, held) overriding system value
    select n, b.id, n, s.state::task_state, b.choice, s.held
    from generate_series(1, 100000) n
    join (values (0, 'near', 'submitted', false), (1, 'any', 'located', false), (2, 'planned', 'located', false),
                 (3, 'near', 'located', false), (4, 'any', 'located', true), (5, 'any', 'located', true),
                 (6, 'sure', 'located', true), (7, 'any', 'done', false), (8, 'any', 'failed', false), (9, 'any', 'located', true))
         as s (turn, batch, state, held) on s.turn = n % 10
    join batches b on b.name = s.batch;
    insert into task_holds (task_id, batch_id, site_id, cause, address, until)
    select t.id, t.batch_id, t.site_id, c.cause::hold_cause, case when c.cause = 'address' then s.crawled_address end,
           case when c.cause in ('pause', 'confirming') then now() + interval '1 day' end
    from tasks t join sites s on s.id = t.site_id
    join (values (4, 'address'), (5, 'unmet'), (6, 'confirming'), (9, 'pause')) as c (turn, cause) on c.turn = t.id % 10
    where t.held;
    insert into batch_constraints (batch_id, constraints)
    select id, '{\"countries\": [\"AQ\"], \"carriers\": [], \"tags\": [], \"bytes_per_day\": 1000, \"unmet\": \"wait\"}'
    from batches where name = 'any';
    insert into embeddings (dimensions, landmarks, fit_error) select 2, array_agg(id), 0.1 from agents;
    insert into agent_placements (epoch, agent_id, coordinate, fit_error)
    select e.epoch, a.id, array[a.id, 1, 0], 0.1 from embeddings e cross join agents a;
    insert into site_placements (site_id, epoch, coordinate, fit_error)
    select n, epoch, array[1, 1, 0], 0.1 from generate_series(1, 100000) n cross join embeddings;
    insert into site_measurements (site_id, prober_id, rtt_us, answered, lost, measured_at)
    select n, a.id, 1000, 3, 0, now() - n * interval '1 s' from generate_series(1, 100000) n cross join (select id from agents order by id limit 3) a;
    insert into events (noun, what, task_id) select 'task', 'located', n from generate_series(1, 100000) n;
    select setval(pg_get_serial_sequence('tasks', 'id'), 100000);
    set session_replication_role = origin;
    analyze";

/// After [`WAITING`]: the tasks wait at the first agent, whose slots are full. The last
/// agent is unavailable, and has none.
const ASSIGNED: &str = "
    set session_replication_role = replica;
    delete from task_holds;
    update tasks set state = 'assigned', held = false, assignment_id = id, agent_id = (select min(id) from agents)
    where state in ('submitted', 'located');
    insert into assignments (id, task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us) overriding system value
    select id, id, agent_id, 'random', 1, array[agent_id], array[1000], array[null::bigint] from tasks where state = 'assigned';
    update sessions set paused = null, crawls = 2, free_slots = 0 where agent_id = (select min(id) from agents);
    delete from batch_constraints;
    set session_replication_role = origin;
    analyze";

/// Waits until every other connection to this database has ended, because only then do the
/// statistics of Postgres include the reads of those connections.
async fn alone(conn: &mut PgConnection) {
    let others = "select count(*) from pg_stat_activity
                  where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'";
    while sqlx::query_scalar::<_, i64>(others).fetch_one(&mut *conn).await.expect("count") > 0 {
        tokio::task::yield_now().await;
    }
}

/// Runs a pass on separate connections. Returns the number of rows read from each growing table by
/// sequential scan and by index.
async fn read_by(database: &PgConnectOptions, name: &str) -> Vec<(String, i64, i64)> {
    let mut conn = PgConnection::connect_with(database).await.expect("connect");
    conn.execute("select pg_stat_reset()").await.expect("reset");
    let pool = PgPoolOptions::new().max_connections(4).connect_with(database.clone()).await.expect("connect");
    let trial = Trial::new(pool.clone(), 0).await;
    trial.try_pass(name).await.expect("a pass");
    trial.leave().await;
    pool.close().await;
    alone(&mut conn).await;
    let read = sqlx::query_as(
        "select relname::text, coalesce(seq_tup_read, 0), coalesce(idx_tup_fetch, 0) from pg_stat_user_tables
         where relname = any($1) order by 2 desc, 3 desc",
    )
    .bind(GROWING.map(str::to_owned).to_vec())
    .fetch_all(&mut conn)
    .await
    .expect("statistics");
    conn.close().await.expect("close");
    read
}

/// Runs each pass after the statements of a scene. Fails if a pass reads more than it should.
async fn passes_read_little(database: PgConnectOptions, scene: &[&'static str]) {
    let pool = PgPoolOptions::new().max_connections(4).connect_with(database.clone()).await.expect("connect");
    let trial = Trial::new(pool.clone(), 4).await;
    for statements in scene {
        pool.execute(*statements).await.expect("let tasks wait");
    }
    // The first pass of each job also cleans up, so its reads are not counted.
    for name in Trial::PASSES {
        trial.try_pass(name).await.expect("a first pass");
    }
    trial.leave().await;
    let mut conn = PgConnection::connect_with(&database).await.expect("connect");
    pool.close().await;
    alone(&mut conn).await;
    conn.close().await.expect("close");
    let (mut costly, mut all) = (Vec::new(), 0);
    for name in Trial::PASSES {
        let read = read_by(&database, name).await;
        assert_eq!(read.len(), GROWING.len(), "a table is not there: {read:?}");
        let rows: i64 = read.iter().map(|(_, whole, fetched)| whole + fetched).sum();
        all += rows;
        if rows > MOST_READ || read.iter().any(|(_, whole, _)| *whole > MOST_WHOLE) {
            costly.push((name, read.into_iter().filter(|(_, whole, fetched)| whole + fetched > 0).collect::<Vec<_>>()));
        }
    }
    assert!(all > 0, "nothing was counted");
    assert!(costly.is_empty(), "passes read for nothing, each table as a whole and by an index: {costly:#?}");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn no_pass_looks_through_what_waits(_: PgPoolOptions, database: PgConnectOptions) {
    passes_read_little(database, &[WAITING]).await;
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn no_pass_looks_through_what_waits_at_an_agent(_: PgPoolOptions, database: PgConnectOptions) {
    passes_read_little(database, &[WAITING, ASSIGNED]).await;
}
