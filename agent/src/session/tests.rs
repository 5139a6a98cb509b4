use std::time::Duration;

use landfall_proto::v1::measurement_failure::Reason;
use landfall_proto::v1::measurement_report::Result as Reported;
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::session_response::Message as Down;
use landfall_proto::v1::{
    BeaconTarget, CancelOrder, CrawlOrder, CrawlPolicy, DistanceMetric, HeartbeatAck, HeldLease, Leave, MeasureOrder,
    OutcomeAck, OutcomeKind, OutcomeReport, PermitRequest, PreemptOrder, Register, SiteTarget, measure_order,
    outcome_ack,
};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::known_schedulers::Schedulers;
use super::opening::{SessionEnd, refused_or_broken};
use super::work::Work;
use super::*;
use crate::config::StoreConfig;
use crate::crawl::ExternalCrawler;
use crate::disk::crawl_files::CrawlFiles;
use crate::disk::outbox::Outbox;
use crate::net::request_context::{RequestBase, RequestContext};
use crate::testing::scheduler::{CREDENTIAL, TestScheduler, TestSession};
use crate::testing::{SeenRequest, ServerAction, TestServer, answer, context, html, status, stored_lines};
use crate::warc::Store;

mod external;
mod permits_and_preemptions;
mod policies;

const CONTACT: &str = "https://example.org/crawler";
const LONG: Duration = Duration::from_secs(60);
const LEASE: HeldLease = HeldLease { task_id: 5, token: 2, history: 9 };

struct TestAgent {
    stop: CancellationToken,
    running: JoinHandle<()>,
    /// The outbox's folder if it is temporary. A temporary folder is deleted when the agent is
    /// dropped.
    _folder: Option<tempfile::TempDir>,
}

impl TestAgent {
    fn start(scheduler: &TestScheduler) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(folder.path(), 0).unwrap();
        Self { _folder: Some(folder), ..Self::with(scheduler, outbox) }
    }

    fn with(scheduler: &TestScheduler, outbox: Outbox) -> Self {
        Self::of(&[format!("http://{}", scheduler.addr)], outbox, None)
    }

    fn of(addresses: &[String], outbox: Outbox, store: Option<Store>) -> Self {
        Self::crawling_with(addresses, outbox, store, None)
    }

    fn crawling_with(
        addresses: &[String],
        outbox: Outbox,
        store: Option<Store>,
        external: Option<ExternalCrawler>,
    ) -> Self {
        let session_config = SessionConfig {
            schedulers: Schedulers::try_new(addresses).unwrap(),
            ca: None,
            credential: bearer(CREDENTIAL, std::path::Path::new("credential")).unwrap(),
            bind: None,
            register: Register { name: "harbin-cernet".to_owned(), capacity: 2, process: 7, ..Register::default() },
        };
        let request_base = request_base(&["127.0.0.0/8"]);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let running = tokio::spawn(async move {
            let crawls = tempfile::tempdir().unwrap();
            let kept = CrawlFiles::open(crawls.path()).unwrap();
            let work = Work::new(request_base, 2, outbox, kept).storing(store).crawling_with(external);
            drop(run(&session_config, work, &stopped, &mut ChaCha8Rng::seed_from_u64(3)).await);
        });
        Self { stop, running, _folder: None }
    }
}

fn measure_order(server: &TestServer) -> MeasureOrder {
    MeasureOrder {
        order_id: 9,
        target: Some(measure_order::Target::Site(site(server))),
        samples: 3,
        interval: Some(prost_types::Duration::default()),
        timeout: Some(prost_types::Duration { seconds: 5, nanos: 0 }),
        metric: DistanceMetric::Ttfb.into(),
        least_samples: None,
        share_max_age: None,
        resolve_only: false,
        address: String::new(),
    }
}

fn site(server: &TestServer) -> SiteTarget {
    SiteTarget { site_id: 1, name: format!("http://{}", server.addr), origin: String::new() }
}

