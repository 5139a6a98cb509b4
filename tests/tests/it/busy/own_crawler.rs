//! Tests, with the real binaries, agents that let other crawlers crawl their sites. The other
//! crawlers must pass the checks for the agent's own crawler, and no crawler may outlive its agent.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use landfall_lab::cluster::Cluster;
use landfall_lab::cluster::process::until;
use landfall_lab::evidence::check::RunKind;

use crate::harness::{ENDED, PATIENCE, beside, small, submit, violations};

const SITES: usize = 5;
const CAPACITY: u32 = 8;
const INTERVAL: Duration = Duration::from_millis(200);

/// The path of a file in the repository.
fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn runs(program: &Path) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Crawls all sites with a command, and compares the outcomes with the sites' logs.
async fn crawls_like_landfall(command: &[&str]) {
    let mut cluster = small(1, SITES, CAPACITY).await;
    cluster.crawl_with(0, command).await.unwrap();
    submit(&cluster, &["--request-interval", "200ms", "--watch"]).await;
    let record = cluster.batch_record("autumn").await.unwrap();
    let logs = logs(&cluster);
    assert_eq!(violations(&cluster, &record, RunKind::Calm), Vec::<String>::new(), "{logs}");
    assert_eq!(too_fast(&cluster), Vec::<String>::new(), "{logs}");
    let (sites, webs) = (cluster.site_names(), &cluster.world.webs);
    for task in &record.tasks {
        let site = sites.iter().position(|site| *site == task.site).unwrap();
        let expected = webs[site].expected_crawl(crate::harness::MAX_DEPTH);
        assert_eq!(u64::try_from(task.bytes).unwrap(), expected.bytes, "{task:?}\n{logs}");
        assert_eq!(usize::try_from(task.errors).unwrap(), expected.broken, "{task:?}\n{logs}");
        assert_eq!(task.kind.as_deref(), Some("complete"), "{task:?}");
    }
    cluster.stop().await.unwrap();
}

/// Sites that were crawled faster than the interval permits. Only the whole crawl is checked,
/// because a busy machine may delay single requests.
fn too_fast(cluster: &Cluster) -> Vec<String> {
    let log = cluster.world.log.entries();
    let sites = cluster.site_names();
    let fast = sites.iter().enumerate().filter_map(|(site, name)| {
        let requests: Vec<_> = log.iter().filter(|access| access.site == site && access.get).collect();
        let took = requests.last()?.at.saturating_duration_since(requests.first()?.at);
        // The arrival of the first request may be late by up to one interval.
        let least = INTERVAL * u32::try_from(requests.len()).unwrap().saturating_sub(2);
        (took < least).then(|| format!("{name}: {} requests in {took:?}", requests.len()))
    });
    fast.collect()
}

/// The output of all crawlers.
fn logs(cluster: &Cluster) -> String {
    let folders = std::fs::read_dir(cluster.agent_folder(0).join("exec")).unwrap();
    let logs = folders.filter_map(|folder| std::fs::read_to_string(folder.ok()?.path().join("log")).ok());
    logs.collect::<Vec<_>>().join("\n---\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_crawls_with_wget2() {
    if !runs(Path::new("wget2")) {
        eprintln!("skipped: wget2 is not installed; ops/setup.sh installs it");
        return;
    }
    let _turn = beside().await;
    crawls_like_landfall(&[source("ops/crawlers/wget2.sh").to_str().unwrap()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_crawls_with_scrapy() {
    let lab = PathBuf::from(env!("CARGO_BIN_EXE_lab"));
    let python = lab.ancestors().nth(2).unwrap().join("peers/scrapy/bin/python");
    if !runs(&python) {
        eprintln!("skipped: {} is not installed; ops/peers.sh installs Scrapy", python.display());
        return;
    }
    let _turn = beside().await;
    let spider = source("ops/crawlers/scrapy_site.py");
    crawls_like_landfall(&[python.to_str().unwrap(), spider.to_str().unwrap()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_agent_leaves_no_crawler_and_its_sites_go_to_others() {
    let _turn = beside().await;
    let mut cluster = small(2, SITES, CAPACITY).await;
    let crawler = "sleep 1000 & echo $! > child; echo $$ > first; wait";
    cluster.crawl_with(0, &["sh", "-c", crawler]).await.unwrap();
    // Only the agent with the external command may crawl, because the test kills this agent.
    let other = cluster.agent_names()[1].clone();
    cluster.operate(&["agents", "drain", &other, "--wait"]).await.unwrap();
    submit(&cluster, &["--request-interval", "100ms", "--strategy", "random"]).await;
    let folder = cluster.agent_folder(0).join("exec");
    let started = until("the crawlers to start", PATIENCE, async || {
        let processes = processes(&folder);
        Ok((processes.len() == 2 * SITES).then_some(processes))
    });
    let started = started.await.unwrap();
    assert!(started.iter().all(|process| is_running(process)), "{started:?}");
    cluster.kill_agent(0).await.unwrap();
    let ended = until("the crawlers to end", PATIENCE, async || {
        Ok(started.iter().all(|process| !is_running(process)).then_some(()))
    });
    ended.await.unwrap();
    cluster.operate(&["agents", "resume", &other]).await.unwrap();
    cluster.await_count("every task to end", ENDED, SITES, PATIENCE).await.unwrap();
    let record = cluster.batch_record("autumn").await.unwrap();
    assert_eq!(violations(&cluster, &record, RunKind::Losses), Vec::<String>::new());
    assert!(record.tasks.iter().all(|task| task.crawler.as_ref() == Some(&other)), "{:?}", record.tasks);
    cluster.stop().await.unwrap();
}

/// The process ids that the crawlers have written so far.
fn processes(folder: &Path) -> Vec<String> {
    let leases = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let files = leases.flat_map(|lease| ["child", "first"].map(|name| lease.path().join("output").join(name)));
    let numbers = files.filter_map(|file| std::fs::read_to_string(file).ok());
    numbers.filter(|number| number.ends_with('\n')).map(|number| number.trim().to_owned()).collect()
}

/// Whether a process is running. A zombie, for which its parent has not waited, is not running.
fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
