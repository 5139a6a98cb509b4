//! Sends traces to a collector with OTLP over HTTP, in JSON.
//!
//! Each task has one trace. The identifiers of the trace and of its spans are derived from the
//! task's id, so the scheduler and the agents can add spans to the same trace without sending each
//! other identifiers. The number of spans that wait to be sent is limited. If the collector is slow
//! or cannot be reached, spans are dropped, and the program's other work is not delayed.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::error_causes::innermost;

/// Maximum number of spans that wait to be sent. Each span takes a few hundred bytes.
const QUEUE: usize = 8192;
/// Maximum number of spans in a request.
const AT_ONCE: usize = 512;
/// Pause before the next request if the last request was not full.
const PAUSE: Duration = Duration::from_millis(500);
/// Time limit of a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a response in bytes. A collector responds with a few bytes, or with the text of
/// an error.
const MOST_ANSWERED: usize = 64 << 10;
/// Time limit for sending the last spans when the process stops.
const LAST: Duration = Duration::from_secs(2);
/// OTLP's numbers for the span kind "internal" and the status "error".
const INTERNAL: u8 = 1;
const FAILED: u8 = 2;

/// The address at which a collector receives traces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Collector {
    /// The URL as the operator wrote it.
    url: String,
    traces: Uri,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not the http URL of a collector, such as http://127.0.0.1:4318; if yours needs https, run a collector on \
     this machine that forwards to it"
)]
pub struct BadCollector(String);

impl FromStr for Collector {
    type Err = BadCollector;

    fn from_str(url: &str) -> Result<Self, BadCollector> {
        let bad = || BadCollector(url.to_owned());
        let base: Uri = url.parse().map_err(|_| bad())?;
        if base.scheme_str() != Some("http") || base.host().is_none_or(str::is_empty) || base.query().is_some() {
            return Err(bad());
        }
        let traces = format!("{}/v1/traces", url.trim_end_matches('/')).parse().map_err(|_| bad())?;
        Ok(Self { url: url.to_owned(), traces })
    }
}

impl TryFrom<String> for Collector {
    type Error = BadCollector;

    fn try_from(url: String) -> Result<Self, BadCollector> {
        url.parse()
    }
}

impl From<Collector> for String {
    fn from(collector: Collector) -> Self {
        collector.url
    }
}

/// Identifies a span within the trace of its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKey {
    Task,
    /// The span of one state of the task, identified by the event that entered the state.
    State(i64),
    /// The span of a lease, identified by its token.
    Lease(i64),
    /// The span of a lease's crawl on the agent, identified by the lease's token.
    Crawl(i64),
}

impl SpanKey {
    fn id(self, task: i64) -> String {
        let (kind, number) = match self {
            Self::Task => ("task", 0),
            Self::State(event) => ("state", event),
            Self::Lease(token) => ("lease", token),
            Self::Crawl(token) => ("crawl", token),
        };
        hex(&Sha256::digest(format!("{kind} {number} of task {task}"))[..8])
    }
}

pub fn trace_id(task: i64) -> String {
    hex(&Sha256::digest(format!("task {task}"))[..16])
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    Text(String),
    Number(u64),
}

#[derive(Debug, Clone)]
pub struct Span {
    pub task: i64,
    pub key: SpanKey,
    pub parent: Option<SpanKey>,
    pub name: String,
    pub began: SystemTime,
    pub ended: SystemTime,
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Why the operation of this span failed; `None` if it did not fail.
    pub failure: Option<String>,
}

impl Span {
    fn json(&self) -> Value {
        let nanos =
            |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
        let mut span = json!({
            "traceId": trace_id(self.task),
            "spanId": self.key.id(self.task),
            "name": self.name,
            "kind": INTERNAL,
            "startTimeUnixNano": nanos(self.began),
            "endTimeUnixNano": nanos(self.ended.max(self.began)),
            "attributes": attributes(&self.attributes),
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = parent.id(self.task).into();
        }
        if let Some(failure) = &self.failure {
            span["status"] = json!({ "code": FAILED, "message": failure });
        }
        span
    }
}

fn attributes(of: &[(&str, Attribute)]) -> Value {
    let value = |attribute: &Attribute| match attribute {
        Attribute::Text(text) => json!({ "stringValue": text }),
        // OTLP's JSON encodes 64-bit numbers as text.
        Attribute::Number(number) => json!({ "intValue": number.to_string() }),
    };
    of.iter().map(|(key, attribute)| json!({ "key": key, "value": value(attribute) })).collect()
}

/// The program that sends spans.
#[derive(Debug, Clone, Copy)]
pub struct Service<'a> {
    pub name: &'a str,
    pub version: &'a str,
    /// The scheduler's URL, or the agent's name.
    pub instance: &'a str,
}

impl Service<'_> {
    fn json(&self) -> Value {
        let text = |key, value: &str| (key, Attribute::Text(value.to_owned()));
        attributes(&[
            text("service.name", self.name),
            text("service.version", self.version),
            text("service.instance.id", self.instance),
        ])
    }
}

/// Queues spans without waiting. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TraceSender {
    queue: mpsc::Sender<Span>,
    lost: Arc<AtomicU64>,
}