fn crawl_order(server: &TestServer) -> CrawlOrder {
    CrawlOrder {
        task_id: LEASE.task_id,
        history: LEASE.history,
        token: LEASE.token,
        site: Some(site(server)),
        policy: Some(CrawlPolicy {
            max_pages: Some(5),
            max_bytes: Some(1 << 20),
            max_depth: Some(1),
            max_hosts: Some(10),
            max_duration: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
            request_interval: Some(prost_types::Duration::default()),
            ..CrawlPolicy::default()
        }),
        ..CrawlOrder::default()
    }
}

async fn page_server() -> TestServer {
    TestServer::start(|path| if path == "/robots.txt" { status(404) } else { html("hi") }).await
}

async fn silent_server() -> TestServer {
    TestServer::start(|_| vec![ServerAction::Wait]).await
}

/// The request base of an agent without a contact URL.
pub(super) fn request_base(allow_net: &[&str]) -> RequestBase {
    let RequestContext { guard, resolver, bind, tls, .. } = context(allow_net);
    RequestBase { guard, resolver, bind, tls, user_agent: None }
}

/// An agent with an open session.
async fn connected() -> (TestScheduler, TestAgent, TestSession) {
    let mut scheduler = TestScheduler::start(None).await;
    let agent = TestAgent::start(&scheduler);
    let (session, _) = welcomed(&mut scheduler, Vec::new()).await;
    (scheduler, agent, session)
}

/// Acknowledges the outcome of a task.
async fn acknowledge(session: &TestSession, task_id: i64) {
    let answer = outcome_ack::Answer::Accepted.into();
    let HeldLease { token, history, .. } = LEASE;
    session.send(Down::Outcome(OutcomeAck { task_id, token, history, answer, ..OutcomeAck::default() })).await;
}

