//! Drops calls of every kind at random moments, and checks that no acknowledged write is lost.
//!
//! The calls come from the contract's description, so a new call is dropped without a change here.
//! Half of them have a deadline, and the client abandons the other half. Beside them, writers tag
//! an agent, submit batches and send heartbeats. After each acknowledgement, a writer reads
//! its write over a connection of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use futures_util::future::try_join_all;
use landfall_proto::v1;
use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::fleet_service_client::FleetServiceClient;
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::session_response::Message as Down;
use landfall_proto::v1::site_service_client::SiteServiceClient;
use landfall_proto::v1::status_service_client::StatusServiceClient;
use landfall_proto::v1::submit_request::Part;
use landfall_scheduler::app::token_and_client_file::ClientFile;
use prost::Message as _;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt as _, SeedableRng as _};
use sqlx::PgPool;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::bytes::{Buf as _, BufMut as _, Bytes};
use tonic::Status;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

use crate::cluster::process::until;
use crate::cluster::scheduler::CONTACT_URL;
use crate::cluster::{Cluster, ClusterDatabase, ClusterOptions, HURRIED};
use crate::world::World;
use crate::world::scenario::{Layout, SMALL};

/// Number of callers that drop calls, each one call after another.
const DROPPERS: u64 = 3;
/// The time after which a call is dropped: shorter than most calls, longer than a `BEGIN`.
const LIFE_US: std::ops::Range<u64> = 400..4_000;
/// Interval between two submissions, because every batch makes lists longer.
const SUBMIT_INTERVAL: Duration = Duration::from_millis(200);
/// Time limit for one acknowledged call, and for all connections to be at rest.
const PATIENCE: Duration = Duration::from_secs(20);
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// The batch that dropped calls change.
const SPARE: &str = "spare";
const SITE: &str = "h.dropped.test";
/// The agent whose sessions are dropped, and the agent that sends heartbeats.
const AGENTS: [&str; 2] = ["dropped", "beating"];

/// How long calls are dropped.
#[derive(Debug, Clone, Args)]
pub struct DroppedArgs {
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    seconds: u64,
}

/// What happened during a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct DroppedCalls {
    pub calls: u64,
    /// Calls that ended before they were dropped.
    pub answered: u64,
    pub acknowledged: u64,
}

/// Starts a cluster, drops calls, and prints what happened.
pub async fn dropped(args: DroppedArgs) -> anyhow::Result<()> {
    let scenario = Layout::parse(SMALL, "small.toml")?.scenario(Some(3), Some(12))?;
    let options =
        ClusterOptions { scheduler: HURRIED.to_owned(), capacity: 2, logs: None, database: ClusterDatabase::Private };
    let cluster = Cluster::start(World::start(scenario).await?, &options).await?;
    let DroppedCalls { calls, answered, acknowledged } = run(&cluster, Duration::from_secs(args.seconds)).await?;
    println!("{calls} calls dropped, of which {answered} were answered before");
    println!("{acknowledged} acknowledged writes, all in the database; no connection rests in a transaction");
    cluster.stop().await
}

/// Drops calls for this time.
///
/// # Errors
/// An acknowledged write is not in the database, a writer's call or a status fails, or a connection
/// rests in a transaction.
pub async fn run(cluster: &Cluster, time: Duration) -> anyhow::Result<DroppedCalls> {
    let told = ClientFile::read(cluster.schedulers[0].data_dir())?.context("the scheduler wrote no client.toml")?;
    let url = told.scheduler.first().context("client.toml names no scheduler")?.clone();
    let endpoint = Channel::from_shared(url)?;
    let caller = Caller { endpoint, token: told.token, until: Instant::now() + time, counts: Arc::default() };
    let credentials = (caller.enrol(AGENTS[0]).await?, caller.enrol(AGENTS[1]).await?);
    caller.submit(&mut SiteServiceClient::new(caller.channel()), SPARE).await?;
    let methods = methods()?;
    let dropping = try_join_all((0..DROPPERS).map(|seed| caller.drop_calls(&methods, &credentials.0, seed)));
    let pool = &cluster.pool;
    let writing =
        async { tokio::try_join!(caller.tag(pool), caller.submit_batches(pool), caller.beat(pool, &credentials.1)) };
    tokio::try_join!(dropping, writing, caller.watch_status())?;
    let rests = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'";
    until("connections to be at rest", PATIENCE, async || {
        let inside: i64 = sqlx::query_scalar(rests).fetch_one(&cluster.pool).await?;
        Ok((inside == 0).then_some(()))
    })
    .await?;
    let [calls, answered, acknowledged] = caller.counts.as_ref().each_ref().map(|count| count.load(Ordering::Relaxed));
    Ok(DroppedCalls { calls, answered, acknowledged })
}

