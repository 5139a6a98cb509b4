//! The agent's metrics for Prometheus. Events are counted where they happen. The counts are read
//! when Prometheus scrapes them.
//!
//! The values of labels are words from the lists below, never names of hosts. A scrape prints every
//! value of a label, even if its count is 0. The metrics are global to the process, so that code
//! that sends a request can count it without access to the agent.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use landfall_proto::metrics::{self, MetricsText, label};

use crate::VERSION;
use crate::machine::clock;
use crate::machine::free_space::DiskSpace;

pub(crate) const PATH: &str = "/metrics";
/// Maximum number of values of a label.
const MOST_WORDS: usize = 12;

pub(crate) static METRICS: Metrics = Metrics::new();

#[derive(Debug)]
struct Number(AtomicU64);

impl Number {
    const fn zero() -> Self {
        Self(AtomicU64::new(0))
    }

    fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A label: its name and its values.
pub(crate) trait Label: Copy {
    const NAME: &'static str;
    /// The values of the label, in the order of [`Label::index`].
    const WORDS: &'static [&'static str];

    fn index(self) -> usize;

    fn word(self) -> &'static str {
        Self::WORDS[self.index()]
    }
}

macro_rules! label {
    ($(#[$doc:meta])* $type:ident as $name:literal { $($value:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum $type { $($value),+ }

        impl Label for $type {
            const NAME: &'static str = $name;
            const WORDS: &'static [&'static str] = &[$($word),+];

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

label!(
    /// The status of a response to a crawl.
    ResponseStatus as "status" {
        Informational = "1xx", Success = "2xx", Redirection = "3xx", ClientError = "4xx", ServerError = "5xx", Other = "other",
    }
);
label!(
    /// Why a crawl's request got no response. The words are those of `Trouble` in `agent.proto`.
    RequestFailure as "reason" {
        NameNotFound = "name-not-found", ConnectionRefused = "connection-refused", NoConnection = "no-connection",
        TimedOut = "timed-out", Tls = "tls", BrokenAnswer = "broken-answer", NotPermitted = "not-permitted",
        Other = "other",
    }
);
label!(LookupResult as "result" {
    Answered = "answered", NotFound = "not-found", TimedOut = "timed-out", Failed = "failed",
});
label!(SampleResult as "result" { Answered = "answered", Lost = "lost" });
label!(
    /// How a crawl ended on this agent.
    CrawlResult as "result" {
        Complete = "complete", Truncated = "truncated", Blocked = "blocked", Unreachable = "unreachable",
        HandedBack = "handed-back", Paused = "paused", Crashed = "crashed", Broken = "broken",
    }
);
label!(
    /// The direction of a session's message, seen from the agent.
    MessageDirection as "direction" { Sent = "sent", Received = "received" }
);
label!(
    /// Why a session ended, or could not be opened.
    SessionFailure as "reason" {
        NotConnected = "not-connected", Refused = "refused", Replaced = "replaced", Superseded = "superseded",
        Broken = "broken", Silent = "silent",
    }
);

/// A counter for each value of a label.
#[derive(Debug)]
struct Counters<L> {
    counts: [Number; MOST_WORDS],
    label: PhantomData<L>,
}

impl<L: Label> Counters<L> {
    const fn new() -> Self {
        const { assert!(L::WORDS.len() <= MOST_WORDS) };
        Self { counts: [const { Number::zero() }; MOST_WORDS], label: PhantomData }
    }

    fn count(&self, value: L) {
        self.counts[value.index()].add(1);
    }

    fn values(&self) -> impl Iterator<Item = (String, u64)> {
        L::WORDS.iter().zip(&self.counts).map(|(word, count)| (label(L::NAME, word), count.get()))
    }
}

/// The agent's work at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkState {
    pub(crate) slots: usize,
    pub(crate) leases: usize,
    pub(crate) outcomes_waiting: usize,
    pub(crate) paused: bool,
    pub(crate) disk: Option<DiskSpace>,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    /// The time at which the agent started, in seconds since 1970.
    started: Number,
    connected: Number,
    sessions: Number,
    session_failures: Counters<SessionFailure>,
    messages: Counters<MessageDirection>,
    slots: Number,
    leases: Number,
    outcomes_waiting: Number,
    paused: Number,
    disk_free: Number,
    /// The size of the fullest disk in bytes; 0 if unknown.
    disk_size: Number,
    crawls: Counters<CrawlResult>,
    responses: Counters<ResponseStatus>,
    failed_requests: Counters<RequestFailure>,
    received_bytes: Number,
    waits: Number,
    wait_micros: Number,
    lookups: Counters<LookupResult>,
    samples: Counters<SampleResult>,
}

impl Metrics {
    const fn new() -> Self {
        Self {
            started: Number::zero(),
            connected: Number::zero(),
            sessions: Number::zero(),
            session_failures: Counters::new(),
            messages: Counters::new(),
            slots: Number::zero(),
            leases: Number::zero(),
            outcomes_waiting: Number::zero(),
            paused: Number::zero(),
            disk_free: Number::zero(),
            disk_size: Number::zero(),
            crawls: Counters::new(),
            responses: Counters::new(),
            failed_requests: Counters::new(),
            received_bytes: Number::zero(),
            waits: Number::zero(),
            wait_micros: Number::zero(),
            lookups: Counters::new(),
            samples: Counters::new(),
        }
    }

    pub(crate) fn started(&self) {
        let since = clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.started.set(since.as_secs());
    }

    /// Counts a session, and the two messages that open it.
    pub(crate) fn session_opened(&self) {
        self.message(MessageDirection::Sent);
        self.message(MessageDirection::Received);
        self.sessions.add(1);
        self.connected.set(1);
    }

    /// Counts the end of a session. `failure` is `None` if the agent is stopping.
    pub(crate) fn session_ended(&self, failure: Option<SessionFailure>) {
        self.connected.set(0);
        if let Some(failure) = failure {
            self.session_failures.count(failure);
        }
    }

    pub(crate) fn message(&self, direction: MessageDirection) {
        self.messages.count(direction);
    }

    pub(crate) fn work_is(&self, work: WorkState) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.slots.set(number(work.slots));
        self.leases.set(number(work.leases));
        self.outcomes_waiting.set(number(work.outcomes_waiting));
        self.paused.set(u64::from(work.paused));
        self.disk_free.set(work.disk.map_or(0, |disk| disk.free));
        self.disk_size.set(work.disk.map_or(0, |disk| disk.size));
    }

    pub(crate) fn crawl_ended(&self, result: CrawlResult) {
        self.crawls.count(result);
    }

    pub(crate) fn responded(&self, status: u16) {
        self.responses.count(match status / 100 {
            1 => ResponseStatus::Informational,
            2 => ResponseStatus::Success,
            3 => ResponseStatus::Redirection,
            4 => ResponseStatus::ClientError,
            5 => ResponseStatus::ServerError,
            _ => ResponseStatus::Other,
        });
    }

    pub(crate) fn request_failed(&self, reason: RequestFailure) {
        self.failed_requests.count(reason);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.received_bytes.add(bytes);
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.waits.add(1);
        self.wait_micros.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    pub(crate) fn looked_up(&self, result: LookupResult) {
        self.lookups.count(result);
    }

    pub(crate) fn sampled(&self, result: SampleResult) {
        self.samples.count(result);
    }

    fn text(&self) -> String {
        let mut text = MetricsText::default();
        let one = |number: &Number| [(String::new(), number.get())];
        // The version needs no escaping: it has only the characters of semantic versions.
        let version = [(label("version", VERSION), 1)];
        text.gauge("agent_build_info", "The version of this agent; always 1.", version);
        text.one("agent_start_time_seconds", "When this agent started, in seconds since 1970.", self.started.get());
        text.one("agent_connected", "1 while a session with a scheduler is open, otherwise 0.", self.connected.get());
        text.counter("agent_sessions_total", "Sessions that this agent opened.", one(&self.sessions));
        let failures = self.session_failures.values();
        text.counter("agent_session_failures_total", "Sessions that ended or were not opened.", failures);
        let messages = self.messages.values();
        text.counter("agent_session_messages_total", "Messages between this agent and schedulers.", messages);
        text.one("agent_slots", "Slots of this agent.", self.slots.get());
        text.one("agent_leases", "Sites that this agent is crawling.", self.leases.get());
        let waiting = self.outcomes_waiting.get();
        text.one("agent_outbox_outcomes", "Outcomes that no scheduler has acknowledged yet.", waiting);
        text.one(
            "agent_paused",
            "1 while this agent accepts no work for lack of space, otherwise 0.",
            self.paused.get(),
        );
        if self.disk_size.get() > 0 {
            let (free, size) = (self.disk_free.get(), self.disk_size.get());
            text.one("agent_disk_free_bytes", "Free space of the fullest disk to which this agent writes.", free);
            text.one("agent_disk_size_bytes", "Size of this disk.", size);
        }
        text.counter("agent_crawls_total", "Crawls that ended on this agent.", self.crawls.values());
        text.counter("agent_responses_total", "Responses to requests of crawls, by status.", self.responses.values());
        let failures = self.failed_requests.values();
        text.counter("agent_failed_requests_total", "Requests of crawls that got no response.", failures);
        let received = one(&self.received_bytes);
        text.counter("agent_received_bytes_total", "Bytes of responses' bodies, before decoding.", received);
        text.counter(
            "agent_politeness_waits_total",
            "Requests of crawls that waited for politeness.",
            one(&self.waits),
        );
        let waited = Duration::from_micros(self.wait_micros.get()).as_secs_f64();
        let waited = [(String::new(), waited)];
        text.counter("agent_politeness_wait_seconds_total", "Time for which these requests waited.", waited);
        text.counter("agent_dns_lookups_total", "Lookups of names, including cached ones.", self.lookups.values());
        text.counter("agent_probe_samples_total", "Samples of round trips, by result.", self.samples.values());
        text.into_string()
    }
}

pub(crate) fn reply(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, PATH) => (StatusCode::OK, METRICS.text()),
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, format!("the metrics are at {PATH}\n")),
        _ => (StatusCode::METHOD_NOT_ALLOWED, String::new()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_scrape_has_every_value_of_every_label() {
        let metrics = Metrics::new();
        metrics.session_opened();
        metrics.session_ended(Some(SessionFailure::Silent));
        metrics.message(MessageDirection::Sent);
        metrics.responded(404);
        metrics.request_failed(RequestFailure::Tls);
        metrics.received(7);
        metrics.waited(Duration::from_millis(1500));
        metrics.waited(Duration::from_millis(500));
        let disk = Some(DiskSpace { free: 5, size: 9 });
        metrics.work_is(WorkState { slots: 8, leases: 3, outcomes_waiting: 2, paused: true, disk });
        let text = metrics.text();
        for line in [
            "landfall_agent_connected 0",
            "landfall_agent_sessions_total 1",
            "landfall_agent_session_failures_total{reason=\"silent\"} 1",
            "landfall_agent_session_failures_total{reason=\"refused\"} 0",
            "landfall_agent_session_messages_total{direction=\"sent\"} 2",
            "landfall_agent_session_messages_total{direction=\"received\"} 1",
            "landfall_agent_slots 8",
            "landfall_agent_leases 3",
            "landfall_agent_outbox_outcomes 2",
            "landfall_agent_paused 1",
            "landfall_agent_disk_free_bytes 5",
            "landfall_agent_responses_total{status=\"4xx\"} 1",
            "landfall_agent_responses_total{status=\"2xx\"} 0",
            "landfall_agent_failed_requests_total{reason=\"tls\"} 1",
            "landfall_agent_received_bytes_total 7",
            "landfall_agent_politeness_waits_total 2",
            "landfall_agent_politeness_wait_seconds_total 2",
            "landfall_agent_dns_lookups_total{result=\"timed-out\"} 0",
            "landfall_agent_probe_samples_total{result=\"lost\"} 0",
        ] {
            assert!(text.lines().any(|known| known == line), "{line}: {text}");
        }
        metrics.work_is(WorkState { slots: 8, leases: 3, outcomes_waiting: 2, paused: true, disk: None });
        assert!(!metrics.text().contains("disk"), "an unknown disk is not reported as full");
    }

    /// The names of the agent's metrics that an expression contains.
    fn names(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("landfall_agent_")).collect()
    }

    #[test]
    fn alerts_and_dashboards_ask_for_metrics_that_exist() {
        let metrics = Metrics::new();
        metrics.work_is(WorkState {
            slots: 1,
            leases: 0,
            outcomes_waiting: 0,
            paused: false,
            disk: Some(DiskSpace { free: 1, size: 1 }),
        });
        let exported = metrics.text();
        let known = names(&exported);
        let ops = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops");
        for file in ["prometheus/alerts.yml", "grafana/landfall.json"] {
            let text = std::fs::read_to_string(format!("{ops}/{file}")).unwrap();
            let used = names(&text);
            assert!(!used.is_empty() && used.is_subset(&known), "{file}: {:?}", used.difference(&known));
        }
    }

    #[test]
    fn every_alert_of_agents_has_an_entry_in_the_runbook() {
        let [rules, runbook] = ["prometheus/alerts.yml", "RUNBOOK.md"]
            .map(|file| std::fs::read_to_string(format!("{}/../ops/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap());
        let (_, rules) = rules.split_once("- name: landfall-agent\n").unwrap();
        let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        assert!(!alerts.is_empty());
        for alert in alerts {
            assert!(runbook.contains(&format!("| `{alert}` |")), "{alert}");
        }
    }
}
