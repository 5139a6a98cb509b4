//! Tests the stream of agents with real tonic on a socket and a real Postgres: what an agent
//! receives from the scheduler.

use std::path::PathBuf;
use std::time::Duration;

use landfall_proto::v1;
use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::outcome_ack::Answer;
use landfall_proto::v1::report_service_client::ReportServiceClient;
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::session_response::Message as Down;
use landfall_proto::v1::site_service_client::SiteServiceClient;
use landfall_scheduler::Scheduler;
use landfall_scheduler::config::{Config, PolitenessConfig};
use landfall_scheduler::grpc::Identity;
use landfall_scheduler::machine::secret::Secret;
use landfall_scheduler::store::agents::new_enrolments::{self, AgentRequest, Name};
use landfall_scheduler::store::batches::{self, cancel_and_retry};
use landfall_scheduler::store::{self, Db, Tx, agents, settings};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

/// Time limit of every wait, so that a hanging test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Receives the next message of a session, which must be of this kind.
macro_rules! heard {
    ($agent:expr, $kind:ident) => {
        match $agent.hear().await.expect("a message") {
            Down::$kind(message) => message,
            other => panic!("expected {}, got {other:?}", stringify!($kind)),
        }
    };
}

mod checkpoints;
mod held;
mod histories;
mod locked;
mod overdue;
mod policies;
mod preemptions;
mod programs;
mod several;
mod together;

/// A scheduler on its own port, with its background jobs running.
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
        let servers = (*pool.connect_options()).clone().into();
        // The first connection draws the history of a new database, before any lease is granted.
        store::connect(&servers).await.expect("connect");
        let scheduler = Scheduler::new(Db::of(pool.clone()), servers, config);
        let identity = Identity { scheduler_url: url.clone(), ca_fingerprint: None };
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(landfall_scheduler::run(scheduler, listener, None, identity, shutdown.clone()));
        Self { pool, url, shutdown, task }
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(self.url.clone()).expect("a URL").connect().await.expect("connect")
    }

    /// Makes an enrolment token for an agent of this name.
    async fn token(&self, name: &str) -> String {
        let mut conn = self.pool.acquire().await.expect("connect");
        let wanted = AgentRequest {
            name: Name::Given(name.to_owned()),
            city: "Harbin".into(),
            carrier: "CERNET".into(),
            country: "CN".into(),
            position: None,
            tags: Vec::new(),
            valid_for: Duration::from_secs(600),
            replaces: true,
        };
        let mut tx = Tx::on(&mut conn).await.expect("begin");
        let made = new_enrolments::create(&mut tx, &[wanted]).await.expect("make an enrolment").remove(0);
        tx.commit().await.expect("commit");
        made.token.reveal().to_owned()
    }

    async fn enrol(&self, name: &str) -> v1::EnrolResponse {
        let token = self.token(name).await;
        AgentServiceClient::new(self.channel().await)
            .enrol(v1::EnrolRequest { token })
            .await
            .expect("enrol")
            .into_inner()
    }

    /// Enrols an agent with this name, and connects it.
    async fn agent(&self, name: &str) -> Agent {
        let enrolled = self.enrol(name).await;
        self.connect(&enrolled.credential, Vec::new()).await
    }

    async fn connect(&self, credential: &str, held: Vec<v1::HeldLease>) -> Agent {
        self.register(credential, v1::Register { held, ..register() }).await.expect("connect")
    }

    /// Connects and waits for the welcome.
    async fn register(&self, credential: &str, register: v1::Register) -> Result<Agent, Status> {
        let (outbound, requests) = mpsc::channel(16);
        let mut request = Request::new(ReceiverStream::new(requests));
        request.metadata_mut().insert("authorization", bearer(credential));
        let first = v1::SessionRequest { message: Some(Up::Register(register)) };
        outbound.send(first).await.expect("room for one");
        let inbound = AgentServiceClient::new(self.channel().await).session(request).await?.into_inner();
        let mut agent = Agent { credential: credential.to_owned(), welcome: v1::Welcome::default(), outbound, inbound };
        agent.welcome = heard!(agent, Welcome);
        Ok(agent)
    }

    /// Tries to connect; returns the status with which the scheduler refuses the connection.
    async fn refused(&self, credential: &str, held: Vec<v1::HeldLease>) -> Status {
        self.register(credential, v1::Register { held, ..register() }).await.err().expect("it is refused")
    }

    /// Starts a scheduler, and an agent that has begun to crawl `a.cn`.
    async fn crawling(pool: &PgPool) -> (Self, Agent, v1::CrawlOrder) {
        let running = Self::start(pool.clone()).await;
        let mut agent = running.agent("a").await;
        submit(pool, "a.cn").await;
        let order = agent.crawl_order().await;
        (running, agent, order)
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("ends in time").expect("no panic").expect("no error");
    }
}

