//! Sends a crawl's requests one at a time, only when `crawl::politeness` permits, and only to
//! vetted addresses. Makes the HTTP client and the headers of its requests, measures round trips,
//! and delays new connections a little, because the previous one is usually free before the delay
//! ends.
//!
//! The HTTP library returns a connection to its pool only after a background task of the library
//! has seen the end of the last body. A request that is sent earlier finds no free connection, so
//! the request starts a new connection, and uses the new or the previous connection, whichever is
//! ready first. The pool completes the new connection in any case, which wastes a handshake, and
//! the new connection replaces the previous one in the pool.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::HttpInfo;
use rand::rngs::ChaCha8Rng;
use reqwest::Url;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use tokio::time::{Instant, sleep_until, timeout_at};
use tower::{BoxError, Layer, Service};

use super::content_encoding;
use super::failure_cause::{CONNECTION, FetchError, MAX_HEADER_FIELDS};
use super::response::{CrawlResponse, Timeouts};
use super::site_address::{GuardedResolver, SiteAddress};
use crate::crawl::politeness::{Politeness, RateState, ResponseKind};
use crate::machine::clock;
use crate::metrics::METRICS;
use crate::net::request_context::RequestContext;
use crate::warc::{AnsweredRequest, Recorder};

pub(in crate::crawl) struct Fetcher {
    client: reqwest::Client,
    context: RequestContext,
    timeouts: Timeouts,
    politeness: Politeness,
    rng: ChaCha8Rng,
    deadline: Instant,
    requests: u32,
    /// Whether the resolver is still resolving the name for the newest connection.
    resolving: Arc<AtomicBool>,
    connect_delay: ConnectDelay,
    round_trips: RoundTrips,
    site_address: Arc<SiteAddress>,
    /// The recorder of responses, and the headers that the crawler sends with every request.
    recorder: Option<(Recorder, HeaderMap)>,
}

impl Fetcher {
    /// Makes a fetcher that sends no request after `deadline`, and connects to the site only at
    /// `site_address`.
    pub(in crate::crawl) fn new(
        context: &RequestContext,
        timeouts: Timeouts,
        politeness: Politeness,
        deadline: Instant,
        site_address: Arc<SiteAddress>,
    ) -> Result<Self, NoClient> {
        let resolving = Arc::new(AtomicBool::new(false));
        let connect_delay = ConnectDelay::default();
        Ok(Self {
            client: client(context, timeouts, &site_address, &resolving, &connect_delay)?,
            context: context.clone(),
            timeouts,
            politeness,
            rng: rand::make_rng(),
            deadline,
            requests: 0,
            resolving,
            connect_delay,
            round_trips: RoundTrips::default(),
            site_address,
            recorder: None,
        })
    }

    pub(in crate::crawl) const fn requests(&self) -> u32 {
        self.requests
    }

    /// The product token that names the crawler in robots.txt.
    pub(in crate::crawl) const fn token(&self) -> &Arc<str> {
        self.context.user_agent.token()
    }

    /// Records every response from now on.
    pub(in crate::crawl) fn record(&mut self, recorder: Recorder, context: &RequestContext) {
        self.recorder = Some((recorder, request_headers(context)));
    }

