//! Runs Prometheus, as packaged by Debian, with the files in `ops` against a scheduler and an
//! agent.

use std::collections::BTreeMap;
use std::path::Path;

use landfall_lab::cluster::Cluster;
use landfall_lab::cluster::process::{Process, until};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::harness::{ENDED, PATIENCE, beside, small, submit};

const OPS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops");
const SITES: usize = 3;

fn ops(file: &str) -> String {
    std::fs::read_to_string(Path::new(OPS).join(file)).unwrap()
}

struct Prometheus {
    process: Process,
    address: String,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts Prometheus with the example configuration, but with the addresses `scheduler` and
    /// `agent`, and with shorter intervals.
    async fn start(scheduler: &str, agent: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scrape = ops("prometheus/scrape.yml");
        let config = scrape.replace("127.0.0.1:7171", scheduler).replace("127.0.0.1:7181", agent);
        let intervals = "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }\n";
        std::fs::write(folder.path().join("scrape.yml"), format!("{intervals}{config}")).unwrap();
        std::fs::write(folder.path().join("alerts.yml"), ops("prometheus/alerts.yml")).unwrap();
        let mut command = Command::new("prometheus");
        command.current_dir(folder.path()).args(["--config.file=scrape.yml", "--web.listen-address=127.0.0.1:0"]);
        command.args(["--storage.tsdb.path=data", "--log.level=info"]);
        let mut process = Process::spawn("prometheus", command, folder.path()).unwrap();
        let address = until("Prometheus to listen", PATIENCE, async || {
            process.ensure_running()?;
            let log = std::fs::read_to_string(process.log())?;
            let addresses = log.lines().filter_map(|line| line.split_once(" address=")?.1.split(' ').next());
            Ok(addresses.filter(|address| !address.ends_with(":0")).map(str::to_owned).next())
        });
        let address = address.await.unwrap();
        Self { process, address, _folder: folder }
    }

    /// The data in a response of the HTTP API.
    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_all(format!("GET /api/v1/{path} HTTP/1.0\r\nhost: {}\r\n\r\n", self.address).as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let body: Value = serde_json::from_str(body)?;
        anyhow::ensure!(body["status"] == "success", "{path}: {body}");
        Ok(body["data"].clone())
    }

    /// The values of an expression, by the value of the label `label`.
    async fn query(&self, expression: &str, label: &str) -> anyhow::Result<BTreeMap<String, f64>> {
        let escaped: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let data = self.get(&format!("query?query={escaped}")).await?;
        let series = data["result"].as_array().into_iter().flatten();
        let value = |of: &Value| of["value"][1].as_str().and_then(|text| text.parse().ok());
        Ok(series
            .filter_map(|of| Some((of["metric"][label].as_str().unwrap_or_default().to_owned(), value(of)?)))
            .collect())
    }

    /// The names of the evaluated rules, each with its error message.
    async fn rules(&self) -> anyhow::Result<Vec<(String, String)>> {
        let data = self.get("rules").await?;
        let rules = data["groups"].as_array().into_iter().flatten().flat_map(|group| group["rules"].as_array());
        let evaluated = rules.flatten().filter(|rule| rule["health"] != "unknown");
        let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
        Ok(evaluated.map(|rule| (text(&rule["name"]), text(&rule["lastError"]))).collect())
    }
}

/// Restarts the first agent with a metrics server, and returns the address of this server.
async fn agent_metrics(cluster: &mut Cluster) -> String {
    cluster.environment.insert(0, vec![("LANDFALL_AGENT_METRICS".to_owned(), "127.0.0.1:0".to_owned())]);
    cluster.kill_agent(0).await.unwrap();
    cluster.restart_agent(0).unwrap();
    let log = cluster.agent(0).log().to_owned();
    let told = async || {
        let text = std::fs::read_to_string(&log)?;
        let line = text.lines().find_map(|line| line.trim().strip_prefix("metrics    http://"));
        Ok(line.and_then(|url| url.strip_suffix("/metrics")).map(str::to_owned))
    };
    until("the agent to tell where its metrics are", PATIENCE, told).await.unwrap()
}

/// The expressions of all panels of the Grafana dashboard.
fn panels() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&ops("grafana/landfall.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn prometheus_scrapes_both_and_evaluates_every_alert_and_panel() {
    if !Path::new("/usr/bin/prometheus").exists() {
        eprintln!("skipped: prometheus is not installed; ops/setup.sh installs it");
        return;
    }
    let _beside = beside().await;
    let mut cluster = small(1, SITES, 4).await;
    let agent = agent_metrics(&mut cluster).await;
    let mut prometheus = Prometheus::start(&cluster.schedulers[0].address().to_string(), &agent).await;
    // Errors are ignored, because queries fail while Prometheus starts.
    let up = async || Ok(prometheus.query("up == 1", "job").await.is_ok_and(|up| up.len() == 2).then_some(()));
    until("both to be scraped", PATIENCE, up).await.unwrap();

    submit(&cluster, &["--request-interval", "100ms"]).await;
    cluster.await_count("the sites to end", ENDED, SITES, PATIENCE).await.unwrap();
    let crawled = async || {
        let crawls = prometheus.query("sum(landfall_agent_crawls_total)", "").await?;
        Ok(crawls.values().any(|crawls| *crawls >= 3.0).then_some(()))
    };
    until("the crawls to be counted", PATIENCE, crawled).await.unwrap();
    // On a busy machine, a scrape may exceed its time limit. After a failed scrape, queries find no
    // value until the next scrape.
    for counted in [
        "landfall_agent_connected",
        "landfall_agent_responses_total{status=\"2xx\"}",
        "landfall_agent_received_bytes_total",
        "landfall_agent_dns_lookups_total{result=\"answered\"}",
        "landfall_agent_probe_samples_total{result=\"answered\"}",
    ] {
        let has_value = async || {
            let values = prometheus.query(counted, "job").await?;
            Ok(values.get("landfall-agent").is_some_and(|value| *value > 0.0).then_some(()))
        };
        until(counted, PATIENCE, has_value).await.unwrap();
    }

    let alerts = ops("prometheus/alerts.yml").matches("- alert: ").count();
    let evaluated = async || Ok(Some(prometheus.rules().await?).filter(|rules| rules.len() == alerts));
    for (alert, error) in until("every alert to be evaluated", PATIENCE, evaluated).await.unwrap() {
        assert_eq!(error, "", "{alert}");
    }
    for expression in panels() {
        // A panel about the map is empty, because a map needs more agents. An expression with a
        // filter may match no series.
        let may_be_empty = expression.contains("landfall_map_") || expression.ends_with("> 0");
        let has_value = async || {
            let values = prometheus.query(&expression, "").await?;
            Ok((may_be_empty || !values.is_empty()).then_some(()))
        };
        until(&expression, PATIENCE, has_value).await.unwrap();
    }
    prometheus.process.ensure_running().unwrap();
    cluster.stop().await.unwrap();
}
