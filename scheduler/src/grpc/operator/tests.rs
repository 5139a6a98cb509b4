//! Tests the services for operators with a real server and a real Postgres.

use std::sync::Arc;
use std::time::Duration;

use landfall_proto::v1;
use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::embedding_service_client::EmbeddingServiceClient;
use landfall_proto::v1::event_service_client::EventServiceClient;
use landfall_proto::v1::fleet_service_client::FleetServiceClient;
use landfall_proto::v1::report_service_client::ReportServiceClient;
use landfall_proto::v1::site_service_client::SiteServiceClient;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::settings::Identity;
use crate::Scheduler;
use crate::config::{Config, Draws, TermConfig};
use crate::grpc::port::Port;
use crate::jobs::assign::Assign;
use crate::jobs::fit::Fit;
use crate::jobs::leadership::HeldTerms;
use crate::jobs::period::{Period, run_periodic};
use crate::machine::secret::Secret;
use crate::model::{AgentId, SessionId};
use crate::store::agents::issued_tokens;
use crate::store::schedulers::Role;
use crate::store::{Db, fixtures, settings};
use crate::web::{self, Web};

mod callers;
mod circuits;
mod lists;
mod names;
mod pages;
mod plan;
mod reports;
mod status;
mod watchers;

#[derive(Clone)]
struct TokenSender(String);

impl Interceptor for TokenSender {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", format!("Bearer {}", self.0).parse().expect("ASCII"));
        Ok(request)
    }
}

type Client = InterceptedService<Channel, TokenSender>;

/// A server and an operator's client. Dropping this value stops the server.
struct OperatorServer {
    pool: PgPool,
    scheduler: Scheduler,
    endpoint: Endpoint,
    channel: Channel,
    token: Secret,
    shutdown: CancellationToken,
    _stop: DropGuard,
}

impl OperatorServer {
    async fn open(pool: PgPool) -> Self {
        Self::with(pool, Config::default()).await
    }

    async fn with(pool: PgPool, config: Config) -> Self {
        let token = Secret::generate().expect("randomness");
        let mut conn = pool.acquire().await.expect("a connection");
        settings::set_operator_token_hash(&mut conn, &token.hash()).await.expect("a token");
        settings::set_contact_url(&mut conn, "https://example.org/bot").await.expect("a contact URL");
        drop(conn);
        // The term must outlast the test, because nothing renews the term in the background here.
        let config = Config { term: TermConfig { life: Duration::from_secs(3600) }, ..config };
        let port = Arc::new(Port::forgetful(config.port.clone()));
        let scheduler = Scheduler {
            port,
            ..Scheduler::new(Db::of(pool.clone()), (*pool.connect_options()).clone().into(), config)
        };
        let identity = Identity { scheduler_url: "http://127.0.0.1:7171".into(), ca_fingerprint: Some("ab".into()) };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shutdown = CancellationToken::new();
        let (dashboard, pages_end) = (scheduler.clone(), shutdown.child_token());
        let pages = move |services| web::router(Web::new(dashboard, services, false, pages_end));
        tokio::spawn(crate::grpc::serve(scheduler.clone(), listener, None, identity, pages, shutdown.clone()));
        let endpoint = Channel::from_shared(format!("http://{address}")).expect("a URL");
        let channel = endpoint.connect().await.expect("a connection");
        Self { pool, scheduler, endpoint, channel, token, _stop: shutdown.clone().drop_guard(), shutdown }
    }

    fn operator(&self) -> TokenSender {
        TokenSender(self.token.reveal().to_owned())
    }

    fn sites(&self) -> SiteServiceClient<Client> {
        SiteServiceClient::with_interceptor(self.channel.clone(), self.operator())
    }

    fn fleet(&self) -> FleetServiceClient<Client> {
        FleetServiceClient::with_interceptor(self.channel.clone(), self.operator())
    }

    fn embeddings(&self) -> EmbeddingServiceClient<Client> {
        EmbeddingServiceClient::with_interceptor(self.channel.clone(), self.operator())
    }

    fn events(&self) -> EventServiceClient<Client> {
        EventServiceClient::with_interceptor(self.channel.clone(), self.operator())
    }

    /// Fits embeddings in the background, as a running scheduler does, until the server is dropped.
    async fn fits(&self) {
        let terms = HeldTerms::new(&self.scheduler, "http://127.0.0.1:7171");
        terms.renew(&mut self.pool.acquire().await.expect("a connection")).await.expect("the term");
        let (fit, wakes) = (Fit::new(terms.on(Role::Fit, &self.scheduler)), Arc::clone(&self.scheduler.wakes));
        let stop = self.shutdown.clone();
        tokio::spawn(async move {
            run_periodic("fit", Period::Steady(Duration::from_secs(3600)), wakes.fit.here(), &wakes, stop, || {
                fit.run_once()
            })
            .await;
        });
    }

    fn reports(&self) -> ReportServiceClient<Client> {
        ReportServiceClient::with_interceptor(self.channel.clone(), self.operator())
    }

    fn agent(&self, credential: &str) -> AgentServiceClient<Client> {
        AgentServiceClient::with_interceptor(self.channel.clone(), TokenSender(credential.to_owned()))
    }

    async fn submit(&self, batch: &str, names: &[&str]) -> Result<v1::SubmitResponse, Status> {
        self.submit_to(v1::SubmitHeader { batch: batch.into(), ..v1::SubmitHeader::default() }, names).await
    }

    async fn submit_to(&self, header: v1::SubmitHeader, names: &[&str]) -> Result<v1::SubmitResponse, Status> {
        let messages = [
            v1::submit_request::Part::Header(header),
            v1::submit_request::Part::Chunk(v1::SubmitChunk {
                sites: names.iter().map(|&n| n.to_owned()).collect(),
                positions: Vec::new(),
            }),
        ]
        .map(|part| v1::SubmitRequest { part: Some(part) });
        Ok(self.sites().submit(tokio_stream::iter(messages)).await?.into_inner())
    }

