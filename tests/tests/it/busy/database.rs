//! Tests, with the real binaries, databases that misbehave: read-only ones, failovers, ended
//! connections, and poolers. Each fault must be told as what it is, and end without a restart.

use std::path::Path;
use std::time::{Duration, Instant};

use landfall_lab::cluster::balancer::Balancer;
use landfall_lab::cluster::pooler::Pooler;
use landfall_lab::cluster::postgres::{DatabaseAction, ServerHandles, SharedPostgres, accessible_folder};
use landfall_lab::cluster::process::until;
use landfall_lab::cluster::scheduler::{SchedulerNode, SchedulerOptions};
use landfall_lab::cluster::shifted_clock::ShiftedClock;
use landfall_lab::cluster::{Binaries, Cluster, ClusterDatabase, ClusterOptions, HURRIED};
use landfall_lab::evidence::check::RunKind;
use landfall_lab::world::World;
use landfall_lab::world::scenario::SMALL;
use landfall_proto::v1::site_service_client::SiteServiceClient;
use landfall_proto::v1::{CancelTasksRequest, CancelTasksResponse};
use landfall_scheduler::app::token_and_client_file::ClientFile;
use sqlx::{Postgres, Transaction};
use tonic::Request;

use crate::harness::{
    ENDED, FEW_SAMPLES, PATIENCE, beside, count, database, small_scenario, submit, submit_list, violations,
};

const AGENTS: usize = 2;
const SITES: usize = 8;
const SLOW: [&str; 4] = ["--request-interval", "400ms", "--strategy", "random"];

async fn cluster(database: ClusterDatabase) -> Cluster {
    let world = World::start(small_scenario(SMALL, AGENTS, SITES)).await.unwrap();
    let scheduler = format!("{HURRIED}{FEW_SAMPLES}");
    Cluster::start(world, &ClusterOptions { scheduler, capacity: 2, logs: None, database }).await.unwrap()
}

/// Starts a scheduler without agents.
async fn scheduler(folder: &Path, name: &str, url: &str) -> anyhow::Result<SchedulerNode> {
    let config = folder.join("landfall.toml");
    std::fs::write(&config, HURRIED).unwrap();
    let options = SchedulerOptions {
        binary: Binaries::find().unwrap().landfall,
        data_dir: folder.join(format!("{name}-data")),
        config,
        database_url: Some(url.to_owned()),
        logs: folder.to_owned(),
    };
    SchedulerNode::start(&format!("{name}-scheduler"), options).await
}

async fn await_readiness(scheduler: &SchedulerNode, said: &str) {
    let ready = async || Ok(scheduler.readiness().await?.contains(said).then_some(()));
    until(&format!("readiness to be: {said}"), PATIENCE, ready).await.unwrap();
}

