//! Tests, with the real binaries and a standby, failovers that lose the primary's newest transactions
//! while sites are submitted and crawled.

use std::ops::Range;
use std::time::{Duration, Instant};

use landfall_lab::cluster::postgres::DatabaseAction;
use landfall_lab::cluster::process::until;
use landfall_lab::cluster::{Cluster, ClusterDatabase, ClusterOptions, HURRIED};
use landfall_lab::evidence::check::{self, Evidence, RunKind};
use landfall_lab::world::World;
use landfall_lab::world::scenario::SMALL;
use landfall_lab::world::site_servers::Access;

use crate::harness::{FEW_SAMPLES, MAX_DEPTH, PATIENCE, beside, count, small_scenario};

const AGENTS: usize = 3;
/// Sites of a batch that is submitted before the held back transactions, of one that is lost with
/// them, and of one that is submitted after the failover.
const BEFORE: Range<usize> = 0..6;
const LOST: Range<usize> = 6..14;
const AFTER: Range<usize> = 14..22;
/// Number of failovers; one, unless a measurement wants more.
const ROUNDS: &str = "LANDFALL_FAILOVERS";
/// Maximum time for which transactions are held back.
const LONGEST: Duration = Duration::from_secs(6);

const LOST_OUTCOMES: &str = "
    select count(*) from outcomes o join tasks t on t.id = o.task_id join batches b on b.id = t.batch_id
    where b.name like 'lost-%'";
const LOST_LEASES: &str = "
    select count(*) from leases l join tasks t on t.id = l.task_id join batches b on b.id = t.batch_id
    where b.name like 'lost-%' and l.state = 'active'";

/// Submits a batch of sites, and repeats the command until a scheduler has the database again.
async fn submit(cluster: &Cluster, batch: &str, sites: Range<usize>) {
    let list = cluster.folder().join(format!("{batch}.txt"));
    std::fs::write(&list, sites.map(|site| cluster.world.site_name(site) + "\n").collect::<String>()).unwrap();
    let depth = MAX_DEPTH.to_string();
    let words = ["sites", "submit", list.to_str().unwrap(), "--batch", batch, "--strategy", "random"];
    let words = [&words[..], &["--request-interval", "200ms", "--max-depth", &depth]].concat();
    let submitted = async || Ok(cluster.operate(&words).await.ok().map(drop));
    until("the sites to be submitted", PATIENCE, submitted).await.unwrap();
}

/// Numbers of the tasks of the newest batch.
async fn newest_tasks(cluster: &Cluster) -> Vec<i64> {
    let query = "select id from tasks where batch_id = (select max(id) from batches) order by id";
    sqlx::query_scalar(query).fetch_all(&cluster.pool).await.unwrap()
}

/// Waits until every site of the batch is crawled. Returns the outcomes that the sites' own log, since
/// `began`, contradicts.
async fn wrong(cluster: &mut Cluster, batch: &str, sites: Range<usize>, began: Instant) -> Vec<String> {
    let ended = async || {
        let record = cluster.batch_record(batch).await?;
        Ok(record.tasks.iter().all(|task| task.state == "done").then_some(record))
    };
    let record = until("the batch to end", PATIENCE, ended).await.unwrap();
    let (names, agents) = (cluster.site_names(), cluster.agent_names());
    let of_batch = |access: Access| {
        let site = access.site.checked_sub(sites.start).filter(|_| sites.contains(&access.site))?;
        (access.at >= began).then_some(Access { site, ..access })
    };
    let log: Vec<Access> = cluster.world.log.entries().into_iter().filter_map(of_batch).collect();
    let evidence = Evidence {
        record: &record,
        sites: &names[sites.clone()],
        agents: &agents,
        webs: &cluster.world.webs[sites],
        log: &log,
        max_depth: MAX_DEPTH,
        probe_interval: Duration::ZERO,
    };
    let broken = check::all(&evidence, RunKind::Restore).into_iter().filter(|check| !check.holds());
    broken.map(|check| format!("{batch}: {}", check.lines())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_site_counts_with_pages_that_were_fetched_for_a_lost_lease() {
    let _turn = beside().await;
    let world = World::start(small_scenario(SMALL, AGENTS, AFTER.end)).await.unwrap();
    let database = ClusterDatabase::Replicated;
    let options = ClusterOptions { scheduler: format!("{HURRIED}{FEW_SAMPLES}"), capacity: 2, logs: None, database };
    let mut cluster = Cluster::start(world, &options).await.unwrap();
    let rounds: u32 = std::env::var(ROUNDS).map_or(1, |rounds| rounds.parse().unwrap());
    let (mut broken, mut lost_leases) = (Vec::new(), 0);
    for round in 0..rounds {
        let name = |batch: &str| format!("{batch}-{round}");
        let began = Instant::now();
        submit(&cluster, &name("before"), BEFORE).await;
        let query = "select count(*) from leases where state = 'active'";
        cluster.await_count("some crawls to begin", query, 3, PATIENCE).await.unwrap();
        cluster.hold_back().await.unwrap();
        submit(&cluster, &name("lost"), LOST).await;
        if rounds > 1 {
            tokio::time::sleep(LONGEST * round / (rounds - 1)).await;
        } else {
            cluster.await_count("a lost site to be crawled", LOST_OUTCOMES, 2, PATIENCE).await.unwrap();
            cluster.await_count("a lost lease", LOST_LEASES, 1, PATIENCE).await.unwrap();
        }
        lost_leases += count(&cluster, LOST_LEASES).await;
        let lost = newest_tasks(&cluster).await;
        cluster.apply(DatabaseAction::Crash).await.unwrap();
        cluster.promote_standby().await.unwrap();
        let after = Instant::now();
        submit(&cluster, &name("after"), AFTER).await;
        let again: Vec<i64> = newest_tasks(&cluster).await.into_iter().filter(|task| lost.contains(task)).collect();
        broken.extend(again.iter().map(|task| format!("task {task} is the number of a lost one")));
        broken.extend(wrong(&mut cluster, &name("after"), AFTER, after).await);
        broken.extend(wrong(&mut cluster, &name("before"), BEFORE, began).await);
        let gone = cluster.operate(&["batches", "show", &name("lost")]).await.unwrap_err().to_string();
        assert!(gone.contains(&name("lost")), "{gone}");
        let resubmitted = Instant::now();
        submit(&cluster, &name("lost"), LOST).await;
        broken.extend(wrong(&mut cluster, &name("lost"), LOST, resubmitted).await);
        if round + 1 < rounds {
            cluster.add_standby().await.unwrap();
        }
    }
    assert_eq!(broken, Vec::<String>::new());
    let refused = "select coalesce(sum(times), 0)::bigint from refusals where kind::text = 'lost-history'";
    let told = count(&cluster, refused).await > 0;
    assert!(told || lost_leases == 0, "agents' reports on {lost_leases} lost leases are told as that");
    let blamed = "select coalesce(sum(times), 0)::bigint from refusals where kind::text in ('forged-token', 'unknown-task', 'foreign-lease')";
    assert_eq!(count(&cluster, blamed).await, 0, "nobody is blamed for what was lost");
    let promoted = "select count(*) from histories where cause = 'promoted'";
    assert_eq!(count(&cluster, promoted).await, i64::from(rounds));
    let events = cluster.operate(&["events", "--newest", "5000"]).await.unwrap();
    assert!(events.contains("database promoted: the server's timeline is 2 after 1"), "{events}");
    cluster.stop().await.unwrap();
}
