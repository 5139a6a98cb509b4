//! Tests of external crawlers, with small shell scripts as the crawlers.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock, SystemTime};

use futures_util::FutureExt as _;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::processes::Guardian;
use super::*;
use crate::config::ExecConfig;
use crate::crawl::{
    AddressPermits, Blocker, Budget, CrawlEnd, Job, LeasedCrawl, NotPermitted, Outcome, OutcomeKind, Policy,
    SchedulerSilence, Trouble,
};
use crate::disk::crawl_files::LeaseKey;
use crate::testing::context;

const KEY: LeaseKey = LeaseKey { task_id: 7, token: 3, history: 1 };
/// A command that runs longer than any test.
const FOREVER: &str = "sleep 1000";
const PATIENCE: Duration = Duration::from_secs(20);

/// A crawl by a shell script, of a site at which no server listens.
struct ScriptCrawl {
    crawler: ExternalCrawler,
    crawl: LeasedCrawl,
    stop: CancellationToken,
    root: tempfile::TempDir,
}

impl ScriptCrawl {
    fn of(script: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut config = ExecConfig::of(["sh", "-c", script].map(str::to_owned).to_vec());
        config.folder = root.path().join("exec");
        config.grace_ms = 300;
        let policy = Policy { max_pages: 50, ..crate::crawl::tests::policy() };
        let origin = "http://127.0.0.1:9".parse().ok();
        let crawl = LeasedCrawl {
            key: KEY,
            job: Job { name: "127.0.0.1:9".to_owned(), origin, policy, last_pages: None },
            checkpoint: Vec::new(),
            stores_pages: true,
            permits: AddressPermits::default(),
            context: Arc::new(context(&["127.0.0.0/8"])),
            preempted: CancellationToken::new(),
        };
        let crawler = ExternalCrawler::open(&config).unwrap();
        Self { crawler, crawl, stop: CancellationToken::new(), root }
    }

    /// Runs the crawl. Returns how it ended, and the folder with its files.
    async fn run(self) -> (CrawlEnd, tempfile::TempDir) {
        (self.crawler.crawl(self.crawl, &self.stop).await, self.root)
    }

    /// Starts the crawl, and returns after the script has written the file `started`.
    async fn start(self) -> RunningScript {
        let Self { crawler, crawl, stop, root } = self;
        let (guardian, preempted, stopped) = (crawler.guardian.clone(), crawl.preempted.clone(), stop.clone());
        let task = tokio::spawn(async move { crawler.crawl(crawl, &stopped).await });
        await_file(&root.path().join("exec/7-3/output/started")).await;
        RunningScript { task, guardian, stop, preempted, root }
    }
}

struct RunningScript {
    task: JoinHandle<CrawlEnd>,
    guardian: Guardian,
    stop: CancellationToken,
    preempted: CancellationToken,
    root: tempfile::TempDir,
}

async fn await_file(file: &Path) {
    let started = Clock::now();
    while !std::fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n')) {
        assert!(started.elapsed() < PATIENCE, "{} is not written", file.display());
        sleep(Duration::from_millis(5)).await;
    }
}