    /// Waits until the politeness rules permit a request, then requests the URL.
    pub(in crate::crawl) async fn get(&mut self, url: &Url) -> Result<CrawlResponse, FetchError> {
        self.vet_literal(url)?;
        if self.politeness.is_broken() {
            return Err(FetchError::CircuitOpen);
        }
        if let Some((recorder, _)) = &self.recorder {
            recorder.ready().await;
        }
        let now = Instant::now();
        self.politeness.set_scheduler_silent(self.site_address.scheduler_is_silent());
        let start = self.politeness.next_start(now);
        if start >= self.deadline {
            return Err(FetchError::OutOfTime);
        }
        // A request that may start now does not sleep: the runtime's timer would round up to the
        // next millisecond.
        if start > now {
            METRICS.waited(start - now);
            sleep_until(start).await;
        }
        let started = Instant::now();
        self.politeness.start(started);
        self.requests = self.requests.saturating_add(1);
        let answer = timeout_at(started + self.timeouts.first_byte, self.client.get(url.clone()).send()).await;
        let took = started.elapsed();
        let answer = match answer {
            Ok(answer) => answer.map_err(|error| {
                let is_resolving = self.resolving.load(Ordering::Relaxed);
                FetchError::of_request(&error, is_resolving, self.timeouts.connect)
            }),
            Err(_) => {
                self.renew_client();
                Err(FetchError::Timeout { what: "answer", limit: self.timeouts.first_byte })
            }
        };
        match &answer {
            Ok(response) => METRICS.responded(response.status().as_u16()),
            Err(error) => METRICS.request_failed(error.into()),
        }
        let answered = answer.as_ref().map_or(ResponseKind::Bad, response_kind);
        self.politeness.record(Instant::now(), answered, Some(took), &mut self.rng);
        if matches!(answer, Err(FetchError::Connect(..) | FetchError::Timeout { what: CONNECTION, .. })) {
            self.site_address.mark_unresponsive();
        }
        let response = answer?;
        self.connect_delay.answered.store(true, Ordering::Relaxed);
        self.round_trips.note(&response, took);
        let recording =
            self.recorder.as_ref().map(|(recorder, sent)| recorder.begin(AnsweredRequest::new(sent, url, &response)));
        CrawlResponse::vet(response, self.timeouts, started, recording.map(|recording| (recording, self.deadline)))
    }

    /// Drops the connection on which a request got no response. The connection may be dead, and
    /// HTTP/2 would send all later requests over it.
    fn renew_client(&mut self) {
        let connect_delay = ConnectDelay::default();
        // The old client was built with the same settings. If building a new client fails now, keep
        // the old client.
        if let Ok(client) = client(&self.context, self.timeouts, &self.site_address, &self.resolving, &connect_delay) {
            self.client = client;
            self.connect_delay = connect_delay;
        }
    }

    /// Records the error that made the newest body incomplete. A decoding error does not slow the
    /// crawl down, because it means a faulty page, not an overloaded site.
    pub(in crate::crawl) fn broke_off(&mut self, error: &FetchError) {
        if matches!(error, FetchError::Broken(_) | FetchError::Timeout { .. } | FetchError::TooSlow) {
            self.politeness.broke_off(Instant::now(), &mut self.rng);
        }
    }

    pub(in crate::crawl) const fn last_start(&self) -> Option<Instant> {
        self.politeness.last_start()
    }

    pub(in crate::crawl) fn rate_state(&self) -> RateState {
        self.politeness.rate_state(Instant::now())
    }

    pub(in crate::crawl) fn is_paused(&self) -> bool {
        self.politeness.is_paused(Instant::now())
    }

    pub(in crate::crawl) const fn is_circuit_open(&self) -> bool {
        self.politeness.is_broken()
    }

    pub(in crate::crawl) const fn politeness(&mut self) -> &mut Politeness {
        &mut self.politeness
    }

    /// The median time to first byte of requests on warm connections.
    pub(in crate::crawl) fn median_round_trip(&self) -> Option<Duration> {
        self.round_trips.median()
    }

    fn vet_literal(&self, url: &Url) -> Result<(), FetchError> {
        let addr = match url.host() {
            Some(url::Host::Ipv4(addr)) => IpAddr::V4(addr),
            Some(url::Host::Ipv6(addr)) => IpAddr::V6(addr),
            Some(url::Host::Domain(_)) | None => return Ok(()),
        };
        self.context.guard.vet(addr).map_err(FetchError::Refused)
    }
}

fn response_kind(response: &reqwest::Response) -> ResponseKind {
    let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    ResponseKind::of(response.status().as_u16(), asked, clock::wall())
}

/// Number of bytes that an HTTP/2 server may send before the client reads them. The library's
/// default is 5 MiB for each crawl, and would take half of an agent's memory.
const HTTP2_WINDOW: u32 = 256 << 10;
/// Maximum header size that the library accepts for HTTP/2. This maximum exceeds the crawler's own
/// limit, so that the crawler can distinguish an oversized header from a malformed one. For
/// HTTP/1.1 the library's limit is fixed at 408 KiB; only the number of fields is configurable.
const HTTP2_HEADER_BYTES: u32 = 256 << 10;

