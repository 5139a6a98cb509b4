//! The agents' stream, over real tonic on a socket and a real Postgres: what an agent meets on the wire.

use std::path::PathBuf;
use std::time::Duration;

use landfall_proto::v1;
use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_scheduler::Scheduler;
use landfall_scheduler::config::{Config, PolitenessConfig};
use landfall_scheduler::grpc::Identity;
use landfall_scheduler::secret::Secret;
use landfall_scheduler::store::enrolments::{self, Name, Wanted};
use landfall_scheduler::store::{agents, batch_changes, batches, settings};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

/// Longer than anything here takes; a hang fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(20);

#[path = "session/checkpoints.rs"]
mod checkpoints;
#[path = "session/held.rs"]
mod held;
#[path = "session/policies.rs"]
mod policies;
#[path = "session/recalls.rs"]
mod recalls;
#[path = "session/several.rs"]
mod several;
#[path = "session/together.rs"]
mod together;

/// A scheduler with its tasks running, on a port of its own.
struct Running {
    pool: PgPool,
    url: String,
    shutdown: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Running {
    async fn start(pool: PgPool) -> Self {
        Self::with(pool, Config::default()).await
    }

    async fn with(pool: PgPool, config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let config = Config { contact_url: Some("https://example.org/bot".into()), ..config };
        let scheduler = Scheduler::new(pool.clone(), config);
        let identity = Identity { scheduler_url: url.clone(), ca_fingerprint: None };
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(landfall_scheduler::run(scheduler, listener, None, identity, shutdown.clone()));
        Self { pool, url, shutdown, task }
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(self.url.clone()).expect("a URL").connect().await.expect("connect")
    }

    /// A token for an agent of this name.
    async fn token(&self, name: &str) -> String {
        let mut conn = self.pool.acquire().await.expect("connect");
        let wanted = Wanted {
            name: Name::Given(name.to_owned()),
            city: "Harbin".into(),
            carrier: "CERNET".into(),
            country: "CN".into(),
            position: None,
            tags: Vec::new(),
            valid_for: Duration::from_secs(600),
            replaces: true,
        };
        enrolments::create(&mut conn, &[wanted]).await.expect("make an enrolment")[0].token.reveal().to_owned()
    }

    async fn enrol(&self, name: &str) -> v1::EnrolResponse {
        let token = self.token(name).await;
        AgentServiceClient::new(self.channel().await)
            .enrol(v1::EnrolRequest { token })
            .await
            .expect("enrol")
            .into_inner()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("ends in time").expect("no panic").expect("no error");
    }
}

/// An agent's end of a session.
struct Agent {
    outbound: mpsc::Sender<v1::SessionRequest>,
    inbound: Streaming<v1::SessionResponse>,
}

impl Agent {
    async fn connect(running: &Running, credential: &str, held: Vec<v1::HeldLease>) -> Result<Self, Status> {
        Self::register(running, credential, v1::Register { held, ..register() }).await
    }

    async fn register(running: &Running, credential: &str, register: v1::Register) -> Result<Self, Status> {
        let (outbound, requests) = mpsc::channel(16);
        let first = request(v1::session_request::Message::Register(register));
        outbound.send(first).await.expect("room for one");
        let mut request = Request::new(ReceiverStream::new(requests));
        let bearer = format!("Bearer {credential}").parse().expect("a header value");
        request.metadata_mut().insert("authorization", bearer);
        let inbound = AgentServiceClient::new(running.channel().await).session(request).await?.into_inner();
        Ok(Self { outbound, inbound })
    }

    async fn say(&self, message: v1::session_request::Message) {
        self.outbound.send(request(message)).await.expect("the session is open");
    }

    async fn hear(&mut self) -> Result<v1::session_response::Message, Status> {
        let response = tokio::time::timeout(PATIENCE, self.inbound.message()).await.expect("an answer in time")?;
        Ok(response.expect("the session is open").message.expect("a message"))
    }

