//! Sends a crawl's requests one at a time, only when `crawl::politeness` permits, and only to
//! vetted addresses. Limits the time and the size of the responses.
//!
//! No other part of the crawler uses the network. The HTTP client resolves names only through
//! [`GuardedResolver`], so it connects to a vetted address and no name is resolved a second time.
//! The client does not ask the resolver about IP literals, so the fetcher vets them before the
//! request. The client uses no proxy and no cookies, and returns redirects as responses instead of
//! following them.
//!
//! Each crawl has its own client, so its connections end with the crawl, and a slow site can
//! exhaust only its own connection pool. All crawls share the trust anchors.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpInfo;
use landfall_proto::error_causes::{causes, innermost};
use rand::rngs::ChaCha8Rng;
use reqwest::Url;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::politeness::{Politeness, PolitenessState, RateState, ResponseKind};
use crate::crawl::fetch::site_address::{NotPermitted, SiteAddress};
use crate::machine::clock;
use crate::metrics::METRICS;
use crate::net::guard::ResolveError;
use crate::net::request_context::RequestContext;
use crate::warc::{AnsweredRequest, Recorder};
use connect_delay::ConnectDelay;
use failure_cause::{FetchError, Trouble};
use resolver::GuardedResolver;
pub(super) use response::CrawlResponse;
#[cfg(test)]
pub(super) use response::WINDOWS;
use response_limits::MAX_HEADER_FIELDS;
pub(super) use timeouts::Timeouts;

mod coding;
mod connect_delay;
mod decode;
pub(super) mod failure_cause;
mod resolver;
mod response;
mod response_limits;
pub(super) mod site_address;
mod timeouts;

/// Maximum number of round trips from which the median is computed. New round trips replace the
/// oldest.
const KEPT_ROUND_TRIPS: usize = 1024;
/// Number of bytes that an HTTP/2 server may send before the client reads them. The library's
/// default is 5 MiB for each crawl, and would take half of an agent's memory.
const HTTP2_WINDOW: u32 = 256 << 10;
/// Maximum header size that the library accepts for HTTP/2. This maximum exceeds the crawler's own
/// limit, so that the crawler can distinguish an oversized header from a malformed one. For
/// HTTP/1.1 the library's limit is fixed at 408 KiB; only the number of fields is configurable.
const HTTP2_HEADER_BYTES: u32 = 256 << 10;
/// The name of the connection phase in timeout messages.
const CONNECTION: &str = "connection";