impl TraceSender {
    /// Queues a span. If the queue is full, the span is dropped.
    pub fn send(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Sends the spans that its [`TraceSender`]s queue.
#[derive(Debug)]
pub struct TraceExporter {
    collector: Collector,
    resource: Value,
    queue: mpsc::Receiver<Span>,
    lost: Arc<AtomicU64>,
    client: Client<HttpConnector, Full<Bytes>>,
    failing: bool,
}

/// Makes a sender and its exporter. The exporter must run, because it sends the spans that the
/// sender queues.
pub fn exporter(collector: Collector, service: Service<'_>) -> (TraceSender, TraceExporter) {
    let (sender, queue) = mpsc::channel(QUEUE);
    let lost = Arc::default();
    let client = Client::builder(TokioExecutor::new()).build_http();
    let exporter =
        TraceExporter { collector, resource: service.json(), queue, lost: Arc::clone(&lost), client, failing: false };
    (TraceSender { queue: sender, lost }, exporter)
}

impl TraceExporter {
    /// Runs until all senders are dropped, or until `LAST` has passed after `stop`.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let last = async {
            stop.await;
            tokio::time::sleep(LAST).await;
        };
        tokio::select! {
            () = self.send_all() => {}
            () = last => {}
        }
    }

    async fn send_all(&mut self) {
        loop {
            let mut spans = Vec::new();
            let count = self.queue.recv_many(&mut spans, AT_ONCE).await;
            if count == 0 {
                return;
            }
            let sent = self.post(&spans).await;
            self.note(spans.len(), sent);
            if count < AT_ONCE {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Logs the first of several consecutive failures, and the first success after them.
    fn note(&mut self, spans: usize, sent: Result<(), String>) {
        let failed = sent.is_err();
        if failed {
            self.lost.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        let url = &self.collector.url;
        match sent {
            Err(error) if !self.failing => tracing::warn!(error, url, "the collector takes no traces; they are lost"),
            Ok(()) if self.failing => {
                tracing::info!(url, lost = self.lost.load(Ordering::Relaxed), "the collector takes traces again");
            }
            _ => {}
        }
        self.failing = failed;
    }

    async fn post(&self, spans: &[Span]) -> Result<(), String> {
        let body = json!({ "resourceSpans": [{
            "resource": { "attributes": self.resource },
            "scopeSpans": [{ "scope": { "name": "landfall" }, "spans": spans.iter().map(Span::json).collect::<Value>() }],
        }] });
        let request = Request::post(self.collector.traces.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body.to_string()))
            .map_err(|error| error.to_string())?;
        let answered = async {
            let answer = self.client.request(request).await.map_err(|error| innermost(&error))?;
            let status = answer.status();
            // Read the response to its end, so that the connection can be reused.
            Limited::new(answer.into_body(), MOST_ANSWERED).collect().await.map_err(|error| error.to_string())?;
            if status.is_success() { Ok(()) } else { Err(format!("answered {status}")) }
        };
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, answered).await;
        answered.unwrap_or_else(|_| Err(format!("no answer within {ANSWER_TIMEOUT:?}")))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    fn span(task: i64, key: SpanKey) -> Span {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        Span {
            task,
            key,
            parent: Some(SpanKey::Lease(3)),
            name: "crawl".to_owned(),
            began: at(7),
            ended: at(9),
            attributes: vec![("landfall.pages", Attribute::Number(5))],
            failure: Some("refused".to_owned()),
        }
    }

    #[test]
    fn a_span_is_written_as_otlp_wants_it() {
        let written = span(1, SpanKey::Crawl(3)).json();
        let text = |key: &str| written[key].as_str().unwrap_or_else(|| panic!("{key}: {written}"));
        assert_eq!((text("traceId").len(), text("spanId").len(), text("parentSpanId").len()), (32, 16, 16));
        assert_eq!((text("startTimeUnixNano"), text("endTimeUnixNano")), ("7000000000", "9000000000"));
        let pages = json!([{ "key": "landfall.pages", "value": { "intValue": "5" } }]);
        assert_eq!((&written["attributes"], &written["status"]["code"]), (&pages, &json!(2)));
        let keys = [SpanKey::Task, SpanKey::State(3), SpanKey::Lease(3), SpanKey::Crawl(3)];
        let ids: std::collections::BTreeSet<String> =
            [1, 2].into_iter().flat_map(|task| keys.map(|key| key.id(task))).collect();
        assert_eq!(ids.len(), 8);
        assert_eq!(text("parentSpanId"), SpanKey::Lease(3).id(1));
    }

    #[test]
    fn a_collector_is_an_http_url() {
        for (url, traces) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://collector/otlp/", "http://collector/otlp/v1/traces"),
        ] {
            assert_eq!(url.parse::<Collector>().expect(url).traces.to_string(), traces);
        }
        for url in ["", "127.0.0.1:4318", "https://127.0.0.1", "http://", "/v1", "http://x/?a=b"] {
            assert!(url.parse::<Collector>().is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn an_answer_without_end_is_not_read() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let collector = format!("http://{}", listener.local_addr().expect("an address")).parse().expect("a URL");
        let answering = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000000\r\n\r\n").await.expect("a head");
            while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
        });
        let (sender, exporter) = exporter(collector, Service { name: "a", version: "b", instance: "c" });
        sender.send(span(1, SpanKey::Task));
        let lost = Arc::clone(&sender.lost);
        drop(sender);
        exporter.run(std::future::pending()).await;
        answering.await.expect("the connection is closed");
        assert_eq!(lost.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_lost_collector_delays_nothing() {
        // Port 9 is the discard port, where no collector listens.
        let collector = "http://127.0.0.1:9".parse().expect("a URL");
        let (sender, exporter) = exporter(collector, Service { name: "a", version: "b", instance: "c" });
        let running = tokio::spawn(exporter.run(std::future::pending()));
        let spans = 3 * QUEUE;
        for task in 0..spans {
            sender.send(span(i64::try_from(task).expect("small"), SpanKey::Task));
        }
        let lost = Arc::clone(&sender.lost);
        drop(sender);
        running.await.expect("no panic");
        assert_eq!(lost.load(Ordering::Relaxed), u64::try_from(spans).expect("small"));
    }
}