/// Waits for the next outcome, before which only heartbeats may come.
async fn outcome(session: &mut TestSession) -> OutcomeReport {
    match session.next_but_heartbeats().await {
        Some(Up::Outcome(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

/// Waits for the next release, before which only heartbeats may come. Returns the release's task
/// and token.
async fn released(session: &mut TestSession) -> (i64, i64) {
    match session.next_but_heartbeats().await {
        Some(Up::Release(release)) => (release.task_id, release.token),
        other => panic!("{other:?}"),
    }
}

/// Waits until a crawl sends its first request.
async fn begins(session: &mut TestSession, server: &TestServer) {
    session.permit().await;
    server.until(|seen| !seen.is_empty()).await;
}

async fn welcomed(scheduler: &mut TestScheduler, kept: Vec<HeldLease>) -> (TestSession, Register) {
    let (session, register) = scheduler.session().await;
    session.welcome(LONG, LONG, kept, CONTACT).await;
    (session, register)
}

#[tokio::test]
async fn an_agent_that_stops_sends_heartbeats_until_its_outcomes_are_acknowledged() {
    let mut scheduler = TestScheduler::start(None).await;
    let agent = TestAgent::start(&scheduler);
    let server = page_server().await;
    let (mut session, _) = scheduler.session().await;
    session.welcome(Duration::from_millis(30), LONG, Vec::new(), CONTACT).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    assert_eq!(outcome(&mut session).await.task_id, LEASE.task_id);
    agent.stop.cancel();
    assert!(matches!(session.next_but_heartbeats().await, Some(Up::Leave(_))));
    for _ in 0..3 {
        let Some(Up::Heartbeat(beat)) = session.next().await else { panic!("no heartbeat") };
        session.send(Down::Heartbeat(HeartbeatAck { sequence: beat.sequence })).await;
    }
    acknowledge(&session, LEASE.task_id).await;
    assert!(session.next_but_heartbeats().await.is_none(), "it closes the stream");
    drop(session);
    agent.running.await.unwrap();
}

#[tokio::test]
async fn an_agent_registers_heartbeats_and_measures() {
    let mut scheduler = TestScheduler::start(None).await;
    let agent = TestAgent::start(&scheduler);
    let server = page_server().await;
    let (mut session, register) = scheduler.session().await;
    assert_eq!((register.name.as_str(), register.capacity, register.held.len()), ("harbin-cernet", 2, 0));
    session.welcome(Duration::from_millis(30), LONG, Vec::new(), CONTACT).await;
    for expected in 1..=3 {
        match session.next().await {
            Some(Up::Heartbeat(beat)) => assert_eq!(beat.sequence, expected),
            other => panic!("{other:?}"),
        }
        session.send(Down::Heartbeat(HeartbeatAck { sequence: expected })).await;
    }
    session.send(Down::Measure(measure_order(&server))).await;
    let Some(Up::Measurement(report)) = session.next_but_heartbeats().await else { panic!("no report") };
    assert_eq!((report.order_id, report.address.as_str()), (9, "127.0.0.1"));
    assert_eq!(report.origin, format!("http://{}", server.addr));
    match report.result {
        Some(Reported::Measurement(measurement)) => assert_eq!((measurement.count, measurement.lost), (3, 0)),
        other => panic!("{other:?}"),
    }
    agent.stop.cancel();
    assert_eq!(session.next_but_heartbeats().await, Some(Up::Leave(Leave {})), "the agent says goodbye");
    assert_eq!(session.next_but_heartbeats().await, None);
    drop(session);
    agent.running.await.unwrap();
}

#[tokio::test]
async fn without_a_contact_url_nothing_is_sent() {
    let mut scheduler = TestScheduler::start(None).await;
    let _agent = TestAgent::start(&scheduler);
    let server = page_server().await;
    let (mut session, _) = scheduler.session().await;
    session.welcome(LONG, LONG, Vec::new(), "").await;
    session.send(Down::Measure(measure_order(&server))).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    match session.next().await {
        Some(Up::Measurement(report)) => match report.result {
            Some(Reported::Failure(failure)) => assert_eq!(failure.reason(), Reason::NoContactUrl),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    assert!(matches!(session.next().await, Some(Up::Release(_))));
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn an_outcome_is_offered_until_it_is_acknowledged() {
    let (mut scheduler, _agent, mut session) = connected().await;
    let server = page_server().await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let first = outcome(&mut session).await;
    assert_eq!((first.task_id, first.token, first.pages), (LEASE.task_id, LEASE.token, 1));
    assert_eq!(first.kind(), OutcomeKind::Complete);
    drop(session);

    let (mut session, register) = welcomed(&mut scheduler, Vec::new()).await;
    assert_eq!(register.held, [LEASE]);
    assert_eq!(outcome(&mut session).await, first, "it is offered again");
    acknowledge(&session, LEASE.task_id).await;
    drop(session);

    let (_session, register) = welcomed(&mut scheduler, Vec::new()).await;
    assert_eq!(register.held, []);
}

#[tokio::test]
async fn a_killed_agent_offers_its_outcomes_after_a_restart() {
    let mut scheduler = TestScheduler::start(None).await;
    let folder = tempfile::tempdir().unwrap();
    let server = page_server().await;
    let killed = TestAgent::with(&scheduler, Outbox::open(folder.path(), 0).unwrap());
    let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let first = outcome(&mut session).await;
    killed.running.abort();
    assert!(killed.running.await.unwrap_err().is_cancelled(), "it had no time for anything");
    drop(session);

    let _agent = TestAgent::with(&scheduler, Outbox::open(folder.path(), 0).unwrap());
    let (mut session, register) = welcomed(&mut scheduler, Vec::new()).await;
    assert_eq!(register.held, [LEASE]);
    assert_eq!(outcome(&mut session).await, first, "it is offered again");
}

#[tokio::test]
async fn an_agent_reports_a_full_disk_before_it_hands_leases_back() {
    let mut scheduler = TestScheduler::start(None).await;
    let folder = tempfile::tempdir().unwrap();
    let _agent = TestAgent::with(&scheduler, Outbox::open(folder.path(), u64::MAX).unwrap());
    let server = page_server().await;
    let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let Some(Up::Heartbeat(heartbeat)) = session.next().await else { panic!("no heartbeat") };
    assert!(heartbeat.paused.contains("disk full: "), "{}", heartbeat.paused);
    assert!(matches!(session.next().await, Some(Up::Release(_))));
    assert!(server.requests().is_empty());
}

/// An agent that stores pages in a folder, and reports a full disk below `min_free_bytes`.
fn storing(scheduler: &TestScheduler, folder: &std::path::Path, min_free_bytes: u64) -> TestAgent {
    let pages = StoreConfig { folder: folder.join("pages"), max_file_bytes: 1 << 30, min_free_bytes };
    let store = Store::open(&pages, "harbin-cernet").unwrap();
    let outbox = Outbox::open(&folder.join("outbox"), 0).unwrap();
    TestAgent::of(&[format!("http://{}", scheduler.addr)], outbox, Some(store))
}

#[tokio::test]
async fn pages_are_stored_with_their_task_before_the_outcome_is_reported() {
    let mut scheduler = TestScheduler::start(None).await;
    let folder = tempfile::tempdir().unwrap();
    let _agent = storing(&scheduler, folder.path(), 0);
    let server = page_server().await;
    let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let outcome = outcome(&mut session).await;
    assert_eq!(outcome.pages, 1);
    let lines = stored_lines(&folder.path().join("pages"));
    let site = format!("http://{}", server.addr);
    let reported: Vec<_> =
        lines.iter().map(|line| (line.url.as_str(), line.status, line.task, line.site.as_str())).collect();
    let (robots, start) = (format!("{site}/robots.txt"), format!("{site}/"));
    let task = Some(LEASE.task_id);
    assert_eq!(reported, [(robots.as_str(), 404, task, site.as_str()), (start.as_str(), 200, task, site.as_str())]);
}

#[tokio::test]
async fn an_agent_without_space_for_pages_takes_no_lease_and_reports_why() {
    let mut scheduler = TestScheduler::start(None).await;
    let folder = tempfile::tempdir().unwrap();
    let _agent = storing(&scheduler, folder.path(), 1 << 60);
    let server = page_server().await;
    let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let Some(Up::Heartbeat(heartbeat)) = session.next().await else { panic!("no heartbeat") };
    assert!(heartbeat.paused.contains("/pages has "), "{}", heartbeat.paused);
    assert!(matches!(session.next().await, Some(Up::Release(_))));
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_crawl_continues_across_sessions_until_its_lease_is_not_kept() {
    let mut scheduler = TestScheduler::start(None).await;
    let _agent = TestAgent::start(&scheduler);
    let server = silent_server().await;
    let (mut session, first) = welcomed(&mut scheduler, Vec::new()).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    begins(&mut session, &server).await;
    drop(session);
    let (session, register) = welcomed(&mut scheduler, vec![LEASE]).await;
    assert_eq!((register.held, register.process), (vec![LEASE], first.process), "the same process");
    drop(session);
    let (mut session, register) = welcomed(&mut scheduler, Vec::new()).await;
    assert_eq!(register.held, [LEASE], "the lease was kept");
    assert!(matches!(session.next().await, Some(Up::Release(_))), "it was not kept");
}

#[tokio::test]
async fn a_superseded_agent_drops_its_crawls_and_yields_until_the_other_process_is_gone() {
    let mut scheduler = TestScheduler::start(None).await;
    let _agent = TestAgent::start(&scheduler);
    let server = silent_server().await;
    let (mut session, register) = welcomed(&mut scheduler, Vec::new()).await;
    assert!(!register.yields);
    session.send(Down::Crawl(crawl_order(&server))).await;
    begins(&mut session, &server).await;
    session.fail(Status::aborted("another process took over")).await;
    for attempt in 0..2 {
        let (session, register) = scheduler.session().await;
        assert!(register.yields, "attempt {attempt}");
        assert_eq!(register.held, [], "they are the other process' by now");
        session.fail(Status::aborted("another process is connected")).await;
    }
    let (session, register) = welcomed(&mut scheduler, Vec::new()).await;
    assert!(register.yields);
    drop(session);
    let (_session, register) = welcomed(&mut scheduler, Vec::new()).await;
    assert!(!register.yields, "it was welcomed since");
}

#[tokio::test]
async fn a_replaced_agent_stops() {
    let (_scheduler, agent, mut session) = connected().await;
    let server = silent_server().await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    begins(&mut session, &server).await;
    session.fail(Status::permission_denied("moved to another machine")).await;
    agent.running.await.unwrap();
}

#[tokio::test]
async fn the_deadline_stops_crawls_and_their_leases_are_no_longer_reported() {
    let mut scheduler = TestScheduler::start(None).await;
    let _agent = TestAgent::start(&scheduler);
    let server = silent_server().await;
    let (mut session, _) = scheduler.session().await;
    session.welcome(Duration::from_millis(50), Duration::from_secs(5), Vec::new(), CONTACT).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    begins(&mut session, &server).await;
    // No heartbeat is acknowledged, so the agent itself ends the session and opens a new session.
    let (_next, register) = scheduler.session().await;
    assert_eq!(register.held, []);
    drop(session);
}

#[tokio::test]
async fn the_deadline_passes_while_the_scheduler_reads_nothing() {
    let mut scheduler = TestScheduler::start(None).await;
    let _agent = TestAgent::start(&scheduler);
    let server = silent_server().await;
    let (session, _) = scheduler.session().await;
    session.welcome(Duration::from_millis(50), Duration::from_secs(2), Vec::new(), CONTACT).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    // The agent answers each order at once with a long message, until the transport is full. On a
    // slow machine the deadline may pass before the agent has all orders. The agent then does not
    // read the remaining orders, and ends the session.
    let url = "x".repeat(450);
    let orders = async {
        for order_id in 0..6000 {
            let target = Some(measure_order::Target::Beacon(BeaconTarget { agent_id: 1, url: url.clone() }));
            if !session.offer(Down::Measure(MeasureOrder { order_id, target, ..measure_order(&server) })).await {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let (_next, register) = tokio::select! {
        next = scheduler.session() => next,
        () = orders => unreachable!("it waits for ever"),
    };
    assert_eq!(register.held, []);
    drop(session);
}

#[tokio::test]
async fn a_newer_lease_of_a_task_stops_the_older_and_an_older_one_is_handed_back() {
    let (_scheduler, _agent, mut session) = connected().await;
    let server = silent_server().await;
    for (token, handed_back) in [(2, None), (3, Some(2)), (1, Some(1)), (4, Some(3)), (5, Some(4))] {
        session.send(Down::Crawl(CrawlOrder { token, ..crawl_order(&server) })).await;
        if let Some(expected) = handed_back {
            assert_eq!(released(&mut session).await, (LEASE.task_id, expected));
        }
    }
}

#[tokio::test]
async fn a_cancelled_lease_stops_its_crawl_and_no_other() {
    let (_scheduler, _agent, mut session) = connected().await;
    let server = silent_server().await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let HeldLease { task_id, token, history } = LEASE;
    // The agent does not hold the lease of the first order, so that order must not stop any crawl.
    session.send(Down::Cancel(CancelOrder { task_id, token: token + 1, history })).await;
    session.send(Down::Cancel(CancelOrder { task_id, token, history })).await;
    assert_eq!(released(&mut session).await, (task_id, token));
}

#[tokio::test]
async fn a_lease_with_the_numbers_of_a_lost_lease_is_another_lease() {
    let (_scheduler, _agent, mut session) = connected().await;
    let (silent, server) = (silent_server().await, page_server().await);
    session.send(Down::Crawl(CrawlOrder { token: LEASE.token + 7, ..crawl_order(&silent) })).await;
    session.send(Down::Crawl(crawl_order(&silent))).await;
    // The task of the second order is being crawled under a newer lease.
    assert_eq!(released(&mut session).await, (LEASE.task_id, LEASE.token));
    let history = LEASE.history + 1;
    session.send(Down::Crawl(CrawlOrder { history, ..crawl_order(&server) })).await;
    let mut ended = Vec::new();
    for _ in 0..2 {
        match session.next().await {
            Some(Up::Outcome(outcome)) => ended.push((outcome.token, outcome.history, outcome.pages)),
            Some(Up::Release(release)) => ended.push((release.token, release.history, 0)),
            other => panic!("{other:?}"),
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, [(LEASE.token, history, 1), (LEASE.token + 7, LEASE.history, 0)]);
}

#[tokio::test]
async fn a_scheduler_that_never_acknowledges_cannot_fill_the_memory() {
    let (_scheduler, _agent, mut session) = connected().await;
    let server = page_server().await;
    let mut outcomes = 0;
    for task_id in 1..1000 {
        session.send(Down::Crawl(CrawlOrder { task_id, ..crawl_order(&server) })).await;
        match session.next().await {
            Some(Up::Outcome(_)) => outcomes += 1,
            Some(Up::Release(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(outcomes > 60 && outcomes < 100, "{outcomes} are kept");
}

#[tokio::test]
async fn an_extreme_welcome_and_extreme_orders_do_not_end_the_agent() {
    let mut scheduler = TestScheduler::start(None).await;
    let _agent = TestAgent::start(&scheduler);
    let server = page_server().await;
    let (mut session, _) = scheduler.session().await;
    let ever = Duration::from_secs(i64::MAX.unsigned_abs());
    session.welcome(ever, ever, Vec::new(), CONTACT).await;
    let absurd = Some(prost_types::Duration { seconds: i64::MAX, nanos: 0 });
    session.send(Down::Measure(MeasureOrder { samples: u32::MAX, ..measure_order(&server) })).await;
    let Some(Up::Measurement(report)) = session.next().await else { panic!("no report") };
    assert!(matches!(report.result, Some(Reported::Failure(failure)) if failure.reason() == Reason::Order));
    let mut order = crawl_order(&server);
    let policy = order.policy.as_mut().unwrap();
    (policy.max_duration, policy.max_pages) = (absurd, Some(u32::MAX));
    (policy.max_bytes, policy.max_depth) = (Some(u64::MAX), Some(u32::MAX));
    session.send(Down::Crawl(order)).await;
    let outcome = outcome(&mut session).await;
    assert_eq!(outcome.kind(), OutcomeKind::Complete);
}

#[tokio::test]
async fn an_agent_that_stops_hands_its_leases_back() {
    let (_scheduler, agent, mut session) = connected().await;
    let server = silent_server().await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    begins(&mut session, &server).await;
    agent.stop.cancel();
    assert!(matches!(session.next().await, Some(Up::Leave(_))), "before anything that could be granted again");
    assert_eq!(released(&mut session).await, (LEASE.task_id, LEASE.token));
    assert_eq!(session.next().await, None);
    drop(session);
    agent.running.await.unwrap();
}

#[test]
fn a_refused_credential_is_distinguished_from_a_broken_stream() {
    assert!(matches!(refused_or_broken(&Status::unauthenticated("x")), SessionEnd::Refused(_)));
    assert!(matches!(refused_or_broken(&Status::unavailable("x")), SessionEnd::Broken(_)));
    assert!(matches!(refused_or_broken(&Status::aborted("x")), SessionEnd::Superseded(_)));
    assert!(matches!(refused_or_broken(&Status::permission_denied("x")), SessionEnd::Replaced(_)));
    assert!(bearer(" \n", std::path::Path::new("credential")).is_err());
}

#[tokio::test]
async fn an_agent_takes_its_leases_to_the_next_scheduler_that_answers() {
    let (mut first, mut second) = (TestScheduler::start(None).await, TestScheduler::start(None).await);
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = nobody.local_addr().unwrap();
    drop(nobody);
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path(), 0).unwrap();
    let agent = TestAgent::of(&[format!("http://{closed}"), format!("http://{}", first.addr)], outbox, None);
    let (mut session, _) = first.session().await;
    session.others = vec![format!("http://{}", second.addr)];
    session.welcome(LONG, LONG, Vec::new(), CONTACT).await;
    let server = page_server().await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let Some(Up::Outcome(offered)) = session.next().await else { panic!("no outcome") };
    drop(session);
    let (mut session, registered) = second.session().await;
    assert_eq!(registered.held, [LEASE], "it was told of the second by the first");
    session.welcome(LONG, LONG, vec![LEASE], CONTACT).await;
    assert_eq!(session.next().await, Some(Up::Outcome(offered)));
    drop(session);
    let (_session, registered) = first.session().await;
    assert_eq!(registered.held, [LEASE], "and goes round");
    agent.stop.cancel();
    agent.running.await.unwrap();
}
