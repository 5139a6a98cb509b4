//! Tests, with the real binaries, a backup during a crawl, and a restore while the agents are
//! running.

use std::collections::BTreeSet;
use std::time::Duration;

use landfall_lab::cluster::{Cluster, ClusterDatabase, ClusterOptions, HURRIED};
use landfall_lab::evidence::check::{self, Evidence, RunKind};
use landfall_lab::world::World;
use landfall_lab::world::scenario::SMALL;

use crate::harness::{FEW_SAMPLES, MAX_DEPTH, PATIENCE, beside, count, small_scenario};

const AGENTS: usize = 3;
const SITES: usize = 15;
const OUTCOMES: &str = "select count(*) from outcomes";
/// A restore raises tokens above this number. Tokens from before the restore are below it.
const FLOOR: i64 = 1_000_000_000_000;

/// The sites whose tasks are done in the database.
async fn done(cluster: &Cluster) -> BTreeSet<String> {
    let record = cluster.batch_record("autumn").await.unwrap();
    record.tasks.into_iter().filter(|task| task.state == "done").map(|task| task.site).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_continues_from_a_backup_and_repeats_later_crawls() {
    let _turn = beside().await;
    let world = World::start(small_scenario(SMALL, AGENTS, SITES)).await.unwrap();
    let (scheduler, database) = (format!("{HURRIED}{FEW_SAMPLES}"), ClusterDatabase::Private);
    let options = ClusterOptions { scheduler, capacity: 1, logs: None, database };
    let mut cluster = Cluster::start(world, &options).await.unwrap();
    let (list, depth) = (cluster.write_site_list().unwrap(), MAX_DEPTH.to_string());
    // The crawls are slow, so that most of them have not ended when a busy machine makes the backup.
    let submit = ["sites", "submit", list.to_str().unwrap(), "--strategy", "random", "--request-interval", "300ms"];
    let batch = |name| [&submit[..], &["--max-depth", &depth, "--batch", name]].concat();
    cluster.operate(&batch("autumn")).await.unwrap();
    cluster.operate(&["agents", "enrol", "--city", "Lhasa", "--carrier", "Unicom"]).await.unwrap();
    cluster.await_count("some sites to be crawled", OUTCOMES, 3, PATIENCE).await.unwrap();

    let before = done(&cluster).await;
    let file = cluster.folder().join("monday.tar");
    let said = cluster.operate(&["backup", file.to_str().unwrap()]).await.unwrap();
    assert!(said.contains(&format!("backed up {SITES} sites and {AGENTS} agents")), "{said}");
    // Wait for more crawls, so that some sites are done now, but not in the backup.
    let more = (done(&cluster).await.len() + 4).min(SITES);
    cluster.await_count("more to be crawled", OUTCOMES, more, PATIENCE).await.unwrap();
    // No agent has the tag, so this batch does not crawl any site a second time.
    cluster.operate(&[&batch("winter")[..], &["--tag", "absent"]].concat()).await.unwrap();
    let since = done(&cluster).await;

    let said = cluster.crash_and_restore(&file).await.unwrap();
    assert!(
        said.contains("1 enrolment tokens void") && said.contains("crawls that ended since then are repeated"),
        "{said}"
    );
    let kept = done(&cluster).await;
    assert!(kept.is_superset(&before), "{kept:?} {before:?}");
    let gone = cluster.operate(&["batches", "show", "winter"]).await.unwrap_err().to_string();
    assert!(gone.contains("winter"), "{gone}");
    cluster.await_connected(AGENTS).await.unwrap();
    cluster.await_count("every site to be crawled", OUTCOMES, SITES, PATIENCE).await.unwrap();

    let record = cluster.batch_record("autumn").await.unwrap();
    let (sites, agents, log) = (cluster.site_names(), cluster.agent_names(), cluster.world.log.entries());
    let evidence = Evidence {
        record: &record,
        sites: &sites,
        agents: &agents,
        webs: &cluster.world.webs,
        log: &log,
        max_depth: MAX_DEPTH,
        probe_interval: Duration::ZERO,
    };
    let broken: Vec<String> = check::all(&evidence, RunKind::Restore)
        .iter()
        .filter(|check| !check.holds())
        .map(check::Check::lines)
        .collect();
    assert_eq!(broken, Vec::<String>::new());

    // Sites that were done in the backup are not crawled again. Sites that were done later are
    // crawled again with a new token.
    let crawls = |site: &str| {
        let index = sites.iter().position(|known| known == site).unwrap();
        log.iter().filter(|access| access.site == index && access.get && access.path == "/").count()
    };
    let again: Vec<&String> = since.difference(&kept).collect();
    assert!(again.len() >= 2, "{since:?} {kept:?}");
    for task in &record.tasks {
        if before.contains(&task.site) {
            assert!(task.token < FLOOR && crawls(&task.site) == 1, "{task:?}");
        } else if again.contains(&&task.site) {
            assert!(task.token > FLOOR && crawls(&task.site) >= 2, "{task:?}");
        }
    }
    let blamed = "select coalesce(sum(times), 0)::bigint from refusals where kind in ('forged-token', 'unknown-task', 'foreign-lease')";
    assert_eq!(count(&cluster, blamed).await, 0, "nobody is blamed for what was forgotten");
    assert_eq!(count(&cluster, "select count(*) from tasks where crashes > 0").await, 0, "nor did a crawl crash");
    let events = cluster.operate(&["events", "--newest", "5000"]).await.unwrap();
    assert!(events.contains("database restored: restored from the backup of"), "{events}");
    assert!(events.contains("its session ended: restored"), "{events}");
    let logs =
        std::fs::read_dir(cluster.logs()).unwrap().map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    assert_eq!(logs.filter(|log| log.contains("database        restored from the backup of")).count(), 1);
    cluster.stop().await.unwrap();
}
