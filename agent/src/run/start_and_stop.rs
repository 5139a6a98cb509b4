//! Starts the agent's servers and its session from the configuration, and stops them.

use std::io::Write as _;

use anyhow::Context as _;
use landfall_proto::traces::{self, Collector, Service, TraceSender};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::greeting::greeting;
use super::listener::Listener;
use super::registration::session_config;
use super::request_base::request_base;
use super::{beacon, metrics_server};
use crate::config::Config;
use crate::disk::crawl_files::CrawlFiles;
use crate::disk::outbox::Outbox;
use crate::metrics::METRICS;
use crate::session::work::Work;
use crate::{VERSION, crawl, session, warc};

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
    let (beacon, metrics) = (beacon::bind(&config).await?, metrics_server::bind(&config).await?);
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