#[derive(Debug, thiserror::Error)]
#[error("make an HTTP client")]
pub(in crate::crawl) struct NoClient(#[source] reqwest::Error);

pub(super) fn client(
    context: &RequestContext,
    timeouts: Timeouts,
    site_address: &Arc<SiteAddress>,
    resolving: &Arc<AtomicBool>,
    connect_delay: &ConnectDelay,
) -> Result<reqwest::Client, NoClient> {
    let mut tls = (*context.tls).clone();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let headers = request_headers(context);
    let resolver = GuardedResolver {
        guard: context.guard.clone(),
        resolver: context.resolver.clone(),
        site_address: Arc::clone(site_address),
        resolving: Arc::clone(resolving),
    };
    reqwest::Client::builder()
        .default_headers(headers)
        .tls_backend_preconfigured(tls)
        .dns_resolver(resolver)
        .local_address(context.bind)
        .connect_timeout(timeouts.connect)
        .redirect(reqwest::redirect::Policy::none())
        // By default the library retries some failed requests. The crawler could neither delay nor
        // count these retries.
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .pool_max_idle_per_host(1)
        .connector_layer(connect_delay.clone())
        .http2_initial_stream_window_size(HTTP2_WINDOW)
        .http2_initial_connection_window_size(HTTP2_WINDOW)
        .http2_max_header_list_size(HTTP2_HEADER_BYTES)
        .http1_max_headers(MAX_HEADER_FIELDS)
        .build()
        .map_err(NoClient)
}

fn request_headers(context: &RequestContext) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, context.user_agent.header().clone());
    headers.insert(ACCEPT, HeaderValue::from_static("text/html,*/*;q=0.5"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(content_encoding::ACCEPTED));
    headers
}

/// Maximum number of round trips from which the median is computed. New round trips replace the
/// oldest.
const KEPT_ROUND_TRIPS: usize = 1024;

#[derive(Default)]
struct RoundTrips {
    /// The connection of the previous request.
    connection: Option<SocketAddr>,
    round_trips: Vec<Duration>,
    next: usize,
}

impl RoundTrips {
    /// The median of the round trips.
    fn median(&self) -> Option<Duration> {
        crate::probe::weighted_mean::median(&self.round_trips)
    }

    /// Records the round trip of a request on a warm connection. The connection is warm if the
    /// previous request used it too. A connection is identified by its local port.
    fn note(&mut self, response: &reqwest::Response, took: Duration) {
        let connection = response.extensions().get::<HttpInfo>().map(HttpInfo::local_addr);
        let warm = connection.is_some() && connection == self.connection;
        self.connection = connection;
        if !warm {
            return;
        }
        if self.round_trips.len() < KEPT_ROUND_TRIPS {
            self.round_trips.push(took);
        } else {
            self.round_trips[self.next % KEPT_ROUND_TRIPS] = took;
        }
        self.next = self.next.wrapping_add(1);
    }
}

/// The delay of a new connection. The pool gets a connection back within a tenth of a millisecond,
/// or a few tenths on a busy machine. If a site closes its connections, or a crawl moves from http
/// to https, a request waits for the whole delay. The delay is short compared with a handshake,
/// except for sites a few milliseconds away.
const CONNECT_DELAY: Duration = Duration::from_millis(5);

/// Makes the connector delay new connections once the crawl has received its first response.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectDelay {
    pub(super) answered: Arc<AtomicBool>,
}

impl<S> Layer<S> for ConnectDelay {
    type Service = DelayedConnector<S>;

    fn layer(&self, connector: S) -> DelayedConnector<S> {
        DelayedConnector { connector, answered: Arc::clone(&self.answered) }
    }
}

#[derive(Debug, Clone)]
pub(super) struct DelayedConnector<S> {
    connector: S,
    answered: Arc<AtomicBool>,
}

impl<S, R> Service<R> for DelayedConnector<S>
where
    S: Service<R, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let unready = self.connector.clone();
        let mut connector = std::mem::replace(&mut self.connector, unready);
        let waits = self.answered.load(Ordering::Relaxed);
        async move {
            if waits {
                // The pool completes an abandoned connection in another tokio task, whereas a crawl
                // stays in one tokio task. So if the task id has changed, the crawl uses the
                // previous connection and no longer needs the new one.
                let task = tokio::task::try_id();
                tokio::time::sleep(CONNECT_DELAY).await;
                if tokio::task::try_id() != task {
                    return Err("the connection before was free".into());
                }
            }
            connector.call(request).await
        }
        .boxed()
    }
}
