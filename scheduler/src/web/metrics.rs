//! Metrics for Prometheus, from the same facts as `landfall status`.
//!
//! Most metrics are gauges that are read during the scrape. Between scrapes, only refusals of the
//! port and transactions are counted. Label values are words of the program, never names of sites,
//! agents or batches. The text has a line for each value of a gauge's label, even if the gauge is 0.

use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use landfall_proto::json::moment;
use landfall_proto::metrics::{self, MetricsText, label, words};
use landfall_proto::v1::{AttentionKind, BatchStatus, ServiceState, ShowStatusResponse};

use super::Web;
use super::page_layout::{PageError, float};
use crate::Scheduler;
use crate::grpc::port::Port;
use crate::store::TransactionCount;

/// Scrapes within this time show the same state. Prometheus usually scrapes every 15 s or less often.
const FRESH: Duration = Duration::from_secs(2);
/// Maximum number of open batches whose sites are added up in the metrics.
const BATCHES: u32 = 100;

pub(super) async fn scrape(State(web): State<Web>) -> Result<Response, PageError> {
    let mut text = text(&web.services.read_status(BATCHES, FRESH).await?);
    port(&web.scheduler.port, &mut text);
    transactions(&web.scheduler, &mut text);
    let text = text.into_string();
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

fn text(status: &ShowStatusResponse) -> MetricsText {
    let mut text = MetricsText::default();
    // The version needs no escaping, because semantic versions have no special characters.
    text.gauge("build_info", "The version of this scheduler; always 1.", [(label("version", crate::VERSION), 1.0)]);
    let running = status.schedulers.iter().filter(|scheduler| scheduler.running).count();
    let lost = status.schedulers.len() - running;
    let schedulers = [("running", running), ("lost", lost)].map(|(state, all)| (label("state", state), count(all)));
    text.gauge(
        "schedulers",
        "Schedulers of this database; lost ones stopped without notice within an hour.",
        schedulers,
    );
    let own = status.schedulers.iter().find(|scheduler| scheduler.url == status.answering_url);
    if let Some(disk) = own.and_then(|scheduler| scheduler.disk.as_ref()) {
        text.one("scheduler_disk_free_bytes", "Free space of this scheduler's data directory.", float(disk.free_bytes));
        text.one("scheduler_disk_size_bytes", "Size of the file system of the data directory.", float(disk.size_bytes));
    }
    let database = status.database.clone().unwrap_or_default();
    text.one("database_size_bytes", "Size of the database.", float(database.size_bytes));
    fleet(status, &mut text);
    map(status, &mut text);
    batches(&status.batches, status.more_batches, &mut text);
    let findings = words::<AttentionKind>().map(|(kind, word)| {
        let found = status.attention.iter().filter(|found| found.kind() == kind).map(|found| found.count.max(1)).sum();
        (label("kind", word), float(found))
    });
    text.gauge("attention", "Agents, sites and so on that need an operator's attention, by kind of finding.", findings);
    text
}

fn port(port: &Port, text: &mut MetricsText) {
    let (strangers, others) = port.connections.counts();
    let connections = [("stranger", strangers), ("authenticated", others)];
    text.gauge(
        "port_connections",
        "Open connections to this scheduler, by whether a right token or credential was presented.",
        connections.map(|(state, all)| (label("state", state), f64::from(all))),
    );
    let refused = port.refusals.counts().into_iter().map(|(cause, all)| (label("cause", cause.name()), float(all)));
    text.counter("port_refused_total", "What this scheduler's port refused or closed, by cause.", refused);
}

fn transactions(scheduler: &Scheduler, text: &mut MetricsText) {
    let mut counts = scheduler.db.counts();
    counts.extend(scheduler.operators.counts());
    counts.extend(scheduler.readiness.counts());
    let of = |value: fn(&TransactionCount) -> f64| {
        let values = counts.iter().map(move |(name, count)| (label("transaction", name), value(count)));
        values.collect::<Vec<_>>()
    };
    text.counter("transactions_total", "Ended transactions and readings, by name.", of(|count| float(count.ended)));
    text.counter(
        "transactions_failed_total",
        "Transactions that were rolled back, by name.",
        of(|count| float(count.failed)),
    );
    text.counter(
        "transactions_repeated_total",
        "Transactions that conflicted with others, by name.",
        of(|count| float(count.conflicts)),
    );
    text.counter(
        "transactions_seconds_total",
        "Time that transactions and readings took, by name.",
        of(|count| count.took.as_secs_f64()),
    );
}

fn fleet(status: &ShowStatusResponse, text: &mut MetricsText) {
    let fleet = status.fleet.clone().unwrap_or_default();
    let agents = words::<ServiceState>().filter(|(state, _)| *state != ServiceState::Removed).map(|(state, word)| {
        let agents =
            fleet.agents.iter().filter(|count| count.service() == state).map(|count| count.agents).sum::<u32>();
        (label("service", word), f64::from(agents))
    });
    text.gauge("agents", "Agents by service state.", agents);
    text.one("slots", "Slots of connected agents.", float(fleet.slots));
    text.one("leases", "Sites that are being crawled.", float(fleet.leases));
    text.one("open_enrolments", "One-time tokens that no agent has used yet.", float(fleet.open_enrolments));
}

fn map(status: &ShowStatusResponse, text: &mut MetricsText) {
    let landmarks = status.landmarks.unwrap_or_default();
    let away = landmarks.landmarks.saturating_sub(landmarks.connected);
    let states = [("connected", landmarks.connected), ("away", away)];
    text.gauge("landmarks", "Landmarks.", states.map(|(state, all)| (label("state", state), f64::from(all))));
    let Some(map) = &status.map else { return };
    // The conversion is exact, because epochs stay far below 2^53.
    text.one("map_epoch", "Number of the newest map.", map.epoch as f64);
    if let Some((now, fitted)) = moment(status.now).zip(moment(map.fitted_at)) {
        text.one("map_age_seconds", "Time since the newest map was fitted.", (now - fitted).as_seconds_f64());
    }
    if let Some(error) = map.error {
        text.one("map_error_ratio", "Median error of the newest map; 0.1 is 10 %.", error.exp_m1());
    }
}

fn batches(batches: &[BatchStatus], more: u64, text: &mut MetricsText) {
    let sum = |of: fn(&BatchStatus) -> u64| float(batches.iter().map(of).sum());
    let rate = |of: fn(&BatchStatus) -> Option<f64>| batches.iter().filter_map(of).fold(0.0, |sum, rate| sum + rate);
    text.one("open_batches", "Batches with sites that have not ended.", count(batches.len()) + float(more));
    text.one(
        "open_sites",
        "Sites of open batches that have not ended.",
        sum(|batch| batch.sites.saturating_sub(batch.ended)),
    );
    text.one("failed_sites", "Sites of open batches that failed.", sum(|batch| batch.failed));
    text.one("unmet_sites", "Sites of open batches that no agent may crawl.", sum(|batch| batch.unmet));
    let crawls = rate(|batch| batch.sites_per_minute) / 60.0;
    text.one("crawls_per_second", "Crawls of open batches that ended, over the last five minutes.", crawls);
    let bytes = rate(|batch| batch.megabytes_per_minute) * 1e6 / 60.0;
    text.one("fetched_bytes_per_second", "What these crawls fetched.", bytes);
}

fn count(number: usize) -> f64 {
    crate::model::stats::count(number)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use landfall_proto::v1::{AgentCount, Attention, FleetStatus, LandmarksStatus, MapStatus, SchedulerStatus};

    use super::*;
    use crate::config::PortConfig;

    fn status() -> ShowStatusResponse {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let disk = landfall_proto::v1::DiskSpace { free_bytes: 5, size_bytes: 9 };
        ShowStatusResponse {
            now: at(90),
            answering_url: "u".to_owned(),
            schedulers: vec![SchedulerStatus {
                url: "u".to_owned(),
                running: true,
                disk: Some(disk),
                ..Default::default()
            }],
            fleet: Some(FleetStatus {
                agents: vec![AgentCount { service: ServiceState::Away.into(), agents: 2 }],
                slots: 8,
                leases: 3,
                open_enrolments: 0,
            }),
            landmarks: Some(LandmarksStatus { landmarks: 9, connected: 7, by_hand: 0 }),
            map: Some(MapStatus { epoch: 4, fitted_at: at(30), error: Some(0.0), ..Default::default() }),
            batches: vec![BatchStatus { sites: 10, ended: 4, sites_per_minute: Some(30.0), ..Default::default() }],
            attention: vec![Attention { kind: AttentionKind::AgentsAway.into(), count: 2, ..Default::default() }],
            ..Default::default()
        }
    }

    fn scraped() -> String {
        let mut text = text(&status());
        port(&Port::new(PortConfig::default()), &mut text);
        text.into_string()
    }

    #[test]
    fn a_scrape_has_every_value_of_every_label() {
        let text = scraped();
        for line in [
            "landfall_schedulers{state=\"running\"} 1",
            "landfall_agents{service=\"away\"} 2",
            "landfall_agents{service=\"ready\"} 0",
            "landfall_landmarks{state=\"away\"} 2",
            "landfall_map_age_seconds 60",
            "landfall_open_sites 6",
            "landfall_crawls_per_second 0.5",
            "landfall_attention{kind=\"agents-away\"} 2",
            "landfall_attention{kind=\"no-agent\"} 0",
            "landfall_port_connections{state=\"stranger\"} 0",
            "landfall_port_refused_total{cause=\"credential\"} 0",
        ] {
            assert!(text.lines().any(|known| known == line), "{line}: {text}");
        }
        assert!(text.lines().filter(|line| !line.starts_with('#')).all(|line| line.split(' ').count() == 2), "{text}");
    }

    /// The names of the scheduler's metrics in a text. `landfall-agent` has its own test for the
    /// agent's metrics.
    fn metrics(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("landfall_") && !word.starts_with("landfall_agent_")).collect()
    }

    #[test]
    fn alerts_and_dashboards_ask_for_metrics_that_exist_and_every_finding_has_an_alert() {
        let ops = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops");
        let [rules, grafana] = ["prometheus/alerts.yml", "grafana/landfall.json"]
            .map(|file| std::fs::read_to_string(format!("{ops}/{file}")).unwrap());
        let exported = scraped();
        let known = metrics(&exported);
        for used in metrics(&rules).union(&metrics(&grafana)) {
            assert!(known.contains(used), "{used} is not exported");
        }
        let page = std::fs::read_to_string(format!("{ops}/../docs/operate/monitoring.md")).unwrap();
        for (_, kind) in words::<AttentionKind>() {
            assert!(rules.contains(&format!("landfall_attention{{kind=\"{kind}\"}}")), "{kind} has no alert");
            assert!(page.contains(&format!("| `{kind}` |")), "{kind} has no entry in monitoring.md");
        }
        let dashboard: serde_json::Value = serde_json::from_str(&grafana).unwrap();
        assert!(dashboard["panels"].as_array().unwrap().len() >= 8);
    }
}