fn bearer(secret: &str) -> MetadataValue<Ascii> {
    format!("Bearer {secret}").parse().expect("a header value")
}

/// The agent's side of a session.
struct Agent {
    credential: String,
    welcome: v1::Welcome,
    outbound: mpsc::Sender<v1::SessionRequest>,
    inbound: Streaming<v1::SessionResponse>,
}

impl Agent {
    async fn say(&self, message: Up) {
        self.outbound.send(v1::SessionRequest { message: Some(message) }).await.expect("the session is open");
    }

    async fn hear(&mut self) -> Result<Down, Status> {
        let response = tokio::time::timeout(PATIENCE, self.inbound.message()).await.expect("an answer in time")?;
        Ok(response.expect("the session is open").message.expect("a message"))
    }

    /// Waits for the end of the session; returns the scheduler's status.
    async fn ended(&mut self) -> Status {
        self.hear().await.expect_err("the end of the session")
    }

    /// Closes the agent's side of the stream and waits until the scheduler has closed its side;
    /// returns the credential.
    async fn disconnect(self) -> String {
        let Self { credential, outbound, mut inbound, .. } = self;
        drop(outbound);
        let ended = tokio::time::timeout(PATIENCE, inbound.message()).await.expect("an end in time");
        assert!(matches!(ended, Ok(None)), "expected the end of the session, got {ended:?}");
        credential
    }

    async fn crawl_order(&mut self) -> v1::CrawlOrder {
        heard!(self, Crawl)
    }

    /// Sends a heartbeat and waits for its answer. The scheduler may still handle earlier messages.
    async fn beat(&mut self) {
        self.say(heartbeat(1)).await;
        heard!(self, Heartbeat);
    }

    /// Sends heartbeats until another message comes.
    async fn beat_until(&mut self) -> Down {
        loop {
            self.say(heartbeat(1)).await;
            match self.hear().await.expect("a message") {
                Down::Heartbeat(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                other => return other,
            }
        }
    }

    /// Reports the end of a crawl; returns the answer.
    async fn report(&mut self, order: &v1::CrawlOrder) -> v1::OutcomeAck {
        self.say(outcome(order)).await;
        heard!(self, Outcome)
    }

    /// Reports the end of a crawl. The scheduler must accept the report.
    async fn end(&mut self, order: &v1::CrawlOrder) {
        assert_eq!(self.report(order).await.answer(), Answer::Accepted);
    }
}

/// An operator connected to a scheduler.
struct Operator {
    client: SiteServiceClient<Channel>,
    bearer: MetadataValue<Ascii>,
}

impl Operator {
    async fn of(running: &Running) -> Self {
        let token = Secret::generate().expect("randomness");
        let mut conn = running.pool.acquire().await.expect("connect");
        settings::set_operator_token_hash(&mut conn, &token.hash()).await.expect("a token");
        Self { client: SiteServiceClient::new(running.channel().await), bearer: bearer(token.reveal()) }
    }