/// Waits until all sites are crawled, and checks that nothing was lost, done twice or told as a
/// fault of the scheduler.
async fn await_a_good_end(mut cluster: Cluster, kind: RunKind) {
    cluster.await_count("every task to end", ENDED, SITES, PATIENCE).await.unwrap();
    let record = cluster.batch_record("autumn").await.unwrap();
    assert_eq!(violations(&cluster, &record, kind), Vec::<String>::new());
    let log = std::fs::read_to_string(cluster.logs().join("scheduler.log")).unwrap();
    let wrong: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(wrong, Vec::<&str>::new());
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_is_told_as_that_and_work_goes_on_when_it_accepts_changes() {
    let _turn = beside().await;
    let mut cluster = cluster(ClusterDatabase::Shared(1, ServerHandles::default())).await;
    submit(&cluster, &SLOW).await;
    cluster.await_count("a crawl", "select count(*) from leases", 1, PATIENCE).await.unwrap();
    cluster.apply(DatabaseAction::ReadOnly(true)).await.unwrap();
    await_readiness(&cluster.schedulers[0], "503 Service Unavailable").await;
    assert!(cluster.schedulers[0].readiness().await.unwrap().contains("the database is read-only: try again"));
    let refused = cluster.operate(&["contact", "set", "https://example.org/other"]).await.unwrap_err().to_string();
    assert!(refused.contains("the database is read-only"), "{refused}");
    // Longer than a lease, so that no agent crawls any more.
    let overdue = "select count(*) from sessions where state = 'active' and expires_at < now()";
    let sessions = count(&cluster, "select count(*) from sessions where state = 'active'").await;
    let sessions = usize::try_from(sessions).unwrap();
    cluster.await_count("the leases to run out", overdue, sessions, PATIENCE).await.unwrap();
    let shown = cluster.operate(&["status"]).await.unwrap();
    assert!(shown.contains(", read-only\n") && shown.contains("! the database is read-only"), "{shown}");
    assert!(!shown.contains("stopped without notice"), "{shown}");

    cluster.apply(DatabaseAction::ReadOnly(false)).await.unwrap();
    await_readiness(&cluster.schedulers[0], "200 OK").await;
    await_a_good_end(cluster, RunKind::Losses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_follows_the_primary_of_its_url_through_a_failover() {
    let _turn = beside().await;
    let mut cluster = cluster(ClusterDatabase::Replicated).await;
    submit(&cluster, &SLOW).await;
    cluster.await_count("a crawl", "select count(*) from leases", 1, PATIENCE).await.unwrap();
    cluster.apply(DatabaseAction::Crash).await.unwrap();
    await_readiness(&cluster.schedulers[0], "the database is read-only: try again").await;
    let shown = cluster.operate(&["status"]).await.unwrap();
    assert!(shown.contains("! the database is read-only"), "{shown}");
    cluster.promote_standby().await.unwrap();
    await_readiness(&cluster.schedulers[0], "200 OK").await;
    await_a_good_end(cluster, RunKind::Restore).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_an_administrator_ends_are_made_anew() {
    let _turn = beside().await;
    let cluster = cluster(ClusterDatabase::Shared(1, ServerHandles::default())).await;
    submit(&cluster, &SLOW).await;
    let watchers = "
        select coalesce(max(pid), 0)::bigint from pg_stat_activity
        where query like 'select pg_is_in_recovery()%' and pid <> pg_backend_pid()";
    let sessions = "select coalesce(max(id), 0) from sessions";
    let (watcher, newest) = (count(&cluster, watchers).await, count(&cluster, sessions).await);
    cluster.apply(DatabaseAction::EndWatchers).await.unwrap();
    let again = async || Ok((![0, watcher].contains(&count(&cluster, watchers).await)).then_some(()));
    until("the watcher to connect again", PATIENCE, again).await.unwrap();
    assert_eq!(count(&cluster, sessions).await, newest, "no session ended");
    let log = std::fs::read_to_string(cluster.logs().join("scheduler.log")).unwrap();
    assert!(!log.contains("the database does not answer"), "{log}");

    cluster.apply(DatabaseAction::EndConnections).await.unwrap();
    await_readiness(&cluster.schedulers[0], "200 OK").await;
    await_a_good_end(cluster, RunKind::Losses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pgbouncer_serves_a_scheduler_in_session_mode_and_else_is_refused_with_the_remedy() {
    let _turn = beside().await;
    if let Some(reason) = Pooler::missing() {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = accessible_folder("landfall-lab-").unwrap();
    let mut postgres = SharedPostgres::start(&folder.path().join("database")).await.unwrap();
    let start = async |name: &str, lines: &str| {
        let pooler = Pooler::start(&postgres, name, lines).await.unwrap();
        (scheduler(folder.path(), name, pooler.url()).await, pooler)
    };
    for (name, lines, remedy) in [
        ("strict", "pool_mode = session", "set ignore_startup_parameters = extra_float_digits"),
        (
            "transactions",
            "ignore_startup_parameters = extra_float_digits\npool_mode = transaction",
            "set pool_mode = session in pgbouncer's configuration",
        ),
    ] {
        let refused = format!("{:#}", start(name, lines).await.0.unwrap_err());
        assert!(refused.contains(remedy), "{name}: {refused}");
    }
    let session = "ignore_startup_parameters = extra_float_digits\npool_mode = session";
    let (scheduler, _pooler) = start("sessions", session).await;
    let scheduler = scheduler.unwrap();
    await_readiness(&scheduler, "200 OK").await;
    drop(scheduler);
    postgres.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_behind_a_balancer_goes_on_with_the_server_to_which_it_turns() {
    let _turn = beside().await;
    if let Some(reason) = Balancer::missing() {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = accessible_folder("landfall-lab-").unwrap();
    let mut primary = SharedPostgres::start(&folder.path().join("database")).await.unwrap();
    let mut standby = primary.standby(&folder.path().join("standby")).await.unwrap();
    let balancer = Balancer::start(&primary, &standby, folder.path()).await.unwrap();
    let scheduler = scheduler(folder.path(), "balanced", balancer.url()).await.unwrap();
    await_readiness(&scheduler, "200 OK").await;
    balancer.turn().await.unwrap();
    primary.apply(DatabaseAction::Crash).await.unwrap();
    await_readiness(&scheduler, "the database is read-only: try again").await;
    standby.promote().await.unwrap();
    await_readiness(&scheduler, "200 OK").await;
    drop(scheduler);
    standby.stop().await.unwrap();
}

/// Rows locked in a transaction of their own until `release`, as someone in psql may lock them.
struct Hand(Transaction<'static, Postgres>);

impl Hand {
    async fn lock(cluster: &Cluster, queries: &[&'static str]) -> Self {
        let mut tx = cluster.pool.begin().await.unwrap();
        for query in queries {
            assert!(!sqlx::query(*query).fetch_all(&mut *tx).await.unwrap().is_empty(), "{query}");
        }
        Self(tx)
    }

    async fn release(self) {
        self.0.rollback().await.unwrap();
    }
}

/// Longest time since the newest heartbeat of a connected agent, in milliseconds.
const SILENCE: &str = "select coalesce(max(extract(epoch from now() - renewed_at) * 1000), 0)::bigint from sessions where state = 'active'";
/// A heartbeat is answered within two seconds, and the next is sent within 0.6 s.
const MOST_SILENCE_MS: i64 = 2_600;

/// Waits until a query counts enough, while every heartbeat is stored in time.
async fn await_with_heartbeats(cluster: &Cluster, query: &'static str, wanted: i64) {
    let mut longest = 0;
    let counted = async || {
        longest = longest.max(count(cluster, SILENCE).await);
        Ok((count(cluster, query).await >= wanted).then_some(()))
    };
    until(query, PATIENCE, counted).await.unwrap();
    assert!(longest <= MOST_SILENCE_MS, "{longest} ms without a heartbeat");
    assert_eq!(count(cluster, "select count(*) from sessions").await, 2, "every agent keeps its session");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_locked_by_hand_holds_up_nothing_else() {
    let _turn = beside().await;
    let mut cluster = cluster(database()).await;
    let names = cluster.site_names();
    for (batch, sites) in [("autumn", 0..3), ("winter", 3..6), ("spring", 6..8)] {
        submit_list(&cluster, &names[sites].join("\n"), batch, &SLOW[..2]).await;
    }
    let leases = "select count(*) from leases l join tasks t on t.id = l.task_id join batches b on b.id = t.batch_id
                  where l.state = 'active' and b.name = 'autumn'";
    cluster.await_count("a crawl", leases, 1, PATIENCE).await.unwrap();
    let one_of_each = [
        "select id from tasks where state = 'leased' and batch_id = (select id from batches where name = 'autumn')
         order by id limit 1 for update",
        "select id from tasks where batch_id = (select id from batches where name = 'spring') order by id limit 1 for update",
    ];
    let hand = Hand::lock(&cluster, &one_of_each).await;

    let asked = Instant::now();
    let cancelled = cancel(&cluster, "spring").await;
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    assert!(cancelled.unfinished.is_some(), "{cancelled:?}");
    for command in [&["status"][..], &["batches", "show", "autumn"], &["batches", "show", "spring"]] {
        let asked = Instant::now();
        cluster.operate(command).await.unwrap();
        assert!(asked.elapsed() < Duration::from_secs(2), "{command:?}: {:?}", asked.elapsed());
    }
    let ended = "select count(*) from tasks where state in ('done', 'failed', 'cancelled')";
    await_with_heartbeats(&cluster, ended, 6).await;
    hand.release().await;
    cluster.await_count("the locked tasks to end", ended, SITES, PATIENCE).await.unwrap();
    let lost = "select count(*) from tasks t join batches b on b.id = t.batch_id
                where t.state::text <> case b.name when 'spring' then 'cancelled' else 'done' end or t.crashes > 0";
    assert_eq!(count(&cluster, lost).await, 0);
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_and_a_site_locked_by_hand_hold_up_only_their_own_work() {
    let _turn = beside().await;
    let mut cluster = cluster(database()).await;
    let names = cluster.site_names();
    submit_list(&cluster, &names[..6].join("\n"), "autumn", &SLOW[..2]).await;
    let assigned = "select count(*) from tasks where state = 'assigned'";
    cluster.await_count("sites that wait for a slot", assigned, 1, PATIENCE).await.unwrap();
    let rows = [
        "select id from agents order by id limit 1 for update",
        "select id from sites where id in (
             select site_id from tasks where state = 'assigned' order by agent_id desc, id limit 1
         ) for update",
    ];
    let hand = Hand::lock(&cluster, &rows).await;

    submit_list(&cluster, &names[6..].join("\n"), "winter", &SLOW[..2]).await;
    let ended =
        "select count(*) from tasks t join batches b on b.id = t.batch_id where b.name = 'winter' and t.state = 'done'";
    await_with_heartbeats(&cluster, ended, 2).await;
    hand.release().await;
    cluster.await_count("every task to end", ENDED, SITES, PATIENCE).await.unwrap();
    assert_eq!(count(&cluster, "select count(*) from tasks where state <> 'done' or crashes > 0").await, 0);
    cluster.stop().await.unwrap();
}

/// Cancels a batch, and returns the scheduler's first answer.
async fn cancel(cluster: &Cluster, batch: &str) -> CancelTasksResponse {
    let told = ClientFile::read(cluster.schedulers[0].data_dir()).unwrap().unwrap();
    let url = told.scheduler[0].clone();
    let mut client = SiteServiceClient::connect(url).await.unwrap();
    let mut request = Request::new(CancelTasksRequest { batch: batch.to_owned(), sites: Vec::new(), all: true });
    request.metadata_mut().insert("authorization", format!("Bearer {}", told.token).parse().unwrap());
    client.cancel_tasks(request).await.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_although_the_databases_clock_jumps() {
    let _turn = beside().await;
    if let Some(reason) = ShiftedClock::missing() {
        eprintln!("skipped: {reason}");
        return;
    }
    let mut cluster =
        cluster(ClusterDatabase::Shared(1, ServerHandles { clock: true, ..ServerHandles::default() })).await;
    submit(&cluster, &SLOW).await;
    let crawling = "select count(distinct agent_id) from leases where state = 'active'";
    cluster.await_count("both agents to crawl", crawling, AGENTS, PATIENCE).await.unwrap();

    cluster.apply(DatabaseAction::ShiftClock(600)).await.unwrap();
    let renewed = "select count(*) from sessions where state = 'active' and renewed_at > now() - interval '1 minute'";
    cluster.await_count("heartbeats after the jump", renewed, AGENTS, PATIENCE).await.unwrap();
    let term = "select count(*) from terms t join schedulers s on s.id = t.holder where s.expires_at > now()";
    cluster.await_count("the scheduler to have its roles again", term, 3, PATIENCE).await.unwrap();
    let ended = "select count(*) from sessions where state <> 'active'";
    assert_eq!(count(&cluster, ended).await, 0, "sessions get back the time that the jump took from them");

    // These do not see how the clock is set back, so that their rows lie in the future.
    cluster.await_count("both agents to crawl", crawling, AGENTS, PATIENCE).await.unwrap();
    cluster.kill_agent(0).await.unwrap();
    cluster.schedulers[0].process().kill().await.unwrap();
    cluster.apply(DatabaseAction::ShiftClock(0)).await.unwrap();
    cluster.schedulers[0].restart().unwrap();
    await_a_good_end(cluster, RunKind::Losses).await;
}
