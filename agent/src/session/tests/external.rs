//! Tests that the lease of an external crawler is renewed, stopped and reported like any other
//! lease.

use std::path::{Path, PathBuf};

use super::*;
use crate::config::ExecConfig;

/// An agent whose sites are crawled by a shell script.
struct ScriptAgent {
    agent: TestAgent,
    root: tempfile::TempDir,
}

impl ScriptAgent {
    fn start(scheduler: &TestScheduler, script: &str) -> Self {
        Self::start_with_space(scheduler, script, 0)
    }

    fn start_with_space(scheduler: &TestScheduler, script: &str, min_free_bytes: u64) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut config = ExecConfig::of(["sh", "-c", script].map(str::to_owned).to_vec());
        config.folder = root.path().join("exec");
        config.min_free_bytes = min_free_bytes;
        // A script that is asked to end may be slow on a busy machine.
        config.grace_ms = 20_000;
        let crawler = ExternalCrawler::open(&config).unwrap();
        let outbox = Outbox::open(root.path(), 0).unwrap();
        let scheduler = [format!("http://{}", scheduler.addr)];
        Self { agent: TestAgent::crawling_with(&scheduler, outbox, None, Some(crawler)), root }
    }

    /// A file that the script of the lease wrote.
    fn file(&self, name: &str) -> PathBuf {
        let HeldLease { task_id, token, .. } = LEASE;
        self.root.path().join(format!("exec/{task_id}-{token}/output")).join(name)
    }
}

/// Waits until a script has written a file.
async fn written(file: &Path) {
    let waiting = async {
        while !file.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the script runs");
}

/// A script that writes a file when it starts, and another when it is asked to end.
const WAITS: &str = "trap 'echo > ended; exit 0' TERM; echo > started; while :; do sleep 0.01; done";

#[tokio::test]
async fn an_external_crawler_gets_its_permit_and_its_outcome_is_reported() {
    let mut scheduler = TestScheduler::start(None).await;
    let agent =
        ScriptAgent::start(&scheduler, "echo '{\"pages\": 3, \"bytes\": 99}' > $LANDFALL_STATISTICS; echo > started");
    let server = page_server().await;
    let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let Some(Up::Permit(request)) = session.next_or_permit_request().await else { panic!("no request") };
    assert_eq!((request.task_id, request.token, request.address.as_str()), (LEASE.task_id, LEASE.token, "127.0.0.1"));
    assert!(!agent.file("started").exists() && server.requests().is_empty(), "nothing happens before the permit");
    session.answer(request, true).await;
    let outcome = outcome(&mut session).await;
    assert_eq!((outcome.kind(), outcome.pages, outcome.bytes), (OutcomeKind::Complete, 3, 99));
    assert_eq!(outcome.origin, format!("http://{}", server.addr));
    assert!(agent.file("started").exists());
}

#[tokio::test]
async fn without_space_for_its_output_no_lease_is_taken() {
    let mut scheduler = TestScheduler::start(None).await;
    let agent = ScriptAgent::start_with_space(&scheduler, "echo > started", 1 << 60);
    let server = page_server().await;
    let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let Some(Up::Heartbeat(heartbeat)) = session.next().await else { panic!("no heartbeat") };
    assert!(heartbeat.paused.contains("/exec has "), "{}", heartbeat.paused);
    assert!(matches!(session.next().await, Some(Up::Release(_))));
    assert!(!agent.file("started").exists() && server.requests().is_empty());
}

#[tokio::test]
async fn a_cancelled_or_preempted_lease_ends_the_command() {
    let HeldLease { task_id, token, history } = LEASE;
    for order in [
        Down::Cancel(CancelOrder { task_id, token, history }),
        Down::Preempt(PreemptOrder { task_id, token, history, reason: "a faster agent".to_owned() }),
    ] {
        let mut scheduler = TestScheduler::start(None).await;
        let agent = ScriptAgent::start(&scheduler, WAITS);
        let server = page_server().await;
        let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
        session.send(Down::Crawl(crawl_order(&server))).await;
        session.permit().await;
        written(&agent.file("started")).await;
        session.send(order).await;
        assert_eq!(released(&mut session).await, (task_id, token));
        assert!(agent.file("ended").exists());
    }
}

#[tokio::test]
async fn heartbeats_renew_the_lease_while_the_command_runs_and_silence_ends_it() {
    let mut scheduler = TestScheduler::start(None).await;
    let agent = ScriptAgent::start(&scheduler, WAITS);
    let server = page_server().await;
    let (mut session, _) = scheduler.session().await;
    let life = Duration::from_secs(4);
    session.welcome(Duration::from_millis(50), life, Vec::new(), CONTACT).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    session.permit().await;
    let acknowledged = Instant::now();
    while acknowledged.elapsed() < life * 3 / 2 {
        if let Some(Up::Heartbeat(beat)) = session.next().await {
            session.send(Down::Heartbeat(HeartbeatAck { sequence: beat.sequence })).await;
        }
    }
    assert!(agent.file("started").exists() && !agent.file("ended").exists(), "the lease was renewed");
    written(&agent.file("ended")).await;
    let (_session, register) = scheduler.session().await;
    assert_eq!(register.held, [], "the lease is lost");
}

#[tokio::test]
async fn an_agent_that_stops_ends_the_command_and_returns_the_lease() {
    let mut scheduler = TestScheduler::start(None).await;
    let ScriptAgent { agent, root } = ScriptAgent::start(&scheduler, WAITS);
    let server = page_server().await;
    let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    session.permit().await;
    let output = root.path().join(format!("exec/{}-{}/output", LEASE.task_id, LEASE.token));
    written(&output.join("started")).await;
    agent.stop.cancel();
    assert_eq!(session.next_but_heartbeats().await, Some(Up::Leave(Leave {})));
    assert_eq!(released(&mut session).await, (LEASE.task_id, LEASE.token));
    assert!(output.join("ended").exists());
}

#[tokio::test]
async fn a_command_that_is_killed_returns_the_lease_with_the_reason() {
    let mut scheduler = TestScheduler::start(None).await;
    let _agent = ScriptAgent::start(&scheduler, "kill -s KILL $$");
    let server = page_server().await;
    let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    session.permit().await;
    let Some(Up::Release(release)) = session.next_but_heartbeats().await else { panic!("no release") };
    assert_eq!(release.crash, "the crawler was killed by SIGKILL");
}
