//! Sends a crawl's requests one at a time, only when `crawl::politeness` permits, and only to
//! vetted addresses.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use reqwest::Url;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::connect_delay::ConnectDelay;
use super::failure_cause::{CONNECTION, FetchError};
use super::http_client::{NoClient, client, request_headers};
use super::response::CrawlResponse;
use super::round_trips::RoundTrips;
use super::site_address::SiteAddress;
use super::timeouts::Timeouts;
use crate::crawl::politeness::{Politeness, PolitenessState, RateState, ResponseKind};
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

    /// The politeness state with which a resumed crawl continues.
    pub(in crate::crawl) fn politeness_state(&self) -> PolitenessState {
        self.politeness.state(Instant::now())
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