fn outcome(end: CrawlEnd) -> Outcome {
    match end {
        CrawlEnd::Outcome(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

fn read(root: &tempfile::TempDir, name: &str) -> String {
    std::fs::read_to_string(root.path().join("exec/7-3").join(name)).unwrap()
}

/// The process whose id the script has written to the file `name`.
fn process(root: &tempfile::TempDir, name: &str) -> Pid {
    Pid::from_raw(read(root, name).trim().parse().unwrap())
}

/// Whether a process is running. A zombie (a dead process that its parent has not waited for yet)
/// does not count as running.
fn runs(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

async fn await_end(process: Pid) {
    let started = Clock::now();
    while runs(process) {
        assert!(started.elapsed() < PATIENCE, "{process} runs on");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_crawler_gets_its_site_its_limits_and_its_files() {
    let mut script = ScriptCrawl::of("env | grep ^LANDFALL_ | sort; pwd; cat \"$LANDFALL_HOSTS\"; touch page");
    script.crawl.job.policy.request_interval = Duration::from_millis(50);
    script.crawl.job.policy.paths.include(&["/a", "/b"]).unwrap();
    let (end, root) = script.run().await;
    let outcome = outcome(end);
    assert_eq!((outcome.kind, outcome.pages, outcome.message.as_str()), (OutcomeKind::Complete, 0, ""));
    assert_eq!(outcome.origin.as_deref(), Some("http://127.0.0.1:9"));
    let (log, folder) = (read(&root, "log"), root.path().join("exec/7-3"));
    let folder = folder.display();
    for line in [
        "LANDFALL_SITE=127.0.0.1:9",
        "LANDFALL_URL=http://127.0.0.1:9/",
        "LANDFALL_HOST=127.0.0.1",
        "LANDFALL_ADDRESS=127.0.0.1",
        "LANDFALL_TASK=7",
        "LANDFALL_ATTEMPT=3",
        "LANDFALL_MAX_PAGES=50",
        "LANDFALL_MAX_BYTES=1073741824",
        "LANDFALL_MAX_DEPTH=100",
        "LANDFALL_MAX_SECONDS=30",
        "LANDFALL_REQUEST_INTERVAL_MS=50",
        "LANDFALL_REQUEST_INTERVAL_SECONDS=0.050",
        "LANDFALL_SITEMAPS=true",
        "LANDFALL_STORE=true",
        "LANDFALL_INCLUDE=/a",
        &format!("LANDFALL_OUTPUT={folder}/output"),
        &format!("LANDFALL_STATISTICS={folder}/statistics.json"),
        &format!("{folder}/output"),
    ] {
        assert!(log.lines().any(|printed| printed == line), "{line} is not in\n{log}");
    }
    assert!(log.contains("LANDFALL_USER_AGENT=landfall-agent/") && log.contains("(+https://example.org/crawler)"));
    let deadline = log.lines().find_map(|line| line.strip_prefix("LANDFALL_DEADLINE=")).unwrap();
    let deadline = SystemTime::from(chrono::DateTime::parse_from_rfc3339(deadline).unwrap());
    let left = deadline.duration_since(outcome.started_at).unwrap();
    assert!(left.abs_diff(Duration::from_secs(30)) < Duration::from_millis(2), "{left:?}");
    assert!(root.path().join("exec/7-3/output/page").exists());
}

#[tokio::test]
async fn exit_code_and_statistics_make_the_outcome() {
    let write =
        |text: &str, code: u8| format!("echo '{text}' > \"$LANDFALL_STATISTICS\"; echo no route >&2; exit {code}");
    let run = async |text: &str, code| outcome(ScriptCrawl::of(&write(text, code)).run().await.0);
    let good = run(r#"{"pages": 4, "bytes": 5000, "failures": 1}"#, 0).await;
    assert_eq!((good.kind, good.pages, good.bytes, good.errors), (OutcomeKind::Complete, 4, 5000, 1));
    let cut = run(r#"{"pages": 50}"#, 0).await;
    assert_eq!(cut.kind, OutcomeKind::Truncated(Budget::Pages));
    let failed = run("{}", 4).await;
    assert_eq!((failed.kind, failed.trouble, failed.errors), (OutcomeKind::Unreachable, Some(Trouble::Other), 1));
    assert_eq!(failed.message, "the crawler ended with exit code 4: no route");
    for (text, reason) in [
        (r#"{"pages": 4, "hosts": 1}"#, "unknown field `hosts`"),
        (r#"{"pages": -4}"#, "integer `-4`"),
        (r#"{"bytes": 99999999999999999999}"#, "statistics"),
        (&" ".repeat(5000), "more than 4096 bytes"),
    ] {
        let outcome = run(text, 0).await;
        assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 0));
        assert!(outcome.message.contains(reason), "{}", outcome.message);
    }
}

#[tokio::test]
async fn a_crawler_that_is_killed_is_a_crash() {
    let (end, _root) = ScriptCrawl::of("echo out of memory; kill -s SEGV $$").run().await;
    let CrawlEnd::Crashed(crash) = end else { panic!("{end:?}") };
    assert_eq!(crash, "the crawler was killed by SIGSEGV: out of memory");
    let (end, _root) = ScriptCrawl::of("nosuchprogram").run().await;
    let CrawlEnd::Crashed(crash) = end else { panic!("{end:?}") };
    assert!(crash.contains("exit code 127") && crash.contains("not found"), "{crash}");
}

#[tokio::test]
async fn a_signal_that_ends_the_agent_too_is_no_crash() {
    let script = ScriptCrawl::of(&format!("echo $$ > started; {FOREVER}")).start().await;
    // Simulate systemd, which sends SIGTERM to all processes of a unit.
    let first = process(&script.root, "output/started");
    killpg(first, Signal::SIGTERM).unwrap();
    await_end(first).await;
    script.stop.cancel();
    assert!(matches!(script.task.await.unwrap(), CrawlEnd::Stopped(None)));
}

#[tokio::test]
async fn processes_that_a_crawler_leaves_behind_are_killed() {
    let (end, root) = ScriptCrawl::of(&format!("(trap '' TERM; {FOREVER}) & echo $! > left; exit 0")).run().await;
    assert_eq!(outcome(end).kind, OutcomeKind::Complete);
    await_end(process(&root, "output/left")).await;
}

#[tokio::test]
async fn a_stopped_crawler_may_end_by_itself() {
    let end = "trap 'echo ended > said; exit 0' TERM; echo > started; while :; do sleep 0.01; done";
    for preempts in [false, true] {
        let script = ScriptCrawl::of(end).start().await;
        let ends = if preempts { &script.preempted } else { &script.stop };
        ends.cancel();
        let end = script.task.await.unwrap();
        assert!(matches!(end, CrawlEnd::Stopped(None)), "{end:?}");
        assert_eq!(read(&script.root, "output/said"), "ended\n");
    }
}

#[tokio::test]
async fn a_crawler_that_ignores_the_order_to_end_is_killed_with_its_children() {
    let script = format!("trap '' TERM; {FOREVER} & echo $! > child; echo $$ > started; wait");
    let script = ScriptCrawl::of(&script).start().await;
    let ordered = Clock::now();
    script.stop.cancel();
    let end = script.task.await.unwrap();
    assert!(matches!(end, CrawlEnd::Stopped(None)), "{end:?}");
    assert!(ordered.elapsed() >= Duration::from_millis(300), "it gets the grace: {:?}", ordered.elapsed());
    for name in ["output/child", "output/started"] {
        await_end(process(&script.root, name)).await;
    }
}

#[tokio::test]
async fn a_crawl_ends_at_its_deadline_with_what_it_has() {
    let mut script = ScriptCrawl::of(&format!("echo '{{\"pages\": 2}}' > \"$LANDFALL_STATISTICS\"; {FOREVER}"));
    script.crawl.job.policy.max_duration = Duration::from_millis(500);
    let outcome = outcome(script.run().await.0);
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Truncated(Budget::Duration), 2));
    assert!(outcome.duration >= Duration::from_millis(500), "{:?}", outcome.duration);
}

#[tokio::test]
async fn a_crawler_that_left_its_group_does_not_delay_the_outcome() {
    let (end, root) =
        ScriptCrawl::of("setsid sh -c 'echo $$ > left; sleep 30' & until [ -s left ]; do :; done").run().await;
    assert_eq!(outcome(end).kind, OutcomeKind::Complete);
    let left = process(&root, "output/left");
    assert!(runs(left), "only processes of the group are killed");
    kill(left, Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn a_crash_of_the_agents_task_kills_the_crawler() {
    let script = ScriptCrawl::of(&format!("echo $$ > started; {FOREVER}")).start().await;
    script.task.abort();
    await_end(process(&script.root, "output/started")).await;
}

#[tokio::test]
async fn the_death_of_the_agent_kills_all_processes_of_its_crawlers() {
    let script = ScriptCrawl::of(&format!("{FOREVER} & echo $! > child; echo $$ > started; wait")).start().await;
    let other = ScriptCrawl::of(&format!("echo $$ > started; {FOREVER}")).start().await;
    let spared = process(&other.root, "output/started");
    // Tell the guardian that the process group `spared` has ended, so that the guardian does not
    // kill this group.
    script.guardian.add(spared);
    script.guardian.remove(spared);
    script.guardian.close();
    await_end(process(&script.root, "output/started")).await;
    await_end(process(&script.root, "output/child")).await;
    assert!(matches!(script.task.await.unwrap(), CrawlEnd::Crashed(_)));
    assert!(runs(spared), "a group that is removed is not killed");
}

#[tokio::test]
async fn without_an_address_or_a_permit_the_command_is_not_run() {
    let mut script = ScriptCrawl::of("echo");
    script.crawl.context = Arc::new(context(&[]));
    let (end, root) = script.run().await;
    assert_eq!(outcome(end).kind, OutcomeKind::Blocked(Blocker::Guard));
    assert!(!root.path().join("exec/7-3").exists());

    let mut script = ScriptCrawl::of("echo");
    let refuse = Arc::new(|_: IpAddr| async { Err(NotPermitted("full".to_owned())) }.boxed());
    script.crawl.permits = AddressPermits::from_scheduler(refuse, SchedulerSilence::default());
    let (end, root) = script.run().await;
    assert!(matches!(end, CrawlEnd::NotPermitted), "{end:?}");
    assert!(!root.path().join("exec/7-3").exists());

    let mut script = ScriptCrawl::of("echo");
    script.crawl.job.origin = None;
    let (end, root) = script.run().await;
    let outcome = outcome(end);
    assert_eq!((outcome.kind, outcome.trouble), (OutcomeKind::Unreachable, Some(Trouble::Refused)));
    assert!(!root.path().join("exec/7-3").exists());
}

#[tokio::test]
async fn the_next_request_to_the_site_comes_after_an_interval() {
    let mut script = ScriptCrawl::of("true");
    script.crawl.job.policy.request_interval = Duration::from_millis(400);
    let began = Clock::now();
    assert_eq!(outcome(script.run().await.0).kind, OutcomeKind::Complete);
    assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
}

#[test]
fn a_missing_command_is_refused_at_start() {
    let root = tempfile::tempdir().unwrap();
    let mut config = ExecConfig::of(vec!["wget9".to_owned()]);
    config.folder = root.path().join("exec");
    let error = format!("{:#}", ExternalCrawler::open(&config).unwrap_err());
    let remedy = "install it, or correct --exec, or exec.command in agent.toml";
    assert_eq!(error, format!("the crawler 'wget9' is in no folder of PATH: {remedy}"));
    assert!(!config.folder.exists());
}