#[derive(Debug, thiserror::Error)]
#[error("make an HTTP client")]
pub(super) struct NoClient(#[source] reqwest::Error);

pub(super) struct Fetcher {
    client: reqwest::Client,
    context: RequestContext,
    timeouts: Timeouts,
    politeness: Politeness,
    rng: ChaCha8Rng,
    deadline: Instant,
    requests: u32,
    connection: Option<SocketAddr>,
    /// Whether the resolver is still resolving the name for the newest connection.
    resolving: Arc<AtomicBool>,
    connect_delay: ConnectDelay,
    round_trips: Vec<Duration>,
    next_round_trip: usize,
    site_address: Arc<SiteAddress>,
    /// The recorder of responses, and the headers that the crawler sends with every request.
    recorder: Option<(Recorder, HeaderMap)>,
}

impl Fetcher {
    /// Makes a fetcher that sends no request after `deadline`, and connects to the site only at
    /// `site_address`.
    pub(super) fn new(
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
            connection: None,
            resolving,
            connect_delay,
            round_trips: Vec::new(),
            next_round_trip: 0,
            site_address,
            recorder: None,
        })
    }

    pub(super) const fn requests(&self) -> u32 {
        self.requests
    }

    /// The product token that names the crawler in robots.txt.
    pub(super) const fn token(&self) -> &Arc<str> {
        self.context.user_agent.token()
    }

    /// Records every response from now on.
    pub(super) fn record(&mut self, recorder: Recorder, context: &RequestContext) {
        self.recorder = Some((recorder, request_headers(context)));
    }

    /// Waits until the politeness rules permit a request, then requests the URL.
    pub(super) async fn get(&mut self, url: &Url) -> Result<CrawlResponse, FetchError> {
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
            Ok(answer) => answer.map_err(|error| self.read_error(&error)),
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
        self.note_round_trip(&response, took);
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
    pub(super) fn broke_off(&mut self, error: &FetchError) {
        if matches!(error, FetchError::Broken(_) | FetchError::Timeout { .. } | FetchError::TooSlow) {
            self.politeness.broke_off(Instant::now(), &mut self.rng);
        }
    }

    /// The politeness state with which a resumed crawl continues.
    pub(super) fn politeness_state(&self) -> PolitenessState {
        self.politeness.state(Instant::now())
    }

    pub(super) const fn last_start(&self) -> Option<Instant> {
        self.politeness.last_start()
    }

    pub(super) fn rate_state(&self) -> RateState {
        self.politeness.rate_state(Instant::now())
    }

    pub(super) fn is_paused(&self) -> bool {
        self.politeness.is_paused(Instant::now())
    }

    pub(super) const fn is_circuit_open(&self) -> bool {
        self.politeness.is_broken()
    }

    pub(super) const fn politeness(&mut self) -> &mut Politeness {
        &mut self.politeness
    }

    /// The median time to first byte of requests on warm connections.
    pub(super) fn median_round_trip(&self) -> Option<Duration> {
        crate::probe::weighted_mean::median(&self.round_trips)
    }

    fn vet_literal(&self, url: &Url) -> Result<(), FetchError> {
        let addr = match url.host() {
            Some(url::Host::Ipv4(addr)) => IpAddr::V4(addr),
            Some(url::Host::Ipv6(addr)) => IpAddr::V6(addr),
            Some(url::Host::Domain(_)) | None => return Ok(()),
        };
        self.context.guard.vet(addr).map_err(FetchError::Refused)
    }

    /// Records the round trip of a request on a warm connection. The connection is warm if the
    /// previous request used it too. A connection is identified by its local port.
    fn note_round_trip(&mut self, response: &reqwest::Response, took: Duration) {
        self.connect_delay.answered.store(true, Ordering::Relaxed);
        let connection = response.extensions().get::<HttpInfo>().map(HttpInfo::local_addr);
        let warm = connection.is_some() && connection == self.connection;
        self.connection = connection;
        if !warm {
            return;
        }
        if self.round_trips.len() < KEPT_ROUND_TRIPS {
            self.round_trips.push(took);
        } else {
            self.round_trips[self.next_round_trip % KEPT_ROUND_TRIPS] = took;
        }
        self.next_round_trip = self.next_round_trip.wrapping_add(1);
    }

    fn read_error(&self, error: &reqwest::Error) -> FetchError {
        for cause in causes(error) {
            if let Some(NotPermitted(reason)) = cause.downcast_ref::<NotPermitted>() {
                return FetchError::NotPermitted(reason.clone());
            }
            match cause.downcast_ref::<ResolveError>() {
                Some(ResolveError::Refused(refused)) => return FetchError::Refused(*refused),
                Some(ResolveError::Dns(dns)) => return FetchError::Connect(Trouble::from(dns), dns.to_string()),
                None => {}
            }
            if cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse_too_large) {
                return FetchError::HeaderTooLarge;
            }
        }
        if error.is_connect() && error.is_timeout() {
            let what = if self.resolving.load(Ordering::Relaxed) { "address" } else { CONNECTION };
            return FetchError::Timeout { what, limit: self.timeouts.connect };
        }
        if error.is_connect() {
            FetchError::Connect(Trouble::of_connection(causes(error)), innermost(error))
        } else {
            FetchError::Broken(innermost(error))
        }
    }
}

fn response_kind(response: &reqwest::Response) -> ResponseKind {
    let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    ResponseKind::of(response.status().as_u16(), asked, clock::wall())
}

fn request_headers(context: &RequestContext) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, context.user_agent.header().clone());
    headers.insert(ACCEPT, HeaderValue::from_static("text/html,*/*;q=0.5"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(coding::ACCEPTED));
    headers
}

fn client(
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