    fn says<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.bearer.clone());
        request
    }

    /// Submits a site to a batch whose strategy needs no measurements.
    async fn submit(&mut self, batch: &str, host: &str, policy: v1::CrawlPolicy) {
        let header = v1::SubmitHeader {
            batch: batch.into(),
            strategy: "random".into(),
            policy: Some(policy),
            ..v1::SubmitHeader::default()
        };
        let messages = [
            v1::submit_request::Part::Header(header),
            v1::submit_request::Part::Chunk(v1::SubmitChunk { sites: vec![host.into()], positions: Vec::new() }),
        ]
        .map(|part| v1::SubmitRequest { part: Some(part) });
        let request = self.says(tokio_stream::iter(messages));
        self.client.submit(request).await.expect("submit");
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

fn heartbeat(sequence: u64) -> Up {
    Up::Heartbeat(v1::Heartbeat { sequence, ..v1::Heartbeat::default() })
}

fn held(order: &v1::CrawlOrder) -> Vec<v1::HeldLease> {
    vec![v1::HeldLease { task_id: order.task_id, token: order.token, history: order.history }]
}

async fn await_count(pool: &PgPool, query: &'static str, wanted: i64) {
    let reached = async {
        while sqlx::query_scalar::<_, i64>(query).fetch_one(pool).await.expect("count") != wanted {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{query} never came to {wanted}"));
}

/// The number of recorded refusals of each kind.
async fn refusals(pool: &PgPool) -> Vec<(String, i64)> {
    let counted = sqlx::query_as("select kind::text, times from refusals order by kind::text");
    counted.fetch_all(pool).await.expect("read the refusals")
}

fn outcome(order: &v1::CrawlOrder) -> Up {
    Up::Outcome(v1::OutcomeReport {
        task_id: order.task_id,
        token: order.token,
        history: order.history,
        kind: v1::OutcomeKind::Complete.into(),
        pages: 3,
        bytes: 4096,
        started_at: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
        duration: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
        ..v1::OutcomeReport::default()
    })
}

fn release(order: &v1::CrawlOrder) -> Up {
    let v1::CrawlOrder { task_id, token, history, .. } = *order;
    Up::Release(v1::LeaseRelease { task_id, token, history, crash: String::new(), not_before: None })
}

/// Submits one site to a batch whose strategy needs no measurements.
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
    let mut agent = running.connect(&enrolled.credential, Vec::new()).await;
    let welcome = agent.welcome.clone();
    assert_eq!(welcome.agent_id, enrolled.agent_id);
    assert_eq!(welcome.contact_url, "https://example.org/bot");

    submit(&pool, "a.cn").await;
    let order = agent.crawl_order().await;
    assert_eq!(order.token, 1);
    assert_eq!(order.site.as_ref().map(|site| site.name.as_str()), Some("a.cn"));

    agent.end(&order).await;
    assert_eq!(agent.report(&order).await.answer(), Answer::Duplicate);
    let forged = v1::CrawlOrder { token: 9, ..order };
    assert_eq!(agent.report(&forged).await.answer(), Answer::Stale);
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn what_a_paused_agent_hands_back_goes_to_another(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let mut full = running.agent("full").await;
    submit(&pool, "a.cn").await;
    let order = full.crawl_order().await;
    let mut other = running.agent("other").await;
    let paused = "the disk is full".to_owned();
    full.say(Up::Heartbeat(v1::Heartbeat { sequence: 1, paused, ..Default::default() })).await;
    full.say(release(&order)).await;
    let again = other.crawl_order().await;
    assert_eq!((again.task_id, again.token), (order.task_id, 2));
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_second_session_of_an_agent_supersedes_the_first_and_keeps_its_lease(pool: PgPool) {
    let (running, mut first, order) = Running::crawling(&pool).await;

    let held = held(&order);
    let second = running.connect(&first.credential, held.clone()).await;
    assert!(second.welcome.incarnation > first.welcome.incarnation);
    assert_eq!(second.welcome.kept, held);
    // The first session must end even if its process sends no heartbeat. Until this session ends,
    // its process crawls a site that is leased to the second session.
    let told = first.ended().await;
    assert_eq!(told.code(), Code::Aborted);
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn of_two_processes_with_one_credential_the_newest_stays_and_the_older_waits(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let mut older = running.agent("a").await;
    let newer = running.connect(&older.credential, Vec::new()).await;
    let told = older.ended().await;
    assert_eq!(told.code(), Code::Aborted);
    assert!(told.message().starts_with("superseded: another process"), "{}", told.message());

    let yields = async || {
        let register = v1::Register { yields: true, ..register() };
        running.register(&older.credential, register).await
    };
    let refused = yields().await.err().expect("the newer one is there");
    assert_eq!(refused.code(), Code::Aborted);
    assert_eq!(refusals(&pool).await, [("twin".to_owned(), 1)], "the operator sees it");
    let mut conn = pool.acquire().await.expect("connect");
    let shown = agents::show(&mut conn, "a").await.expect("look").expect("the agent");
    assert!(shown.twin_at.is_some(), "in the list as well");
    drop(conn);
    newer.say(Up::Leave(v1::Leave {})).await;
    newer.disconnect().await;
    yields().await.expect("its place is free");
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_whose_place_another_machine_gets_is_told_on_its_stream_and_whenever_it_comes(pool: PgPool) {
    let (running, mut there, order) = Running::crawling(&pool).await;
    let new = running.enrol("a").await;
    let told = there.ended().await;
    assert_eq!(told.code(), Code::PermissionDenied);
    let refused = running.refused(&there.credential, held(&order)).await;
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().starts_with("agent a was moved to another machine at "), "{}", refused.message());
    let mut here = running.connect(&new.credential, Vec::new()).await;
    let again = here.crawl_order().await;
    assert_eq!((again.task_id, again.token), (order.task_id, order.token + 1));
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_process_that_connects_anew_keeps_its_lease_and_its_former_stream_does_not_call_it_another(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    let same = |held| v1::Register { process: 5, held, ..register() };
    let mut former = running.register(&enrolled.credential, same(Vec::new())).await.expect("connect");
    submit(&pool, "a.cn").await;
    let order = former.crawl_order().await;
    let held = held(&order);
    let anew = running.register(&enrolled.credential, same(held.clone())).await.expect("connect");
    assert_eq!(anew.welcome.kept, held);
    let told = former.ended().await;
    assert_eq!(told.code(), Code::Unavailable, "{told}");
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_that_supersedes_itself_all_the_time_is_refused_and_whoever_is_connected_stays(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    let mut connected = Vec::new();
    let refused = loop {
        match running.register(&enrolled.credential, register()).await {
            Ok(agent) => connected.push(agent),
            Err(status) => break status,
        }
    };
    assert_eq!((refused.code(), connected.len()), (Code::ResourceExhausted, 11), "the first supersedes nobody");
    assert!(refused.message().starts_with("flapping: 10 sessions"), "{}", refused.message());
    assert!(!refused.message().contains("  "), "{}", refused.message());
    let mut last = connected.pop().expect("eleven");
    last.beat().await;
    assert_eq!(refusals(&pool).await, [("flapping".to_owned(), 1)]);

    sqlx::query("update sessions set ended_at = ended_at - interval '1 minute'").execute(&pool).await.expect("wait");
    running.connect(&enrolled.credential, Vec::new()).await;
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn what_cannot_be_is_refused_by_kind_and_counted_and_changes_nothing(pool: PgPool) {
    let (running, mut agent, order) = Running::crawling(&pool).await;
    let mut other = running.agent("b").await;
    for (order, said) in [
        (order.clone(), "a report on another agent's lease"),
        (v1::CrawlOrder { token: 9, ..order.clone() }, "a token that was never granted"),
        (v1::CrawlOrder { task_id: 999, ..order.clone() }, "an outcome of an unknown task"),
    ] {
        let ack = other.report(&order).await;
        assert_eq!((ack.answer(), ack.reason.as_str()), (Answer::Stale, said));
    }
    // An agent cannot hand back another agent's lease either.
    other.say(release(&order)).await;
    other.say(heartbeat(1_000_000)).await;
    let told = other.ended().await;
    assert_eq!(told.code(), Code::InvalidArgument);
    assert!(told.message().starts_with("heartbeat.sequence: 1000000 when at most "), "{}", told.message());

    agent.end(&order).await;
    let Up::Outcome(first) = outcome(&order) else { panic!("an outcome") };
    agent.say(Up::Outcome(v1::OutcomeReport { pages: first.pages + 1, ..first })).await;
    let ack = heard!(agent, Outcome);
    assert_eq!(ack.answer(), Answer::Duplicate);
    assert_eq!(ack.reason, "an outcome that contradicts the one that was accepted");
    let counted =
        [("contradiction", 1), ("foreign-lease", 2), ("forged-token", 1), ("future-heartbeat", 1), ("unknown-task", 1)];
    assert_eq!(refusals(&pool).await, counted.map(|(kind, times)| (kind.to_owned(), times)));
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_cancelled_task_is_called_back_down_the_stream(pool: PgPool) {
    let (running, mut agent, order) = Running::crawling(&pool).await;
    let mut conn = pool.acquire().await.expect("a connection");
    let batch = batches::by_name(&mut conn, "b").await.expect("read").expect("a batch");
    let site = order.site.as_ref().expect("a site").name.parse().expect("a name");
    let mut tx = Tx::on(&mut conn).await.expect("begin");
    cancel_and_retry::cancel(&mut tx, batch.id, "b", &[site]).await.expect("cancel");
    tx.commit().await.expect("commit");
    let cancel = heard!(agent, Cancel);
    assert_eq!((cancel.task_id, cancel.token), (order.task_id, order.token));
    let ack = agent.report(&order).await;
    assert_eq!(ack.answer(), Answer::Stale);
    assert_eq!(ack.reason, "an outcome of a task that has ended in another way");
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_contact_url_reaches_agents_that_came_before_it(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    // The contact URL is deleted only now, because the scheduler stores its configured contact URL
    // when it starts.
    sqlx::query("update settings set contact_url = null").execute(&pool).await.expect("forget it");
    let mut agent = running.connect(&enrolled.credential, Vec::new()).await;
    assert_eq!(agent.welcome.contact_url, "");
    agent.beat().await;

    let mut conn = pool.acquire().await.expect("a connection");
    settings::set_contact_url(&mut conn, "https://example.org/bot").await.expect("set it");
    agent.say(heartbeat(1)).await;
    assert_eq!(agent.ended().await.code(), Code::Unavailable);
    let again = running.connect(&enrolled.credential, Vec::new()).await;
    assert_eq!(again.welcome.contact_url, "https://example.org/bot");
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_that_leaves_gives_its_site_back_at_once(pool: PgPool) {
    let (running, first, order) = Running::crawling(&pool).await;
    let mut second = running.agent("b").await;
    first.say(Up::Leave(v1::Leave {})).await;
    first.say(release(&order)).await;
    first.disconnect().await;
    let again = second.crawl_order().await;
    assert_eq!((again.task_id, again.token), (order.task_id, 2));
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_that_hands_one_lease_back_is_not_taken_for_leaving(pool: PgPool) {
    let (running, mut agent, order) = Running::crawling(&pool).await;
    agent.say(release(&order)).await;
    let again = agent.crawl_order().await;
    assert_eq!((again.task_id, again.token), (order.task_id, 2), "granted again, after a pause");
    // The agent keeps its new lease if the stream breaks.
    let credential = agent.disconnect().await;
    assert_eq!(running.connect(&credential, held(&again)).await.welcome.kept, held(&again));
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_that_disconnected_is_given_nothing_new_until_it_is_back(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let (first, mut second) = (running.agent("a").await, running.agent("b").await);
    let credential = first.disconnect().await;
    // Agents are chosen at random here. With eight sites, the first agent would very probably get a
    // site if it could still get work.
    for host in ["a.cn", "b.cn", "c.cn", "d.cn", "e.cn", "f.cn", "g.cn", "h.cn"] {
        submit(&pool, host).await;
        let order = second.crawl_order().await;
        second.end(&order).await;
    }
    let mut back = running.connect(&credential, Vec::new()).await;
    second.disconnect().await;
    submit(&pool, "i.cn").await;
    back.crawl_order().await;
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn unknown_agents_and_breaches_of_the_protocol_are_refused(pool: PgPool) {
    let running = Running::start(pool).await;
    assert_eq!(running.refused("not-a-credential", Vec::new()).await.code(), Code::Unauthenticated);

    let mut agent = running.agent("a").await;
    agent.say(Up::Register(v1::Register::default())).await;
    assert_eq!(agent.ended().await.code(), Code::InvalidArgument);

    let token = running.token("c").await;
    let mut client = AgentServiceClient::new(running.channel().await);
    client.enrol(v1::EnrolRequest { token: token.clone() }).await.expect("the first use");
    assert!(client.enrol(v1::EnrolRequest { token }).await.is_err(), "a token works once");
    running.stop().await;
}

/// A connection to the database that can be blocked. While it is blocked, no data pass, and neither
/// side gets an error.
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
    let mut agent = running.agent("a").await;
    submit(&pool, "a.cn").await;
    let order = agent.crawl_order().await;

    way.open.send_replace(false);
    agent.say(outcome(&order)).await;
    let ended = agent.ended().await;
    assert_eq!((ended.code(), ended.message()), (Code::Unavailable, "the database does not answer: try again"));
    let held = held(&order);
    let refused = running.refused(&agent.credential, held.clone()).await;
    assert_eq!(refused.code(), Code::Unavailable, "at once, and not after a patience of its own: {refused}");

    way.open.send_replace(true);
    let mut agent = loop {
        match running.register(&agent.credential, v1::Register { held: held.clone(), ..register() }).await {
            Ok(agent) => break agent,
            Err(refused) => assert_eq!(refused.code(), Code::Unavailable, "{refused}"),
        }
    };
    assert_eq!(agent.welcome.kept, held, "its outcome had not come through");
    agent.end(&order).await;
    let done: i64 = sqlx::query_scalar("select count(*) from outcomes").fetch_one(&pool).await.expect("count");
    assert_eq!(done, 1);
    running.stop().await;
}
