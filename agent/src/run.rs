//! Runs an agent: starts its servers and its session from the configuration, and stops them.

use std::io::Write as _;

use anyhow::Context as _;
use landfall_proto::traces::{self, Collector, Service, TraceSender};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::disk::crawl_files::CrawlFiles;
use crate::disk::outbox::Outbox;
use crate::metrics::METRICS;
use crate::net::request_context::RequestBase;
use crate::session::schedulers::Schedulers;
use crate::session::work::Work;
use crate::{VERSION, crawl, metrics, net, session, warc};
use greeting::greeting;
use listener::Listener;

pub(crate) mod beacon;
mod greeting;
pub(crate) mod listener;

/// Runs an agent until `stop` is cancelled; then the agent returns its leases. Fails if the agent
/// cannot start, or if the beacon's or the metrics' server ends. Also fails if another machine was
/// enrolled under the agent's name ([`AgentReplaced`](session::AgentReplaced)). After any other
/// error the agent retries.
pub async fn run(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    // Check the command before anything else, because a missing command is the operator's most
    // likely mistake.
    let external = config.exec.as_ref().map(crawl::ExternalCrawler::open).transpose()?;
    let request_base = request_base(&config)?;
    METRICS.started();
    let (beacon, metrics) = (bind_beacon(&config).await?, bind_metrics(&config).await?);
    let port = |listener: &Option<Listener>| listener.as_ref().map(|listener| listener.port);
    let session_config = session_config(&config, port(&beacon))?;
    let greeting = greeting(&config, port(&beacon), port(&metrics));
    // Errors are ignored, because standard output may be closed.
    drop(std::io::stdout().write_all(greeting.as_bytes()));
    tracing::info!(agent.name = config.name, scheduler = %session_config.schedulers.current().url, "agent started, connecting");
    let outbox = Outbox::open(&config.outbox.folder, config.outbox.min_free_bytes)?;
    let store = config.store.as_ref().filter(|_| config.exec.is_none());
    let store = store.map(|store| warc::Store::open(store, &config.name)).transpose()?;
    let work = Work::new(request_base, config.capacity, outbox, CrawlFiles::open(&config.crawls.folder)?);
    let crawled = CancellationToken::new();
    let (traces, exporting) =
        config.otlp.clone().map(|collector| start_traces(collector, &config.name, &crawled)).unzip();
    let work = work.storing(store.clone()).crawling_with(external).tracing_with(traces);
    // Set the gauges before the metrics server starts, so that the first scrape shows the slots.
    METRICS.work_is(work.state());
    let serve = |listener: Listener| tokio::spawn(listener.serve(stop.clone()));
    let serving = [("beacon", beacon.map(serve)), ("server of metrics", metrics.map(serve))];
    let ended = session::run(&session_config, work, &stop, &mut rand::make_rng::<rand::rngs::ChaCha8Rng>()).await;
    crawled.cancel();
    // If the session ended with an error, the listeners are still running. Stop them.
    stop.cancel();
    if let Some(store) = store {
        store.close().await;
    }
    if let Some(exporting) = exporting {
        exporting.await.context("the exporter of traces crashed")?;
    }
    for (listener, serving) in serving {
        if let Some(serving) = serving {
            serving.await.with_context(|| format!("the {listener} crashed, so the agent stopped"))?;
        }
    }
    tracing::info!(agent.name = config.name, "agent stopped");
    Ok(ended?)
}

fn start_traces(collector: Collector, name: &str, stop: &CancellationToken) -> (TraceSender, JoinHandle<()>) {
    let service = Service { name: "landfall-agent", version: VERSION, instance: name };
    let (sender, exporter) = traces::exporter(collector, service);
    let stop = stop.clone();
    (sender, tokio::spawn(exporter.run(stop.cancelled_owned())))
}

fn request_base(config: &Config) -> anyhow::Result<RequestBase> {
    for net in &config.allow_net {
        tracing::warn!(%net, "{}", net::guard::OPEN);
    }
    let user_agent = config.contact_url.as_deref().map(net::user_agent::UserAgent::new).transpose()?;
    Ok(RequestBase {
        guard: net::guard::Guard::new(config.allow_net.clone()).with_beacons(config.beacon.allow_net.clone()),
        resolver: config.resolver()?,
        bind: config.bind,
        tls: net::tls::tls_config(config.extra_ca.as_deref())?,
        user_agent,
    })
}

async fn bind_metrics(config: &Config) -> anyhow::Result<Option<Listener>> {
    let Some(listen) = config.metrics else { return Ok(None) };
    let bound = Listener::bind(listen, metrics::reply).await;
    Ok(Some(bound.with_context(|| format!("listen for metrics at {listen}; set metrics to a free address"))?))
}

async fn bind_beacon(config: &Config) -> anyhow::Result<Option<Listener>> {
    if !config.beacon.enabled {
        return Ok(None);
    }
    let listen = config.beacon.listen;
    let beacon = Listener::bind(listen, beacon::reply).await;
    let beacon = beacon.with_context(|| {
        format!("bind the beacon to {listen}; set beacon.listen to a free address, or beacon.enabled to false")
    })?;
    Ok(Some(beacon))
}

fn session_config(config: &Config, beacon_port: Option<u16>) -> anyhow::Result<session::SessionConfig> {
    let read = |key: &str, file: &std::path::Path| {
        std::fs::read_to_string(file).with_context(|| format!("{key}: read {}", file.display()))
    };
    Ok(session::SessionConfig {
        schedulers: Schedulers::try_new(&config.scheduler)?,
        ca: config.ca.as_deref().map(|file| read("ca", file)).transpose()?,
        credential: session::bearer(&read("credential", &config.credential)?, &config.credential)?,
        bind: config.bind,
        register: landfall_proto::v1::Register {
            name: config.name.clone(),
            city: config.city.clone(),
            carrier: config.carrier.clone(),
            country: config.country.clone(),
            capacity: config.capacity,
            version: VERSION.to_owned(),
            beacon_url: config.beacon.advertise.clone().filter(|_| beacon_port.is_some()).unwrap_or_default(),
            beacon_port: beacon_port.map_or(0, u32::from),
            held: Vec::new(),
            yields: false,
            process: rand::random_range(1..=i64::MAX),
        },
    })
}