    /// Ends the requests and waits until the scheduler has ended its answers.
    async fn hang_up(self) {
        let Self { outbound, mut inbound } = self;
        drop(outbound);
        let ended = tokio::time::timeout(PATIENCE, inbound.message()).await.expect("an end in time");
        assert!(matches!(ended, Ok(None)), "expected the end of the session, got {ended:?}");
    }

    async fn welcome(&mut self) -> v1::Welcome {
        match self.hear().await.expect("a welcome") {
            v1::session_response::Message::Welcome(welcome) => welcome,
            other => panic!("expected a welcome, got {other:?}"),
        }
    }

    async fn crawl_order(&mut self) -> v1::CrawlOrder {
        match self.hear().await.expect("an order") {
            v1::session_response::Message::Crawl(order) => order,
            other => panic!("expected a crawl order, got {other:?}"),
        }
    }

    async fn outcome_ack(&mut self) -> v1::OutcomeAck {
        match self.hear().await.expect("an answer") {
            v1::session_response::Message::Outcome(ack) => ack,
            other => panic!("expected an answer to the outcome, got {other:?}"),
        }
    }
}

fn register() -> v1::Register {
    v1::Register {
        name: "a".into(),
        city: "Harbin".into(),
        carrier: "CERNET".into(),
        capacity: 1,
        version: "0.1.0".into(),
        ..v1::Register::default()
    }
}

fn heartbeat(sequence: u64) -> v1::session_request::Message {
    v1::session_request::Message::Heartbeat(v1::Heartbeat { sequence, ..v1::Heartbeat::default() })
}

/// What was refused, and how often, by kind.
async fn refusals(pool: &PgPool) -> Vec<(String, i64)> {
    let counted = sqlx::query_as("select kind::text, times from refusals order by kind::text");
    counted.fetch_all(pool).await.expect("read the refusals")
}

fn request(message: v1::session_request::Message) -> v1::SessionRequest {
    v1::SessionRequest { message: Some(message) }
}

fn outcome(order: &v1::CrawlOrder) -> v1::session_request::Message {
    v1::session_request::Message::Outcome(v1::OutcomeReport {
        task_id: order.task_id,
        token: order.token,
        kind: v1::OutcomeKind::Complete.into(),
        pages: 3,
        bytes: 4096,
        started_at: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
        duration: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
        ..v1::OutcomeReport::default()
    })
}

fn release(order: &v1::CrawlOrder) -> v1::session_request::Message {
    v1::session_request::Message::Release(v1::LeaseRelease {
        task_id: order.task_id,
        token: order.token,
        crash: String::new(),
        not_before: None,
    })
}

/// Submits one site to a batch that needs no measuring.
async fn submit(pool: &PgPool, host: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "insert into batches (name, strategy) values ('b', 'random') on conflict do nothing;
         insert into sites (name) values ('{host}');
         insert into tasks (batch_id, site_id, state) select b.id, s.id, 'located' from batches b, sites s where s.name = '{host}';"
    )))
    .execute(pool)
    .await
    .expect("submit a site");
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_site_travels_from_submission_to_one_accepted_outcome(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    let mut agent = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    let welcome = agent.welcome().await;
    assert_eq!(welcome.agent_id, enrolled.agent_id);
    assert_eq!(welcome.contact_url, "https://example.org/bot");

    submit(&pool, "a.cn").await;
    let order = agent.crawl_order().await;
    assert_eq!(order.token, 1);
    assert_eq!(order.site.as_ref().map(|site| site.name.as_str()), Some("a.cn"));

    agent.say(outcome(&order)).await;
    assert_eq!(agent.outcome_ack().await.answer(), v1::outcome_ack::Answer::Accepted);
    agent.say(outcome(&order)).await;
    assert_eq!(agent.outcome_ack().await.answer(), v1::outcome_ack::Answer::Duplicate);
    let forged = v1::CrawlOrder { token: 9, ..order };
    agent.say(outcome(&forged)).await;
    assert_eq!(agent.outcome_ack().await.answer(), v1::outcome_ack::Answer::Stale);
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn what_a_paused_agent_hands_back_goes_to_another(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let mut full =
        Agent::connect(&running, &running.enrol("full").await.credential, Vec::new()).await.expect("connect");
    full.welcome().await;
    submit(&pool, "a.cn").await;
    let order = full.crawl_order().await;
    let mut other =
        Agent::connect(&running, &running.enrol("other").await.credential, Vec::new()).await.expect("connect");
    other.welcome().await;
    let paused = "the disk is full".to_owned();
    full.say(v1::session_request::Message::Heartbeat(v1::Heartbeat { sequence: 1, paused, ..Default::default() }))
        .await;
    full.say(release(&order)).await;
    let again = other.crawl_order().await;
    assert_eq!((again.task_id, again.token), (order.task_id, 2));
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_second_session_of_an_agent_supersedes_the_first_and_keeps_its_lease(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    let mut first = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    let first_welcome = first.welcome().await;
    submit(&pool, "a.cn").await;
    let order = first.crawl_order().await;

    let held = vec![v1::HeldLease { task_id: order.task_id, token: order.token }];
    let mut second = Agent::connect(&running, &enrolled.credential, held.clone()).await.expect("connect");
    let welcome = second.welcome().await;
    assert!(welcome.incarnation > first_welcome.incarnation);
    assert_eq!(welcome.kept, held);
    // Without a heartbeat of its own: until it is told, it crawls what is another's.
    let told = first.hear().await.expect_err("the first session has ended");
    assert_eq!(told.code(), tonic::Code::Aborted);
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn of_two_processes_with_one_credential_the_newest_stays_and_the_older_waits(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    let mut older = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    older.welcome().await;
    let mut newer = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    newer.welcome().await;
    let told = older.hear().await.expect_err("superseded");
    assert_eq!(told.code(), tonic::Code::Aborted);
    assert!(told.message().starts_with("superseded: another process"), "{}", told.message());

    let yields = async || {
        let register = v1::Register { yields: true, ..register() };
        Agent::register(&running, &enrolled.credential, register).await
    };
    let refused = yields().await.err().expect("the newer one is there");
    assert_eq!(refused.code(), tonic::Code::Aborted);
    assert_eq!(refusals(&pool).await, [("twin".to_owned(), 1)], "the operator sees it");
    let mut conn = pool.acquire().await.expect("connect");
    let shown = agents::show(&mut conn, "a").await.expect("look").expect("the agent");
    assert!(shown.twin_at.is_some(), "in the list as well");
    drop(conn);
    newer.say(v1::session_request::Message::Leave(v1::Leave {})).await;
    newer.hang_up().await;
    yields().await.expect("its place is free").welcome().await;
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_whose_place_another_machine_gets_is_told_on_its_stream_and_whenever_it_comes(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let former = running.enrol("a").await;
    let mut there = Agent::connect(&running, &former.credential, Vec::new()).await.expect("connect");
    there.welcome().await;
    submit(&pool, "a.cn").await;
    let order = there.crawl_order().await;
    let new = running.enrol("a").await;
    let told = there.hear().await.expect_err("moved");
    assert_eq!(told.code(), tonic::Code::PermissionDenied);
    let held = vec![v1::HeldLease { task_id: order.task_id, token: order.token }];
    let refused = Agent::connect(&running, &former.credential, held).await.err().expect("for good");
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    assert!(refused.message().starts_with("agent a was moved to another machine at "), "{}", refused.message());
    let mut here = Agent::connect(&running, &new.credential, Vec::new()).await.expect("connect");
    here.welcome().await;
    let again = here.crawl_order().await;
    assert_eq!((again.task_id, again.token), (order.task_id, order.token + 1));
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_process_that_connects_anew_keeps_its_lease_and_its_former_stream_does_not_call_it_another(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    let same = |held| v1::Register { process: 5, held, ..register() };
    let mut former = Agent::register(&running, &enrolled.credential, same(Vec::new())).await.expect("connect");
    former.welcome().await;
    submit(&pool, "a.cn").await;
    let order = former.crawl_order().await;
    let held = vec![v1::HeldLease { task_id: order.task_id, token: order.token }];
    let mut anew = Agent::register(&running, &enrolled.credential, same(held.clone())).await.expect("connect");
    assert_eq!(anew.welcome().await.kept, held);
    let told = former.hear().await.expect_err("the former stream has ended");
    assert_eq!(told.code(), tonic::Code::Unavailable, "{told}");
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_that_supersedes_itself_all_the_time_is_refused_and_whoever_is_connected_stays(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    let mut connected = Vec::new();
    let refused = loop {
        match Agent::connect(&running, &enrolled.credential, Vec::new()).await {
            Ok(mut agent) => {
                agent.welcome().await;
                connected.push(agent);
            }
            Err(status) => break status,
        }
    };
    assert_eq!((refused.code(), connected.len()), (tonic::Code::ResourceExhausted, 11), "the first supersedes nobody");
    assert!(refused.message().starts_with("flapping: 10 sessions"), "{}", refused.message());
    assert!(!refused.message().contains("  "), "{}", refused.message());
    let mut last = connected.pop().expect("eleven");
    last.say(heartbeat(1)).await;
    assert!(matches!(last.hear().await, Ok(v1::session_response::Message::Heartbeat(_))));
    assert_eq!(refusals(&pool).await, [("flapping".to_owned(), 1)]);

    sqlx::query("update sessions set ended_at = ended_at - interval '1 minute'").execute(&pool).await.expect("wait");
    let mut again = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    again.welcome().await;
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn what_cannot_be_is_refused_by_kind_and_counted_and_changes_nothing(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let (holder, thief) = (running.enrol("a").await, running.enrol("b").await);
    let mut agent = Agent::connect(&running, &holder.credential, Vec::new()).await.expect("connect");
    agent.welcome().await;
    submit(&pool, "a.cn").await;
    let order = agent.crawl_order().await;

    let mut other = Agent::connect(&running, &thief.credential, Vec::new()).await.expect("connect");
    other.welcome().await;
    for (order, said) in [
        (order.clone(), "another agent's lease"),
        (v1::CrawlOrder { token: 9, ..order.clone() }, "a token that was never granted"),
        (v1::CrawlOrder { task_id: 999, ..order.clone() }, "an outcome of an unknown task"),
    ] {
        other.say(outcome(&order)).await;
        let ack = other.outcome_ack().await;
        assert_eq!((ack.answer(), ack.reason.as_str()), (v1::outcome_ack::Answer::Stale, said));
    }
    // Nor does it hand back what is not its own.
    other.say(release(&order)).await;
    other.say(heartbeat(1)).await;
    assert!(matches!(other.hear().await, Ok(v1::session_response::Message::Heartbeat(_))));
    other.say(heartbeat(1_000_000)).await;
    let told = other.hear().await.expect_err("from the future");
    assert_eq!(told.code(), tonic::Code::InvalidArgument);
    assert!(told.message().starts_with("heartbeat.sequence: 1000000 when at most "), "{}", told.message());

    agent.say(outcome(&order)).await;
    assert_eq!(agent.outcome_ack().await.answer(), v1::outcome_ack::Answer::Accepted);
    let v1::session_request::Message::Outcome(first) = outcome(&order) else { panic!("an outcome") };
    agent.say(v1::session_request::Message::Outcome(v1::OutcomeReport { pages: first.pages + 1, ..first })).await;
    let ack = agent.outcome_ack().await;
    assert_eq!(ack.answer(), v1::outcome_ack::Answer::Duplicate);
    assert_eq!(ack.reason, "an outcome that contradicts the one that was accepted");
    let counted =
        [("contradiction", 1), ("foreign-lease", 2), ("forged-token", 1), ("future-heartbeat", 1), ("unknown-task", 1)];
    assert_eq!(refusals(&pool).await, counted.map(|(kind, times)| (kind.to_owned(), times)));
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_cancelled_task_is_called_back_down_the_stream(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    let mut agent = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    agent.welcome().await;
    submit(&pool, "a.cn").await;
    let order = agent.crawl_order().await;
    let mut conn = pool.acquire().await.expect("a connection");
    let batch = batches::by_name(&mut conn, "b").await.expect("read").expect("a batch");
    batch_changes::cancel(&mut conn, batch.id, "b", &batch_changes::Extent::All).await.expect("cancel");
    match agent.hear().await.expect("an order") {
        v1::session_response::Message::Cancel(cancel) => {
            assert_eq!((cancel.task_id, cancel.token), (order.task_id, order.token));
        }
        other => panic!("expected to be called back, got {other:?}"),
    }
    agent.say(outcome(&order)).await;
    let ack = agent.outcome_ack().await;
    assert_eq!(ack.answer(), v1::outcome_ack::Answer::Stale);
    assert_eq!(ack.reason, "an outcome of a task that has ended otherwise");
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_contact_url_reaches_agents_that_came_before_it(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    // Now that the scheduler has started and stored its own.
    sqlx::query("update settings set contact_url = null").execute(&pool).await.expect("forget it");
    let mut agent = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    assert_eq!(agent.welcome().await.contact_url, "");
    agent.say(heartbeat(1)).await;
    assert!(matches!(agent.hear().await, Ok(v1::session_response::Message::Heartbeat(_))));

    let mut conn = pool.acquire().await.expect("a connection");
    settings::set_contact_url(&mut conn, "https://example.org/bot").await.expect("set it");
    agent.say(heartbeat(1)).await;
    assert_eq!(agent.hear().await.expect_err("asked to come again").code(), tonic::Code::Unavailable);
    let mut again = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    assert_eq!(again.welcome().await.contact_url, "https://example.org/bot");
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_that_leaves_gives_its_site_back_at_once(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let (leaving, staying) = (running.enrol("a").await, running.enrol("b").await);
    let mut first = Agent::connect(&running, &leaving.credential, Vec::new()).await.expect("connect");
    first.welcome().await;
    submit(&pool, "a.cn").await;
    let order = first.crawl_order().await;

    let mut second = Agent::connect(&running, &staying.credential, Vec::new()).await.expect("connect");
    second.welcome().await;
    first.say(v1::session_request::Message::Leave(v1::Leave {})).await;
    first.say(release(&order)).await;
    first.hang_up().await;
    let again = second.crawl_order().await;
    assert_eq!((again.task_id, again.token), (order.task_id, 2));
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_that_hands_one_lease_back_is_not_taken_for_leaving(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    let mut agent = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    agent.welcome().await;
    submit(&pool, "a.cn").await;
    let order = agent.crawl_order().await;
    agent.say(release(&order)).await;
    let again = agent.crawl_order().await;
    assert_eq!((again.task_id, again.token), (order.task_id, 2), "granted again, after a pause");
    // Neither does a broken stream take what it still holds from it.
    agent.hang_up().await;
    let held = vec![v1::HeldLease { task_id: again.task_id, token: again.token }];
    let mut returned = Agent::connect(&running, &enrolled.credential, held.clone()).await.expect("connect");
    assert_eq!(returned.welcome().await.kept, held);
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_that_hung_up_is_given_nothing_new_until_it_is_back(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let (lost, staying) = (running.enrol("a").await, running.enrol("b").await);
    let mut first = Agent::connect(&running, &lost.credential, Vec::new()).await.expect("connect");
    first.welcome().await;
    let mut second = Agent::connect(&running, &staying.credential, Vec::new()).await.expect("connect");
    second.welcome().await;
    first.hang_up().await;
    // Where nothing is known of distances any agent is as good, so one of these would be the first's by chance.
    for host in ["a.cn", "b.cn", "c.cn", "d.cn", "e.cn", "f.cn", "g.cn", "h.cn"] {
        submit(&pool, host).await;
        let order = second.crawl_order().await;
        second.say(outcome(&order)).await;
        second.outcome_ack().await;
    }
    let mut back = Agent::connect(&running, &lost.credential, Vec::new()).await.expect("connect");
    back.welcome().await;
    second.hang_up().await;
    submit(&pool, "i.cn").await;
    back.crawl_order().await;
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn strangers_and_bad_manners_are_refused(pool: PgPool) {
    let running = Running::start(pool).await;
    let enrolled = running.enrol("a").await;
    let Err(status) = Agent::connect(&running, "not-a-credential", Vec::new()).await else {
        panic!("a stranger was let in");
    };
    assert_eq!(status.code(), tonic::Code::Unauthenticated);

    let mut agent = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    agent.welcome().await;
    agent.say(v1::session_request::Message::Register(v1::Register::default())).await;
    assert_eq!(agent.hear().await.expect_err("ended").code(), tonic::Code::InvalidArgument);

    let token = running.token("c").await;
    let mut client = AgentServiceClient::new(running.channel().await);
    client.enrol(v1::EnrolRequest { token: token.clone() }).await.expect("the first use");
    assert!(client.enrol(v1::EnrolRequest { token }).await.is_err(), "a token works once");
    running.stop().await;
}

/// A way to the database on which everything can be held up: nothing passes then, and nobody is told.
struct Way {
    folder: tempfile::TempDir,
    open: watch::Sender<bool>,
}

impl Way {
    fn to(target: &PgConnectOptions) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let name = format!(".s.PGSQL.{}", target.get_port());
        let target = target.get_socket().map_or_else(|| PathBuf::from(target.get_host()), Clone::clone).join(&name);
        let listener = UnixListener::bind(folder.path().join(name)).expect("bind");
        let open = watch::Sender::new(true);
        let gate = open.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&target).await.expect("the database");
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                tokio::spawn(carry(from_client, to_server, gate.subscribe()));
                tokio::spawn(carry(from_server, to_client, gate.subscribe()));
            }
        });
        Self { folder, open }
    }

    fn pool(&self, target: PgConnectOptions) -> PgPool {
        PgPoolOptions::new().max_connections(8).connect_lazy_with(target.socket(self.folder.path()))
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut open: watch::Receiver<bool>) {
    let mut buffer = [0; 4096];
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 || open.wait_for(|open| *open).await.is_err() || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn while_the_database_is_silent_everybody_is_told_and_afterwards_all_goes_on(pool: PgPool) {
    let target = (*pool.connect_options()).clone();
    let way = Way::to(&target);
    let running = Running::start(way.pool(target)).await;
    let enrolled = running.enrol("a").await;
    let mut agent = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    agent.welcome().await;
    submit(&pool, "a.cn").await;
    let order = agent.crawl_order().await;

    way.open.send_replace(false);
    agent.say(outcome(&order)).await;
    let ended = agent.hear().await.expect_err("nobody answers");
    assert_eq!((ended.code(), ended.message()), (tonic::Code::Unavailable, "the database is away: try again"));
    let held = vec![v1::HeldLease { task_id: order.task_id, token: order.token }];
    let refused = Agent::connect(&running, &enrolled.credential, held.clone()).await.err().expect("nobody answers");
    assert_eq!(refused.code(), tonic::Code::Unavailable, "at once, and not after a patience of its own: {refused}");

    way.open.send_replace(true);
    let mut agent = loop {
        match Agent::connect(&running, &enrolled.credential, held.clone()).await {
            Ok(agent) => break agent,
            Err(refused) => assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}"),
        }
    };
    assert_eq!(agent.welcome().await.kept, held, "its outcome had not come through");
    agent.say(outcome(&order)).await;
    assert_eq!(agent.outcome_ack().await.answer(), v1::outcome_ack::Answer::Accepted);
    let done: i64 = sqlx::query_scalar("select count(*) from outcomes").fetch_one(&pool).await.expect("count");
    assert_eq!(done, 1);
    running.stop().await;
}