/// A call of the contract, with a request that names existing objects.
#[derive(Debug)]
struct Method {
    path: PathAndQuery,
    of_agents: bool,
    request: Bytes,
}

/// All calls of the contract.
fn methods() -> anyhow::Result<Vec<Method>> {
    let files = FileDescriptorSet::decode(landfall_proto::DESCRIPTORS).context("decode the contract")?;
    let messages: Vec<&DescriptorProto> = files.file.iter().flat_map(|file| &file.message_type).collect();
    let services = files.file.iter().flat_map(|file| file.service.iter().map(move |service| (file.package(), service)));
    let mut methods = Vec::new();
    for (package, service) in services {
        for method in &service.method {
            let input = method.input_type().rsplit('.').next().unwrap_or_default();
            let message = messages.iter().find(|message| message.name() == input).context("a request's message")?;
            methods.push(Method {
                path: format!("/{package}.{}/{}", service.name(), method.name()).parse()?,
                of_agents: service.name() == "AgentService",
                request: filled(message),
            });
        }
    }
    ensure!(methods.len() > 40, "only {} calls", methods.len());
    Ok(methods)
}

/// A request whose texts have the values that [`value_of`] knows.
fn filled(message: &DescriptorProto) -> Bytes {
    if message.name() == "SessionRequest" {
        return up(Up::Register(register())).encode_to_vec().into();
    }
    if message.name() == "RemoveAgentRequest" {
        return v1::RemoveAgentRequest { name: "unknown".to_owned(), ..Default::default() }.encode_to_vec().into();
    }
    let mut request = Vec::new();
    let texts = message.field.iter().filter(|field| field.r#type() == Type::String);
    for (field, value) in texts.filter_map(|field| Some((field, value_of(field.name())?))) {
        let number = u32::try_from(field.number()).unwrap_or_default();
        prost::encoding::string::encode(number, &value.to_owned(), &mut request);
    }
    request.into()
}

fn value_of(field: &str) -> Option<&'static str> {
    match field {
        "batch" => Some(SPARE),
        "name" | "agent" | "agents" | "names" => Some(AGENTS[0]),
        "site" | "sites" => Some(SITE),
        "contact_url" => Some(CONTACT_URL),
        "token" => Some("unknown"),
        _ => None,
    }
}

#[derive(Debug)]
struct Caller {
    endpoint: Endpoint,
    token: String,
    until: Instant,
    /// Dropped calls, calls answered before, and acknowledged writes.
    counts: Arc<[AtomicU64; 3]>,
}

impl Caller {
    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// A connection for one caller, because the scheduler closes a connection with many dropped
    /// calls. The next call connects again.
    fn channel(&self) -> Channel {
        self.endpoint.connect_lazy()
    }

    fn count(&self, which: usize) {
        self.counts[which].fetch_add(1, Ordering::Relaxed);
    }

    fn request<T>(&self, message: T) -> anyhow::Result<tonic::Request<T>> {
        authorized(message, &self.token)
    }

