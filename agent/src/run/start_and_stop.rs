//! Starts the agent's servers and its session from the configuration, prints the greeting,
//! registers with the scheduler, and stops them.

use std::io::Write as _;
use std::net::SocketAddr;

use anyhow::Context as _;
use landfall_proto::traces::{self, Collector, Service, TraceSender};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::beacon_and_metrics_server::{Listener, bind_beacon, bind_metrics_server};
use crate::config::Config;
use crate::disk::crawl_files::CrawlFiles;
use crate::disk::outbox::Outbox;
use crate::metrics::{self, METRICS};
use crate::net::request_context::RequestBase;
use crate::session::known_schedulers::Schedulers;
use crate::session::work::Work;
use crate::{VERSION, crawl, net, session, warc};

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
    let (beacon, metrics) = (bind_beacon(&config).await?, bind_metrics_server(&config).await?);
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

fn request_base(config: &Config) -> anyhow::Result<RequestBase> {
    for net in &config.allow_net {
        tracing::warn!(%net, "{}", net::guard::OPEN);
    }
    let user_agent = config.contact_url.as_deref().map(net::user_agent::UserAgent::new).transpose()?;
    Ok(RequestBase {
        guard: net::guard::Guard::new(config.allow_net.clone()).with_beacons(config.beacon.allow_net.clone()),
        resolver: config.resolver()?,
        bind: config.bind,
        tls: net::request_context::tls_config(config.extra_ca.as_deref())?,
        user_agent,
    })
}

/// The agent's identity and settings, one line each.
fn greeting(config: &Config, beacon_port: Option<u16>, metrics_port: Option<u16>) -> String {
    let Config { name, city, carrier, country, capacity, .. } = config;
    let country = if country.is_empty() { String::new() } else { format!(", {country}") };
    let nets: Vec<String> = config.allow_net.iter().map(ToString::to_string).collect();
    let guard = match nets.as_slice() {
        [] => "public addresses only".to_owned(),
        nets => format!("public addresses and {}", nets.join(", ")),
    };
    let beacon = match (&config.beacon.advertise, beacon_port) {
        (_, None) => "disabled: this agent cannot be a landmark".to_owned(),
        (Some(url), Some(port)) => format!("port {port}, which others reach at {url}"),
        (None, Some(port)) => format!("port {port} of {}", config.beacon.listen.ip()),
    };
    let store = match (&config.store, &config.exec) {
        (store, Some(exec)) => {
            let unused = if store.is_some() { "; [store] is not used" } else { "" };
            format!("the crawler's output is in {}{unused}", exec.folder.display())
        }
        (Some(store), None) => format!("pages are stored in {}", store.folder.display()),
        (None, None) => "pages are not stored: agent.toml has no [store]".to_owned(),
    };
    let crawler = config.exec.as_ref().map_or_else(String::new, |exec| format!(", by {}", exec.command[0]));
    let metrics = config.metrics.zip(metrics_port);
    let metrics =
        metrics.map(|(listen, port)| format!("http://{}{}", SocketAddr::new(listen.ip(), port), metrics::PATH));
    let lines = [
        ("scheduler", Some(config.scheduler.join(", "))),
        ("crawls", Some(format!("{capacity} sites at once, from {guard}{crawler}"))),
        ("beacon", Some(beacon)),
        ("store", Some(store)),
        ("metrics", metrics),
    ];
    let lines = lines.iter().filter_map(|(label, value)| Some((label, value.as_ref()?)));
    let head = format!("landfall-agent {VERSION} is {name} ({city}, {carrier}{country})\n");
    lines.fold(head, |text, (label, value)| format!("{text}  {label:<9}  {value}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_names_the_agent_and_its_settings() {
        let text = "scheduler = 'https://s.example.org:7171'\nname = 'harbin-cernet'\ncity = '哈尔滨'\ncarrier = 'CERNET'\ncountry = 'CN'\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(
            greeting(&config, Some(7180), None).lines().skip(1).collect::<Vec<_>>(),
            [
                "  scheduler  https://s.example.org:7171",
                "  crawls     16 sites at once, from public addresses only",
                "  beacon     port 7180 of 0.0.0.0",
                "  store      pages are not stored: agent.toml has no [store]",
            ]
        );
        let open = format!("{text}allow_net = ['10.0.0.0/8']\nmetrics = '[::1]:0'\n[store]\nfolder = 'pages'\n");
        let shown = greeting(&toml::from_str(&open).unwrap(), None, Some(5));
        assert!(shown.contains("(哈尔滨, CERNET, CN)") && shown.contains("public addresses and 10.0.0.0/8"), "{shown}");
        assert!(shown.contains("cannot be a landmark") && shown.contains("stored in pages"), "{shown}");
        assert!(shown.ends_with("  metrics    http://[::1]:5/metrics\n"), "{shown}");
        let external = format!("{text}[exec]\ncommand = ['wget2', '--mirror']\n");
        let shown = greeting(&toml::from_str(&external).unwrap(), None, None);
        assert!(shown.contains("public addresses only, by wget2\n"), "{shown}");
        assert!(shown.contains("the crawler's output is in exec\n"), "{shown}");
        let both = format!("{external}[store]\nfolder = 'pages'\n");
        let shown = greeting(&toml::from_str(&both).unwrap(), None, None);
        assert!(shown.contains("the crawler's output is in exec; [store] is not used"), "{shown}");
    }
}