    /// Creates connected agents that run a beacon.
    async fn agents(&self, count: usize) -> Vec<(AgentId, SessionId)> {
        let mut conn = self.pool.acquire().await.expect("a connection");
        let mut agents = Vec::new();
        for number in 0..count {
            let agent = fixtures::agent(&mut conn, &format!("agent{number}")).await;
            agents.push((agent, fixtures::session(&mut conn, agent).await));
        }
        self.run("update agents set beacon_url = 'http://127.0.0.1:7180/', city = name, carrier = name").await;
        agents
    }

    async fn run(&self, sql: &'static str) {
        sqlx::query(sql).execute(&self.pool).await.expect(sql);
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn the_same_list_twice_says_so(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let first = desk.submit("autumn", &["A.cn", "a.cn", "http://b.cn:80/path"]).await.expect("submitted");
    assert_eq!((first.added, first.already_present, first.duplicates, first.batch_total), (2, 0, 1, 2));
    let second = desk.submit("autumn", &["a.cn", "http://b.cn"]).await.expect("submitted");
    assert_eq!((second.added, second.already_present, second.batch_total), (0, 2, 2));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_bad_site_is_named_and_nothing_is_stored(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let refused = desk.submit("autumn", &["a.cn", "b c.cn"]).await.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("sites[1]: 'b c.cn' names no site"), "{}", refused.message());
    let refused = desk.submit("bad name", &["a.cn"]).await.expect_err("refused");
    assert!(refused.message().starts_with("batch: 'bad name' is not"), "{}", refused.message());
    let stored: i64 = sqlx::query_scalar("select count(*) from sites").fetch_one(&desk.pool).await.expect("a count");
    assert_eq!(stored, 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_submission_without_a_contact_url_is_refused(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.run("update settings set contact_url = null").await;
    let refused = desk.submit("autumn", &["a.cn"]).await.expect_err("refused");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("landfall contact set URL"));
    let contact_url = "https://example.org/bot".to_owned();
    desk.fleet().set_contact_url(v1::SetContactUrlRequest { contact_url }).await.expect("set");
    desk.submit("autumn", &["a.cn"]).await.expect("submitted");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_unknown_batch_or_site_is_named(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let watched = desk.sites().watch_batch(v1::WatchBatchRequest { batch: "winter".into() }).await;
    let reported =
        desk.reports().assignments(v1::AssignmentsRequest { batch: "winter".into(), ..Default::default() }).await;
    for status in [watched.expect_err("unknown"), reported.expect_err("unknown")] {
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no batch is called 'winter'"));
    }
    let shown = desk.sites().show_site(v1::ShowSiteRequest { site: "A.cn/x".into() }).await.expect_err("unknown");
    assert_eq!((shown.code(), shown.message()), (Code::NotFound, "no site is known as 'a.cn'"));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn constraints_are_kept_shown_and_warned_about(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.agents(1).await;
    let text = |text: &str| vec![text.to_owned()];
    let tag = |add: &str, remove: &str| {
        let list = |tags: &str| tags.split_whitespace().map(str::to_owned).collect();
        v1::TagAgentRequest { name: "agent0".into(), add: list(add), remove: list(remove) }
    };
    let tags = desk.fleet().tag_agent(tag("Fast rack-2", "")).await.expect("tagged").into_inner().tags;
    assert_eq!(tags, ["fast", "rack-2"]);
    let tags = desk.fleet().tag_agent(tag("x", "FAST unknown")).await.expect("tagged").into_inner().tags;
    assert_eq!(tags, ["rack-2", "x"]);
    let listed = desk.fleet().list_agents(v1::ListAgentsRequest::default()).await.expect("listed").into_inner();
    assert_eq!(listed.agents[0].tags, ["rack-2", "x"]);
    for (request, code, message) in [
        (tag("a/b", ""), Code::InvalidArgument, "add: 'a/b' is not 1 to 32"),
        (tag("a", "A"), Code::InvalidArgument, "remove: the tag 'a' cannot be both added and removed"),
        (v1::TagAgentRequest { name: "nobody".into(), ..tag("a", "") }, Code::NotFound, "no agent is called nobody"),
    ] {
        let refused = desk.fleet().tag_agent(request).await.expect_err("refused");
        assert_eq!(refused.code(), code);
        assert!(refused.message().starts_with(message), "{}", refused.message());
    }

    let asked =
        v1::Constraints { countries: text("cn"), tags: text("X"), bytes_per_day: Some(5), ..Default::default() };
    let header =
        |constraints| v1::SubmitHeader { batch: "b".into(), constraints: Some(constraints), ..Default::default() };
    let made = desk.submit_to(header(asked.clone()), &["a.cn"]).await.expect("submitted");
    assert_eq!(made.warnings, Vec::<String>::new());
    let shown = desk.sites().show_batch(v1::ShowBatchRequest { batch: "b".into() }).await.expect("shown").into_inner();
    let has = shown.constraints.expect("constraints");
    assert_eq!((has.countries.join(" "), has.tags.join(" "), has.bytes_per_day), ("CN".into(), "x".into(), Some(5)));
    assert_eq!(has.unmet(), v1::Unmet::Wait);
    let other = v1::Constraints { countries: text("JP"), ..asked };
    let refused = desk.submit_to(header(other.clone()), &["b.cn"]).await.expect_err("refused");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let header = v1::SubmitHeader { batch: "c".into(), ..header(other) };
    let made = desk.submit_to(header.clone(), &["b.cn"]).await.expect("submitted");
    assert_eq!(made.warnings, ["no agent has the country 'JP'"]);
    let wrong = v1::Constraints { countries: text("China"), ..Default::default() };
    let refused = desk.submit_to(v1::SubmitHeader { constraints: Some(wrong), ..header }, &["b.cn"]).await;
    let refused = refused.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().starts_with("constraints.country: 'China' is not a two-letter country code"),
        "{}",
        refused.message()
    );
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn where_a_site_is_goes_in_with_its_list_and_is_shown(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let submit = async |index, latitude| {
        let header = v1::SubmitHeader { batch: "b".into(), ..v1::SubmitHeader::default() };
        let position = v1::ListedPosition { index, latitude, longitude: 116.5 };
        let sites = vec!["a.cn".to_owned(), "b.cn".to_owned()];
        let chunk = v1::SubmitChunk { sites, positions: vec![position] };
        let messages = [v1::submit_request::Part::Header(header), v1::submit_request::Part::Chunk(chunk)];
        let messages = messages.map(|part| v1::SubmitRequest { part: Some(part) });
        desk.sites().submit(tokio_stream::iter(messages)).await
    };
    submit(1, 39.75).await.expect("submitted");
    let shown = async |site: &str| {
        let asked = desk.sites().show_site(v1::ShowSiteRequest { site: site.into() }).await;
        asked.expect("shown").into_inner().position
    };
    assert_eq!(shown("a.cn").await, None);
    let place = v1::GlobePosition { latitude: 39.75, longitude: 116.5, source: "list".into() };
    assert_eq!(shown("b.cn").await, Some(place));
    for (index, latitude, message) in [
        (2, 1.0, "positions[2]: this message has no site with that index"),
        (0, 91.0, "positions[0]: a latitude is between -90 and 90 degrees"),
    ] {
        let refused = submit(index, latitude).await.expect_err("refused");
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, message));
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn every_choice_is_explained_by_what_it_was_made_from(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.agents(3).await;
    let request = v1::TagAgentRequest { name: "agent2".into(), remove: Vec::new(), add: vec!["slow".into()] };
    desk.fleet().tag_agent(request.clone()).await.expect("tagged");
    for name in ["agent0", "agent1"] {
        let tagged = v1::TagAgentRequest { name: name.into(), add: vec!["fast".into()], ..request.clone() };
        desk.fleet().tag_agent(tagged).await.expect("tagged");
    }
    let fast = v1::Constraints { tags: vec!["fast".into()], ..Default::default() };
    let header = v1::SubmitHeader { batch: "autumn".into(), constraints: Some(fast), ..Default::default() };
    desk.submit_to(header, &["a.cn"]).await.expect("submitted");
    desk.submit("winter", &["b.cn"]).await.expect("submitted");
    desk.run("update tasks t set state = 'located' from batches b where b.id = t.batch_id and b.name = 'autumn'").await;
    desk.run(
        "insert into site_measurements (site_id, prober_id, rtt_us, answered, lost)
         select s.id, a.id, 10000 * a.id, 5, 0 from sites s, agents a where s.name = 'a.cn'",
    )
    .await;
    let terms = HeldTerms::new(&desk.scheduler, "http://127.0.0.1:7171");
    terms.renew(&mut desk.pool.acquire().await.expect("a connection")).await.expect("the term");
    let assign = Assign::new(terms.on(Role::Plan, &desk.scheduler));
    assign.run_once().await.expect("a pass");
    let ask = async |site: &str, batch: &str, assignment_id| {
        let request = v1::ExplainRequest { site: site.into(), batch: batch.into(), assignment_id };
        desk.sites().explain(request).await.map(tonic::Response::into_inner)
    };
    let explained = ask("a.cn", "", None).await.expect("explained");
    assert_eq!((explained.site.as_str(), explained.tasks.len()), ("a.cn", 1));
    let task = &explained.tasks[0];
    assert_eq!((task.state.as_str(), task.waits.as_str(), task.choices.len()), ("assigned", "", 1));
    let first = task.choices[0].clone();
    assert!(first.because.starts_with("chosen because it was drawn among the 2 nearest, with the seed "), "{first:?}");
    assert!(first.because.ends_with("measured; 1 agent was excluded by the batch's constraints"), "{first:?}");
    let levels: Vec<Option<i64>> = first.candidates.iter().map(|one| one.load_level).collect();
    assert_eq!((levels, first.available), (vec![Some(-2), Some(-2)], Some(2)));
    let excluded = v1::ExcludedAgents {
        constraint: "tag:fast".into(),
        why: "lacks the tag 'fast'".into(),
        agents: vec!["agent2".into()],
    };
    assert_eq!(first.excluded, [excluded]);

    // Draining the agent causes a second choice; the stored first choice stays unchanged.
    desk.fleet().drain_agent(v1::DrainAgentRequest { name: first.agent.clone() }).await.expect("drained");
    assign.run_once().await.expect("a pass");
    let explained = ask("http://a.cn", "autumn", None).await.expect("explained");
    let [second, former] = &explained.tasks[0].choices[..] else { panic!("{explained:?}") };
    assert!(second.newest && second.because.starts_with("chosen because it is the next candidate: "), "{second:?}");
    assert_ne!(second.agent, first.agent);
    assert_eq!(*former, v1::ExplainedChoice { newest: false, ..first.clone() });
    let one = ask("a.cn", "", Some(first.assignment_id)).await.expect("explained");
    assert_eq!(one.tasks[0].choices, std::slice::from_ref(former));

    // The last agent that may crawl the site is drained, so the site waits.
    desk.fleet().drain_agent(v1::DrainAgentRequest { name: second.agent.clone() }).await.expect("drained");
    assign.run_once().await.expect("a pass");
    let waits = ask("a.cn", "", None).await.expect("explained").tasks.remove(0).waits;
    let reason = "the 2 agents that meet the constraints take no work now: see `landfall agents list`";
    assert_eq!(waits, format!("no agent yet: {reason}"));
    let waits = ask("b.cn", "", None).await.expect("explained").tasks.remove(0).waits;
    assert_eq!(waits, "no agent yet: it is queued to be measured");
    for (asked, message) in [
        (ask("c.cn", "", None).await, "no site is known as 'c.cn'; did you mean a.cn or b.cn?"),
        (ask("a.cn", "spring", None).await, "no batch is called 'spring'"),
        (ask("a.cn", "winter", None).await, "batch winter does not contain a.cn"),
        (
            ask("b.cn", "", Some(first.assignment_id)).await,
            "b.cn has no choice 1: `landfall explain b.cn` lists those it has",
        ),
    ] {
        let refused = asked.expect_err("refused");
        assert_eq!((refused.code(), refused.message()), (Code::NotFound, message));
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_enrolment_token_works_once(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let request = v1::CreateEnrolmentRequest {
        city: "Harbin".into(),
        carrier: "CERNET".into(),
        country: "cn".into(),
        latitude: Some(45.8),
        longitude: Some(126.5),
        ..v1::CreateEnrolmentRequest::default()
    };
    let made = desk.fleet().create_enrolment(request.clone()).await.expect("made").into_inner();
    assert_eq!((made.name.as_str(), made.ca_fingerprint.as_str()), ("harbin-cernet", "ab"));
    assert_eq!(made.contact_url, "https://example.org/bot");
    let mut tx = fixtures::begin(&desk.pool).await;
    let redeemed = issued_tokens::redeem(&mut tx, &made.token, 5).await.expect("redeemed");
    assert_eq!((redeemed.name.as_str(), redeemed.country.as_str()), ("harbin-cernet", "CN"));
    let again = issued_tokens::redeem(&mut tx, &made.token, 5).await.expect_err("used");
    tx.commit().await.expect("commit");
    assert_eq!(Status::from(again).code(), Code::FailedPrecondition);
    let listed = desk.fleet().list_agents(v1::ListAgentsRequest::default()).await.expect("listed").into_inner();
    assert_eq!(listed.agents.len(), 1);
    assert!(!listed.agents[0].connected);
    assert_eq!((listed.agents[0].latitude, listed.agents[0].longitude), (Some(45.8), Some(126.5)));

    for (request, field) in [
        (v1::CreateEnrolmentRequest { city: " ".into(), ..request.clone() }, "city"),
        (v1::CreateEnrolmentRequest { name: "a b".into(), ..request.clone() }, "name"),
        (v1::CreateEnrolmentRequest { latitude: Some(90.5), ..request.clone() }, "latitude"),
        (v1::CreateEnrolmentRequest { longitude: Some(f64::NAN), ..request.clone() }, "longitude"),
        (v1::CreateEnrolmentRequest { longitude: None, ..request.clone() }, "longitude"),
        (v1::CreateEnrolmentRequest { country: "CHN".into(), ..request.clone() }, "country"),
        (
            v1::CreateEnrolmentRequest { valid_for: Some(prost_types::Duration { seconds: 1, nanos: 0 }), ..request },
            "valid_for",
        ),
    ] {
        let refused = desk.fleet().create_enrolment(request).await.expect_err(field);
        assert!(refused.message().starts_with(&format!("{field}: ")), "{}", refused.message());
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn several_agents_get_their_tokens_together_or_none(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let mut fleet = desk.fleet();
    fixtures::agent(&mut desk.pool.acquire().await.expect("a connection"), "busy").await;
    let one = |name: &str, city: &str| v1::CreateEnrolmentRequest {
        name: name.into(),
        city: city.into(),
        carrier: "电信".into(),
        ..v1::CreateEnrolmentRequest::default()
    };
    let ask = |enrolments| v1::CreateEnrolmentsRequest { enrolments, dry_run: false };
    let bad = [("busy", "A"), ("", "北京"), ("a b", "A"), ("x", ""), ("y", "A"), ("y", "A")];
    let bad = bad.map(|(name, city)| one(name, city)).to_vec();
    let answer = fleet.create_enrolments(ask(bad)).await.expect("answered").into_inner();
    let places: Vec<u32> = answer.problems.iter().map(|problem| problem.index).collect();
    assert_eq!((places, answer.enrolments.len()), (vec![0, 2, 3, 5], 0));
    let good = ask(vec![one("", "北京"); 1000]);
    let dry = v1::CreateEnrolmentsRequest { dry_run: true, ..good.clone() };
    fleet.create_enrolments(dry).await.expect("checked");
    let listed = fleet.list_enrolments(v1::ListEnrolmentsRequest::default()).await.expect("listed").into_inner();
    assert_eq!(listed.enrolments.len(), 0);

    let made = fleet.create_enrolments(good).await.expect("made").into_inner().enrolments;
    assert_eq!((made[0].name.as_str(), made[999].name.as_str()), ("beijing-dianxin", "beijing-dianxin-1000"));
    let agents = fleet.list_agents(v1::ListAgentsRequest::default()).await.expect("listed").into_inner();
    assert_eq!((agents.agents.len(), agents.open_enrolments), (1, 1000));
    let name = || "beijing-dianxin".to_owned();
    let shown = fleet.show_agent(v1::ShowAgentRequest { name: name() }).await.expect_err("not yet");
    let removed = fleet.remove_agent(v1::RemoveAgentRequest { name: name(), force: false }).await.expect_err("not yet");
    for refused in [shown, removed] {
        assert_eq!(refused.code(), Code::NotFound);
        assert!(refused.message().contains("`landfall agents revoke beijing-dianxin` voids it"), "{refused}");
    }
    let revoke = async |named: &str| {
        let request = v1::RevokeEnrolmentRequest { named: named.to_owned() };
        desk.fleet().revoke_enrolment(request).await.map(|answer| answer.into_inner().name)
    };
    assert_eq!(revoke(&made[1].enrolment_id).await.expect("revoked"), "beijing-dianxin-2");
    assert_eq!(revoke("busy").await.expect_err("no token").code(), Code::NotFound);
    let again = one("busy", "A");
    let refused = fleet.create_enrolment(again.clone()).await.expect_err("in use");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let replaces = v1::CreateEnrolmentRequest { replaces: true, ..again };
    assert!(fleet.create_enrolment(replaces).await.expect("made").into_inner().in_use);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_replaced_operators_token_is_good_for_its_grace_and_replaces_nothing(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let new = Secret::generate().expect("randomness");
    let request = |token: &Secret, seconds| v1::ReplaceOperatorTokenRequest {
        token_sha256: token.hash().as_bytes().to_vec(),
        grace: Some(prost_types::Duration { seconds, nanos: 0 }),
    };
    for bad in [v1::ReplaceOperatorTokenRequest { token_sha256: vec![1; 31], grace: None }, request(&new, 8 * 86_400)] {
        let refused = desk.fleet().replace_operator_token(bad).await.expect_err("bad");
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    desk.fleet().replace_operator_token(request(&new, 3600)).await.expect("replaced");
    desk.fleet().list_agents(v1::ListAgentsRequest::default()).await.expect("good for an hour");
    let other = Secret::generate().expect("randomness");
    let refused = desk.fleet().replace_operator_token(request(&other, 0)).await.expect_err("the former one");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let mut with_new = FleetServiceClient::with_interceptor(desk.channel.clone(), TokenSender(new.reveal().to_owned()));
    with_new.replace_operator_token(request(&other, 0)).await.expect("replaced again");
    let refused = with_new.list_agents(v1::ListAgentsRequest::default()).await.expect_err("refused");
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().starts_with("the operator's token was replaced at "), "{}", refused.message());
    let refused = desk.fleet().list_agents(v1::ListAgentsRequest::default()).await.expect_err("forgotten");
    assert_eq!(refused.message(), "the operator token is wrong");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_election_waits_for_the_mesh_and_for_sense(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let elect = async |count, dimensions| {
        desk.fleet()
            .elect_landmarks(v1::ElectLandmarksRequest { count, dimensions })
            .await
            .map(tonic::Response::into_inner)
    };
    let refused = elect(9, 12).await.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "dimensions: 12 dimensions need at least 13 landmarks, but 9 were requested");
    desk.agents(4).await;
    let refused = elect(9, 0).await.expect_err("refused");
    assert_eq!(
        refused.message(),
        "an election of 9 landmarks needs as many agents that are connected and run a beacon, but there are 4; elect at most \
         4 with --count"
    );
    let refused = elect(3, 0).await.expect_err("refused");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.message(), "the agents have not yet measured each other: 0 of 12 pairs are measured");
    desk.run(
        "insert into mesh_measurements (prober_id, agent_id, rtt_us, answered, lost)
         select a.id, b.id, 1000 * abs(a.id - b.id), 10, 0 from agents a, agents b where a.id <> b.id",
    )
    .await;
    let elected = elect(3, 0).await.expect("elected");
    assert_eq!((elected.landmarks.len(), elected.dimensions, elected.epoch), (3, 2, 0));
    assert!(elected.landmarks.iter().all(|landmark| landmark.connected && !landmark.reason.is_empty()));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_election_and_a_fit_that_lack_agents_whom_others_reach_say_why_they_do_not(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.agents(12).await;
    desk.run(
        "insert into mesh_measurements (prober_id, agent_id, answered, lost, failure, cause, said, failed_at)
         select a.id, b.id, 0, 0, 'guard', 'guard', 'the guard refuses 198.18.0.5', now()
         from agents a, agents b where a.id <> b.id",
    )
    .await;
    let why = "the guard refused an address at 12 agents, for example from agent0 to agent1: the guard refuses 198.18.0.5; \
               `landfall agents reach agent0 agent1` shows details";
    let request = v1::ElectLandmarksRequest { count: 9, dimensions: 0 };
    let refused = desk.fleet().elect_landmarks(request).await.expect_err("refused");
    let few = "an election of 9 landmarks needs as many agents that two others reached, but only 0 of 12 were";
    assert_eq!(refused.message(), format!("{few}: {why}"));
    desk.fits().await;
    let refused = desk.embeddings().fit_embedding(v1::FitEmbeddingRequest::default()).await.expect_err("refused");
    assert_eq!(refused.message(), format!("no agent has reached the beacon of another: {why}"));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn landmarks_are_set_by_name_or_not_at_all(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.agents(3).await;
    let set = async |names: &[&str], dimensions| {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        desk.fleet().set_landmarks(v1::SetLandmarksRequest { names, dimensions }).await.map(tonic::Response::into_inner)
    };
    let listed = set(&["agent2", "agent0"], 1).await.expect("set");
    let names: Vec<&str> = listed.landmarks.iter().map(|landmark| landmark.name.as_str()).collect();
    assert_eq!((names.as_slice(), listed.dimensions), (["agent2", "agent0"].as_slice(), 1));
    for (names, dimensions, code, message) in [
        (&["agent0", "nobody"][..], 0, Code::NotFound, "names: no agent is called nobody"),
        (&["agent0", "agent0"][..], 0, Code::InvalidArgument, "names: agent0 is named twice"),
        (
            &["agent0", "agent1"][..],
            2,
            Code::InvalidArgument,
            "dimensions: 2 dimensions need at least 3 landmarks, but 2 were requested",
        ),
    ] {
        let refused = set(names, dimensions).await.expect_err(message);
        assert_eq!((refused.code(), refused.message()), (code, message));
    }
    let kept = desk.fleet().list_landmarks(v1::ListLandmarksRequest {}).await.expect("listed").into_inner();
    assert_eq!(kept, listed);
    assert!(set(&[], 0).await.expect("set").landmarks.is_empty());
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_watch_ends_with_its_batch_or_with_the_scheduler(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.submit("autumn", &["a.cn", "b.cn"]).await.expect("submitted");
    let request = || v1::WatchBatchRequest { batch: "autumn".into() };
    let mut watch = desk.sites().watch_batch(request()).await.expect("a stream").into_inner();
    let first = watch.message().await.expect("a message").expect("progress");
    assert_eq!((first.submitted, first.waiting_for.as_str()), (2, "2 sites: no agent is connected"));
    desk.run("insert into stage_causes (stage, cause) values ('measuring', 'no-landmarks')").await;
    let reason = loop {
        let reason = watch.message().await.expect("a message").expect("progress").waiting_for;
        if reason != first.waiting_for {
            break reason;
        }
    };
    assert_eq!(reason, "2 sites: no landmarks: run `landfall landmarks elect --count 9`");
    desk.run("update tasks set state = 'cancelled'").await;
    let mut last = None;
    while let Some(progress) = watch.message().await.expect("a message") {
        last = Some(progress);
    }
    assert_eq!(last.expect("progress").cancelled, 2);

    desk.run("update tasks set state = 'submitted'").await;
    let mut watch = desk.sites().watch_batch(request()).await.expect("a stream").into_inner();
    watch.message().await.expect("a message").expect("progress");
    desk.shutdown.cancel();
    let ended = loop {
        match watch.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended as if the batch had"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Unavailable);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_site_is_shown_under_any_spelling(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.submit("autumn", &["a.cn", "www.a.cn"]).await.expect("submitted");
    let (near, session) = desk.agents(2).await[0];
    desk.run("update sites set origin = 'https://www.a.cn' where name = 'a.cn'").await;
    desk.run(
        "update sites set origin = 'https://www.a.cn', alias_of = (select id from sites where name = 'a.cn')
         where name = 'www.a.cn'",
    )
    .await;
    desk.run(
        "insert into site_measurements (site_id, prober_id, rtt_us, min_us, median_us, spread_us, answered, lost, address)
         select s.id, a.id, 12000, 11000, 12000, 100, 5, 0, '192.0.2.1' from sites s, agents a
         where s.name = 'a.cn' and a.name = 'agent0'",
    )
    .await;
    choose(&desk, near, session).await;
    for (spelling, name) in
        [("A.CN.", "a.cn"), ("http://a.cn/x", "a.cn"), ("https://www.a.cn:443", "a.cn"), ("www.a.cn", "www.a.cn")]
    {
        let request = v1::ShowSiteRequest { site: spelling.into() };
        let shown = desk.sites().show_site(request).await.expect(spelling).into_inner();
        assert_eq!(shown.name, name, "{spelling}");
        assert_eq!(shown.measurements[0].address, "192.0.2.1");
        assert_eq!(shown.measurements[0].rtt.map(|rtt| rtt.nanos), Some(12_000_000));
        let task = shown.tasks.iter().find(|task| task.state == "done").expect("the crawled task");
        assert_eq!((task.outcome.as_str(), task.pages, task.candidates.len()), ("complete", 7, 2));
        assert_eq!((task.candidates[1].agent.as_str(), task.candidates[1].predicted), ("agent1", None));
    }
}

/// Stores that this agent crawled `a.cn`, which ends the task. The agent's distance was predicted
/// but not measured.
async fn choose(desk: &OperatorServer, agent: AgentId, session: SessionId) {
    sqlx::query(
        "insert into assignments (task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us)
         select t.id, $1, 'gnp-top3', 1, (select array_agg(id order by id) from agents), array[15000, null], array[null, 9000]
         from tasks t join sites s on s.id = t.site_id where s.name = 'a.cn'",
    )
    .bind(agent.get())
    .execute(&desk.pool)
    .await
    .expect("an assignment");
    sqlx::query(
        "insert into leases (task_id, token, site_id, agent_id, session_id, state)
         select t.id, 1, t.site_id, $1, $2, 'completed' from tasks t join assignments a on a.task_id = t.id",
    )
    .bind(agent.get())
    .bind(session.get())
    .execute(&desk.pool)
    .await
    .expect("a lease");
    desk.run(
        "insert into outcomes (task_id, token, agent_id, kind, pages, bytes, errors, started_at, duration_ms, rtt_us)
         select task_id, token, agent_id, 'complete', 7, 7000, 1, now(), 1500, 14000 from leases",
    )
    .await;
    desk.run("update tasks set state = 'done', assignment_id = a.id from assignments a where a.task_id = tasks.id")
        .await;
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_report_has_every_task_once_in_order(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    // The report of this batch has two pages: the first has 100 rows, and the second has 1,001.
    let names: Vec<String> = (0..1_100).map(|number| format!("s{number}.cn")).chain(["a.cn".into()]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    desk.submit("autumn", &names).await.expect("submitted");
    let (near, session) = desk.agents(2).await[0];
    choose(&desk, near, session).await;
    let mut stream = desk
        .reports()
        .assignments(v1::AssignmentsRequest { batch: "autumn".into(), ..Default::default() })
        .await
        .expect("rows")
        .into_inner();
    let mut rows = Vec::new();
    while let Some(row) = stream.message().await.expect("a row") {
        rows.push(row);
    }
    let mut sites: Vec<&str> = rows.iter().map(|row| row.site.as_str()).collect();
    sites.sort_unstable();
    sites.dedup();
    assert_eq!((rows.len(), sites.len()), (1_101, 1_101));
    let crawled = &rows[0];
    assert_eq!((crawled.site.as_str(), crawled.agent.as_str(), crawled.rank), ("a.cn", "agent0", 1));
    assert_eq!((crawled.predicted.map(|rtt| rtt.nanos), crawled.measured), (Some(15_000_000), None));
    assert_eq!((crawled.outcome.as_str(), crawled.bytes, crawled.assignments), ("complete", 7000, 1));
    assert_eq!((rows[1].state.as_str(), rows[1].agent.as_str()), ("submitted", ""));

    for (batch, complete) in [("autumn", 1), ("", 1)] {
        let request = v1::AgentsReportRequest { batch: batch.into(), ..Default::default() };
        let agents = desk.reports().agents(request).await.expect("agents").into_inner().agents;
        assert_eq!(agents.len(), 2);
        assert_eq!((agents[0].complete, agents[0].assigned, agents[0].pages), (complete, 1, 7));
        assert_eq!((agents[1].complete, agents[1].mean_rtt), (0, None));
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn throughput_is_reported_by_slice_agent_and_strategy(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.submit("autumn", &["a.cn", "b.cn"]).await.expect("submitted");
    let ask = async |batch: &str, round, slices| {
        let request = v1::ThroughputRequest { batch: batch.into(), round, slices };
        desk.reports().throughput(request).await.map(tonic::Response::into_inner)
    };
    let before = ask("autumn", None, None).await.expect("reported");
    assert_eq!((before.sites, before.begun_at, before.growth.len()), (2, None, 0));
    let said = before.estimate.expect("an estimate");
    assert_eq!((said.left, said.sites, said.note.as_str()), (None, 2, "no estimate: no agent is connected"));

    let (near, session) = desk.agents(2).await[0];
    choose(&desk, near, session).await;
    desk.run("update leases set granted_at = now() - interval '1 minute'").await;
    let report = ask("autumn", Some(1), Some(4)).await.expect("reported");
    assert_eq!((report.crawled, report.pages, report.bytes, report.growth.len()), (1, 7, 7000, 4));
    assert_eq!(report.growth.last().map(|slice| (slice.sites, slice.bytes)), Some((1, 7000)));
    let agents: Vec<(&str, &str, Option<f64>)> =
        report.agents.iter().map(|row| (row.agent.as_str(), row.city.as_str(), row.share)).collect();
    assert_eq!(agents, [("agent0", "agent0", Some(1.0))]);
    let strategies: Vec<(&str, u64)> = report.strategies.iter().map(|row| (row.strategy.as_str(), row.sites)).collect();
    assert_eq!(strategies, [("gnp-top3", 1)]);
    assert!(report.estimate.and_then(|estimate| estimate.left).is_some());
    let shown =
        desk.sites().show_batch(v1::ShowBatchRequest { batch: "autumn".into() }).await.expect("shown").into_inner();
    assert!(shown.progress.and_then(|progress| progress.estimate).is_some_and(|estimate| estimate.sites == 1));

    for (batch, round, slices, code, message) in [
        ("winter", None, None, Code::NotFound, "no batch is called 'winter'"),
        ("autumn", Some(2), None, Code::NotFound, "batch autumn has no round 2: its newest is 1"),
        ("autumn", None, Some(501), Code::InvalidArgument, "slices: must be 1 to 500, not 501"),
    ] {
        let refused = ask(batch, round, slices).await.expect_err("refused");
        assert_eq!((refused.code(), refused.message()), (code, message));
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_agent_is_drained_resumed_and_removed_by_name(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let (agent, session) = desk.agents(1).await[0];
    let mut conn = desk.pool.acquire().await.expect("a connection");
    let batch = fixtures::batch(&mut conn, "autumn", "random").await;
    let site = fixtures::site(&mut conn, "a.cn").await;
    fixtures::assigned(&mut conn, batch, site, agent).await;
    fixtures::grant(&mut conn, agent, session).await;
    let mut fleet = desk.fleet();
    let name = || "agent0".to_owned();
    let shown = async || {
        let asked = desk.fleet().show_agent(v1::ShowAgentRequest { name: name() }).await.expect("shown");
        asked.into_inner().agent.expect("there is one")
    };

    let drained = fleet.drain_agent(v1::DrainAgentRequest { name: name() }).await.expect("drained").into_inner();
    assert_eq!((drained.withdrawn, drained.leases, drained.before), (0, 1, false));
    assert!(shown().await.draining_since.is_some());
    let resumed = fleet.resume_agent(v1::ResumeAgentRequest { name: name() }).await.expect("resumed").into_inner();
    assert!(resumed.resumed && shown().await.draining_since.is_none());

    let remove = |force| v1::RemoveAgentRequest { name: name(), force };
    let refused = fleet.remove_agent(remove(false)).await.expect_err("it holds a lease");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().starts_with("agent agent0 holds 1 lease:"), "{}", refused.message());
    let removed = fleet.remove_agent(remove(true)).await.expect("removed").into_inner();
    assert_eq!((removed.leases, removed.before), (1, false));
    assert!(shown().await.removed_at.is_some() && !shown().await.connected);
    for (removed, listed) in [(false, 0), (true, 1)] {
        let agents = fleet
            .list_agents(v1::ListAgentsRequest { removed, ..Default::default() })
            .await
            .expect("listed")
            .into_inner()
            .agents;
        assert_eq!(agents.len(), listed);
    }
    let refused = fleet.drain_agent(v1::DrainAgentRequest { name: "nobody".into() }).await.expect_err("unknown");
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, "no agent is called nobody"));
    let refused = fleet.resume_agent(v1::ResumeAgentRequest { name: name() }).await.expect_err("removed");
    assert!(refused.message().starts_with("agent agent0 was removed at "), "{}", refused.message());

    // In the fixtures, an agent's name is also its credential.
    let refused = desk.agent("agent0").check(v1::CheckRequest::default()).await.expect_err("removed");
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().starts_with("agent agent0 was removed by the operator"), "{}", refused.message());
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn sites_are_cancelled_and_retried_by_name_or_not_at_all(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.submit("autumn", &["a.cn", "b.cn", "c.cn"]).await.expect("submitted");
    let mut client = desk.sites();
    let batch = || "autumn".to_owned();
    let named = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let cancel = |names: &[&str], all| v1::CancelTasksRequest { batch: batch(), sites: named(names), all };
    for (request, code, said) in [
        (cancel(&[], false), Code::InvalidArgument, "sites: no site is named, and `all` is not set"),
        (cancel(&["a.cn"], true), Code::InvalidArgument, "all: sites are named too"),
        (cancel(&["a.cn", "x.cn"], false), Code::FailedPrecondition, "batch autumn does not contain x.cn"),
        (cancel(&["a.cn", "b c"], false), Code::InvalidArgument, "sites[1]: 'b c' names no site"),
    ] {
        let refused = client.cancel_tasks(request).await.expect_err(said);
        assert_eq!(refused.code(), code);
        assert!(refused.message().starts_with(said), "{}", refused.message());
    }
    let open = async || {
        desk.sites().list_batches(v1::ListBatchesRequest::default()).await.expect("listed").into_inner().batches
    };
    assert_eq!(open().await[0].open, 3, "a refusal changes nothing");

    let cancelled =
        client.cancel_tasks(cancel(&["http://A.cn/x", "a.cn"], false)).await.expect("cancelled").into_inner();
    assert_eq!((cancelled.tasks, cancelled.ended), (1, 0));
    let retry = |names: &[&str], failed| v1::RetryTasksRequest { batch: batch(), sites: named(names), failed };
    let retried = client.retry_tasks(retry(&["a.cn", "b.cn"], false)).await.expect("retried").into_inner();
    assert_eq!((retried.tasks, retried.open), (1, 1));
    desk.run("update tasks set state = 'failed', reason = 'poison: on purpose' where id = (select max(id) from tasks)")
        .await;
    let shown = client.show_batch(v1::ShowBatchRequest { batch: batch() }).await.expect("shown").into_inner();
    let progress = shown.progress.expect("how far it is");
    assert_eq!((progress.submitted, progress.failed, progress.cancelled), (2, 1, 0));
    assert_eq!((shown.endings[0].reason.as_str(), shown.endings[0].tasks), ("failed: poison: on purpose", 1));
    let retried = client.retry_tasks(retry(&[], true)).await.expect("retried").into_inner();
    assert_eq!((retried.tasks, retried.open), (1, 0));
    let cancelled = client.cancel_tasks(cancel(&[], true)).await.expect("cancelled").into_inner();
    assert_eq!((cancelled.tasks, cancelled.ended), (3, 0));
    assert_eq!((open().await[0].open, open().await[0].cancelled), (0, 3));
    let unknown = v1::CancelTasksRequest { batch: "winter".into(), all: true, ..Default::default() };
    let refused = client.cancel_tasks(unknown).await.expect_err("unknown");
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, "no batch is called 'winter'"));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn who_follows_the_log_hears_what_happens_and_only_what_was_asked_for(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.submit("autumn", &["a.cn", "b.cn"]).await.expect("submitted");
    for (request, said) in [
        (v1::EventsRequest { batch: "winter".into(), ..Default::default() }, "no batch is called 'winter'"),
        (v1::EventsRequest { site: "unknown.cn".into(), ..Default::default() }, "no site is known as 'unknown.cn'"),
        (v1::EventsRequest { agent: "x".into(), ..Default::default() }, "no agent is called x"),
        (v1::EventsRequest { newest: 10_001, ..Default::default() }, "newest: must be at most 10000"),
    ] {
        assert_eq!(desk.events().events(request).await.expect_err(said).message(), said);
    }
    let request = v1::EventsRequest { site: "http://B.cn/x".into(), follow: true, ..Default::default() };
    let mut stream = desk.events().events(request).await.expect("a stream").into_inner();
    let cancel = v1::CancelTasksRequest { batch: "autumn".into(), all: true, ..Default::default() };
    desk.sites().cancel_tasks(cancel).await.expect("cancelled");
    // The stream may also report the submission, because an event is reported only when all earlier
    // transactions have ended, including those of other tests.
    let event = loop {
        let event = stream.message().await.expect("a stream").expect("an event");
        assert_eq!((event.site.as_str(), event.batch.as_str(), event.noun.as_str()), ("b.cn", "autumn", "task"));
        if event.what != "submitted" {
            break event;
        }
    };
    assert_eq!((event.what.as_str(), event.cause.as_str()), ("cancelled", "cancelled by the operator"));
}

const MESH: &str = "insert into mesh_measurements (prober_id, agent_id, rtt_us, answered, lost)
                    select a.id, b.id, 1000 + abs(a.id - b.id) * 10000, 5, 0 from agents a, agents b where a.id <> b.id";

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn the_map_is_fitted_when_asked_or_says_what_is_missing(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let mut embeddings = desk.embeddings();
    let shown = embeddings.show_embedding(v1::ShowEmbeddingRequest {}).await.expect("an answer").into_inner();
    assert_eq!(shown, v1::ShowEmbeddingResponse::default(), "there is none yet");
    let at_once = v1::FitEmbeddingRequest { wait: Some(prost_types::Duration::default()) };
    let fitted = embeddings.fit_embedding(at_once).await.expect("an answer").into_inner();
    assert_eq!(fitted.epoch, None, "nobody fits");

    desk.agents(5).await;
    desk.fits().await;
    let refused = embeddings.fit_embedding(v1::FitEmbeddingRequest::default()).await.expect_err("nothing is measured");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().starts_with("a map needs 3 landmarks"), "{}", refused.message());

    desk.run(MESH).await;
    for _ in 0..2 {
        let fitted = embeddings.fit_embedding(v1::FitEmbeddingRequest::default()).await.expect("a fit").into_inner();
        let epoch = fitted.epoch.expect("within half a minute");
        // A pass started by an earlier request may fit the first map before this request arrives.
        let reason = if epoch.median_move.is_some() { "requested by the operator" } else { "first" };
        assert_eq!((epoch.reason.as_str(), epoch.agents, epoch.dimensions), (reason, 5, 4));
    }
    let listed = embeddings.list_epochs(v1::ListEpochsRequest::default()).await.expect("epochs").into_inner().epochs;
    let reasons: Vec<&str> = listed.iter().map(|epoch| epoch.reason.as_str()).collect();
    assert!(reasons.starts_with(&["requested by the operator"]) && reasons.ends_with(&["first"]), "{reasons:?}");
    let shown = embeddings.show_embedding(v1::ShowEmbeddingRequest {}).await.expect("an embedding").into_inner();
    assert_eq!(shown.epoch.expect("there is one").epoch, listed[0].epoch);
    assert_eq!((shown.landmarks.len(), shown.worst.len()), (5, 10));

    let export = embeddings.export_embedding(v1::ExportEmbeddingRequest {}).await.expect("coordinates").into_inner();
    let [first, second] = &export.agents[..2] else { panic!("{export:?}") };
    let square: f64 = first.position_ms.iter().zip(&second.position_ms).map(|(p, q)| (p - q).powi(2)).sum();
    let predicted = square.sqrt() + first.height_ms + second.height_ms;
    assert!(first.landmark && (predicted - 11.0).abs() < 2.0, "by the formula alone: {predicted}");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_election_is_explained_and_unreached_agents_are_named_with_their_port(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.agents(6).await;
    desk.run(MESH).await;
    desk.run(
        "update mesh_measurements set rtt_us = null, failure = 'connect: timed out'
         where agent_id = (select max(id) from agents)",
    )
    .await;
    let request = v1::ElectLandmarksRequest { count: 3, dimensions: 0 };
    let answer = desk.fleet().elect_landmarks(request).await.expect("an election").into_inner();
    assert!(answer.landmarks.iter().all(|landmark| landmark.elected && landmark.away_for.is_none()));
    let told = answer.explanation.expect("an explanation");
    assert_eq!((told.others, told.landmarks.len()), (3, 3));
    assert!(told.landmarks.iter().all(|landmark| landmark.adds.is_some_and(|adds| adds.nanos > 0)), "{told:?}");
    assert_eq!(told.coverage.last().map(|reach| reach.agents), Some(3));
    let [unreached] = &told.unreached[..] else { panic!("{told:?}") };
    assert_eq!((unreached.name.as_str(), unreached.port), ("agent5", 7180));
    assert_eq!(unreached.failure, "connect: timed out");
    let listed = desk.fleet().list_landmarks(v1::ListLandmarksRequest {}).await.expect("landmarks").into_inner();
    assert_eq!(listed.explanation, None, "it was asked for by the election alone");
}