    /// Calls one method after another, and drops each call.
    async fn drop_calls(&self, methods: &[Method], credential: &str, seed: u64) -> anyhow::Result<()> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut client = Grpc::new(self.channel());
        while self.goes_on() {
            let method = &methods[rng.random_range(0..methods.len())];
            let mut request = authorized(
                tokio_stream::once(method.request.clone()),
                if method.of_agents { credential } else { &self.token },
            )?;
            let life = Duration::from_micros(rng.random_range(LIFE_US));
            if rng.random_bool(0.5) {
                request.set_timeout(life);
            }
            let call = async {
                client.ready().await.map_err(|error| Status::from_error(error.into()))?;
                client.streaming(request, method.path.clone(), RawCodec).await
            };
            self.count(0);
            if tokio::time::timeout(life, call).await.is_ok() {
                self.count(1);
            }
        }
        Ok(())
    }

    /// Gives an agent one tag after another.
    async fn tag(&self, pool: &PgPool) -> anyhow::Result<()> {
        let mut client = FleetServiceClient::new(self.channel());
        let mut former = Vec::new();
        for number in 0.. {
            let tag = format!("t{number}");
            let request = v1::TagAgentRequest {
                name: AGENTS[1].to_owned(),
                add: vec![tag.clone()],
                remove: std::mem::replace(&mut former, vec![tag.clone()]),
            };
            client.tag_agent(self.request(request)?).await.context("tag an agent")?;
            let stored: Vec<String> =
                sqlx::query_scalar("select tags from agents where name = $1").bind(AGENTS[1]).fetch_one(pool).await?;
            ensure!(stored == [tag.as_str()], "the tag {tag} was acknowledged, and the database has {stored:?}");
            self.count(2);
            if !self.goes_on() {
                break;
            }
        }
        Ok(())
    }

    async fn submit_batches(&self, pool: &PgPool) -> anyhow::Result<()> {
        let mut sites = SiteServiceClient::new(self.channel());
        let mut number = 0;
        while self.goes_on() {
            let batch = format!("written-{number}");
            self.submit(&mut sites, &batch).await?;
            let stored: i64 = sqlx::query_scalar(
                "select count(*) from tasks t join batches b on b.id = t.batch_id where b.name = $1",
            )
            .bind(&batch)
            .fetch_one(pool)
            .await?;
            ensure!(stored == 1, "the batch {batch} was acknowledged, and the database has {stored} of its tasks");
            self.count(2);
            number += 1;
            tokio::time::sleep(SUBMIT_INTERVAL).await;
        }
        Ok(())
    }

    /// Submits a batch of one site.
    async fn submit(&self, sites: &mut SiteServiceClient<Channel>, batch: &str) -> anyhow::Result<()> {
        let header = v1::SubmitHeader { batch: batch.to_owned(), strategy: "random".to_owned(), ..Default::default() };
        let chunk = v1::SubmitChunk { sites: vec![SITE.to_owned()], positions: Vec::new() };
        let parts = [Part::Header(header), Part::Chunk(chunk)].map(|part| v1::SubmitRequest { part: Some(part) });
        let request = self.request(tokio_stream::iter(parts))?;
        sites.submit(request).await.context("submit a batch")?;
        Ok(())
    }

    /// Sends heartbeats with different numbers of free slots.
    async fn beat(&self, pool: &PgPool, credential: &str) -> anyhow::Result<()> {
        let (outbound, requests) = mpsc::channel(8);
        outbound.send(up(Up::Register(register()))).await.context("register")?;
        let request = authorized(ReceiverStream::new(requests), credential)?;
        let mut client = AgentServiceClient::new(self.channel());
        let mut inbound = client.session(request).await.context("open a session")?.into_inner();
        let mut slots = 0;
        while self.goes_on() {
            slots = (slots + 1) % 9_000;
            let heartbeat = v1::Heartbeat { sequence: 1, free_slots: Some(slots), ..Default::default() };
            outbound.send(up(Up::Heartbeat(heartbeat))).await.context("send a heartbeat")?;
            let acknowledged = async {
                while let Some(response) = inbound.message().await? {
                    if matches!(response.message, Some(Down::Heartbeat(_))) {
                        return anyhow::Ok(true);
                    }
                }
                Ok(false)
            };
            let acknowledged =
                tokio::time::timeout(PATIENCE, acknowledged).await.context("wait for an acknowledgement")?;
            ensure!(acknowledged?, "a session ended");
            let stored: i32 = sqlx::query_scalar(
                "select s.free_slots from sessions s join agents a on a.id = s.agent_id where a.name = $1 and s.state = 'active'",
            )
            .bind(AGENTS[1])
            .fetch_one(pool)
            .await?;
            ensure!(
                i64::from(stored) == i64::from(slots),
                "a heartbeat with {slots} free slots was acknowledged, and the database has {stored}"
            );
            self.count(2);
        }
        Ok(())
    }

    /// Reads the status, which must never fail.
    async fn watch_status(&self) -> anyhow::Result<()> {
        let mut client = StatusServiceClient::new(self.channel());
        while self.goes_on() {
            let status = client.show_status(self.request(v1::ShowStatusRequest::default())?);
            tokio::time::timeout(PATIENCE, status).await.context("wait for a status")?.context("read the status")?;
            tokio::time::sleep(STATUS_INTERVAL).await;
        }
        Ok(())
    }

    async fn enrol(&self, name: &str) -> anyhow::Result<String> {
        let wanted = v1::CreateEnrolmentRequest {
            name: name.to_owned(),
            city: "Harbin".to_owned(),
            carrier: "CERNET".to_owned(),
            ..Default::default()
        };
        let mut fleet = FleetServiceClient::new(self.channel());
        let token = fleet.create_enrolment(self.request(wanted)?).await.context("make a token")?.into_inner().token;
        let mut agents = AgentServiceClient::new(self.channel());
        Ok(agents.enrol(v1::EnrolRequest { token }).await.context("enrol an agent")?.into_inner().credential)
    }
}

fn register() -> v1::Register {
    v1::Register { city: "Harbin".to_owned(), carrier: "CERNET".to_owned(), capacity: 1, ..Default::default() }
}

fn up(message: Up) -> v1::SessionRequest {
    v1::SessionRequest { message: Some(message) }
}

fn authorized<T>(message: T, secret: &str) -> anyhow::Result<tonic::Request<T>> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse()?);
    Ok(request)
}

/// Sends and receives encoded messages.
#[derive(Debug, Clone, Copy)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
