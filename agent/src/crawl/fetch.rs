//! Sends a crawl's requests, one at a time: paced, vetted, timed and bounded.
//!
//! Nothing else in the crawler touches the network. The client resolves only through [`GuardedResolver`], so that the
//! connection goes to a vetted address and nothing resolves the name a second time; IP literals, which no resolver
//! sees, are vetted before the request. No proxy, no cookies, no redirects: a redirect is an answer like another.
//!
//! Each crawl has a client of its own: its connections end with it, and what one site does to its pool is nothing to
//! the others. The trust anchors are shared.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpInfo;
use rand_chacha::ChaCha8Rng;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT};
use reqwest::{StatusCode, Url};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::politeness::{Answered, BREAKER, Grudge, Manners, Politeness, retry_after};
use super::recorded::recorded;
use crate::clock;
use crate::context::Context;
use crate::dns::Resolver;
use crate::guard::{Guard, Refused, ResolveError};
use crate::warc::{Recorder, Recording, Truncated};

/// Round trips kept for the median; of a longer crawl the newest.
const KEPT_ROUND_TRIPS: usize = 1024;
/// HTTP/2 lets a server send this much before it is read. The library's own 5 MiB would be half an agent's memory.
const HTTP2_WINDOW: u32 = 256 << 10;

/// How long the parts of a request may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// Resolving, connecting and the TLS handshake.
    pub(super) connect: Duration,
    /// From the start to the answer's headers, the connection included.
    pub(super) first_byte: Duration,
    /// From the start to the end of the body.
    pub(super) total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { connect: seconds(5), first_byte: seconds(15), total: seconds(30) }
    }
}

/// Why a request brought nothing, or not all.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The guard refused the address.
    #[error(transparent)]
    Refused(Refused),
    /// No connection, or no address to connect to.
    #[error("no connection: {0}")]
    Connect(String),
    /// No answer, or not all of it, in time.
    #[error("no {what} within {limit:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        limit: Duration,
    },
    /// The connection broke, or what came is not HTTP.
    #[error("{0}")]
    Broken(String),
    /// Errors without end: the site is not asked any more.
    #[error("{BREAKER} requests in a row failed")]
    BrokenOff,
    /// The crawl's time would be over before the request may start.
    #[error("the crawl's time is over")]
    OutOfTime,
}

/// No client could be made.
#[derive(Debug, thiserror::Error)]
#[error("make an HTTP client")]
pub(super) struct NoClient(#[source] reqwest::Error);

/// Sends the requests of one crawl.
pub(super) struct Fetcher {
    client: reqwest::Client,
    guard: Guard,
    timeouts: Timeouts,
    politeness: Politeness,
    rng: ChaCha8Rng,
    deadline: Instant,
    connection: Option<SocketAddr>,
    round_trips: Vec<Duration>,
    next_round_trip: usize,
    /// What stores the answers, and the headers of every request.
    recorder: Option<(Recorder, HeaderMap)>,
}

/// An answer whose body is still to come.
pub(super) struct Answer {
    response: reqwest::Response,
    limit: Duration,
    body_deadline: Instant,
    /// When the crawl's time is over.
    crawl_deadline: Instant,
    recording: Option<Recording>,
}

impl Fetcher {
    /// A fetcher that sends nothing that could not start before `deadline`.
    ///
    /// # Errors
    /// When the library refuses its settings.
    pub(super) fn new(
        context: &Context,
        timeouts: Timeouts,
        politeness: Politeness,
        deadline: Instant,
    ) -> Result<Self, NoClient> {
        let guard = context.guard.clone();
        Ok(Self {
            client: client(context, timeouts)?,
            guard,
            timeouts,
            politeness,
            rng: rand::make_rng(),
            deadline,
            connection: None,
            round_trips: Vec::new(),
            next_round_trip: 0,
            recorder: None,
        })
    }

    /// Stores every answer from now on.
    pub(super) fn record(&mut self, recorder: Recorder, context: &Context) {
        self.recorder = Some((recorder, request_headers(context)));
    }

    /// Asks for a URL, when its turn has come.
    ///
    /// # Errors
    /// When there is no answer.
    pub(super) async fn get(&mut self, url: &Url) -> Result<Answer, FetchError> {
        self.vet_literal(url)?;
        if self.politeness.is_broken() {
            return Err(FetchError::BrokenOff);
        }
        if let Some((recorder, _)) = &self.recorder {
            recorder.ready().await;
        }
        let start = self.politeness.next_start(Instant::now());
        if start >= self.deadline {
            return Err(FetchError::OutOfTime);
        }
        sleep_until(start).await;
        let started = Instant::now();
        self.politeness.start(started);
        let answer = timeout_at(started + self.timeouts.first_byte, self.client.get(url.clone()).send()).await;
        let took = started.elapsed();
        let late = FetchError::Timeout { what: "answer", limit: self.timeouts.first_byte };
        let answer = answer.map_err(|_| late).and_then(|answer| answer.map_err(|error| self.read_error(&error)));
        let answered = answer.as_ref().map_or(Answered::Badly, answered);
        self.politeness.answered(Instant::now(), answered, Some(took), &mut self.rng);
        let response = answer?;
        self.note_round_trip(&response, took);
        let recording = self.recorder.as_ref().map(|(recorder, sent)| recorder.begin(recorded(sent, url, &response)));
        let (limit, body_deadline) = (self.timeouts.total, started + self.timeouts.total);
        Ok(Answer { response, limit, body_deadline, crawl_deadline: self.deadline, recording })
    }

    /// What a later part of the crawl has to remember of how the site answers.
    pub(super) fn grudge(&self) -> Grudge {
        self.politeness.grudge(Instant::now())
    }

    /// How the site answers, for people.
    pub(super) fn manners(&self) -> Manners {
        self.politeness.manners(Instant::now())
    }

    /// Whether the site is left alone for a while.
    pub(super) fn is_paused(&self) -> bool {
        self.politeness.is_paused(Instant::now())
    }

    /// Whether the site is not to be asked any more.
    pub(super) const fn is_broken_off(&self) -> bool {
        self.politeness.is_broken()
    }

    /// Honours a crawl-delay from the next request on.
    pub(super) fn slow_down(&mut self, crawl_delay: Duration) {
        self.politeness.slow_down(crawl_delay);
    }

    /// The median time to first byte of the requests on warm connections.
    pub(super) fn median_round_trip(&self) -> Option<Duration> {
        crate::probe::weighted_mean::median(&self.round_trips)
    }

    fn vet_literal(&self, url: &Url) -> Result<(), FetchError> {
        let addr = match url.host() {
            Some(url::Host::Ipv4(addr)) => IpAddr::V4(addr),
            Some(url::Host::Ipv6(addr)) => IpAddr::V6(addr),
            Some(url::Host::Domain(_)) | None => return Ok(()),
        };
        self.guard.vet(addr).map_err(FetchError::Refused)
    }

    /// A request on the connection of the one before it was warm; the local port tells connections apart.
    fn note_round_trip(&mut self, response: &reqwest::Response, took: Duration) {
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
            match cause.downcast_ref::<ResolveError>() {
                Some(ResolveError::Refused(refused)) => return FetchError::Refused(*refused),
                Some(ResolveError::Dns(dns)) => return FetchError::Connect(dns.to_string()),
                None => {}
            }
        }
        if error.is_connect() && error.is_timeout() {
            return FetchError::Timeout { what: "connection", limit: self.timeouts.connect };
        }
        if error.is_connect() { FetchError::Connect(innermost(error)) } else { FetchError::Broken(innermost(error)) }
    }
}

impl Answer {
    pub(super) fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Whether the site asks to come back later.
    pub(super) fn turns_away(&self) -> bool {
        matches!(self.status().as_u16(), 429 | 503)
    }

    /// Where the answer points instead, as it was written; `None` when it is no redirect.
    pub(super) fn location(&self) -> Option<&str> {
        let redirects = matches!(self.status().as_u16(), 301 | 302 | 303 | 307 | 308);
        redirects.then(|| self.header(&LOCATION)).flatten()
    }

    /// Whether the body is HTML.
    pub(super) fn is_html(&self) -> bool {
        let media_type = self.header(&CONTENT_TYPE).and_then(|value| value.split(';').next());
        media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("text/html"))
    }

    /// What the server says of robots.
    pub(super) fn robots_tags(&self) -> impl Iterator<Item = &str> {
        self.response.headers().get_all("x-robots-tag").iter().filter_map(|value| value.to_str().ok())
    }

    /// The encoding that the server says the body has.
    pub(super) fn charset(&self) -> Option<&str> {
        let parameters = self.header(&CONTENT_TYPE)?.split(';').skip(1);
        let mut pairs = parameters.filter_map(|parameter| parameter.split_once('='));
        let (_, value) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))?;
        Some(value.trim().trim_matches('"'))
    }

    /// Says how many links away from the start page it was found.
    pub(super) fn found_at(mut self, depth: u32) -> Self {
        if let Some(recording) = &mut self.recording {
            recording.found_at(depth);
        }
        self
    }

    /// The next piece of the body, decoded; `None` at its end.
    ///
    /// # Errors
    /// When the body breaks off or takes too long.
    pub(super) async fn piece(&mut self) -> Result<Option<hyper::body::Bytes>, FetchError> {
        let piece = self.chunk().await?;
        if let (Some(recording), Some(piece)) = (&mut self.recording, &piece) {
            recording.count(piece.len());
        }
        Ok(piece)
    }

    /// The next piece of the body as it was sent; it is recorded.
    async fn chunk(&mut self) -> Result<Option<hyper::body::Bytes>, FetchError> {
        if let Some(recording) = &mut self.recording {
            recording.wait(self.crawl_deadline);
        }
        let piece = match timeout_at(self.body_deadline, self.response.chunk()).await {
            Err(_) => Err(FetchError::Timeout { what: "end of the answer", limit: self.limit }),
            Ok(Err(error)) => Err(FetchError::Broken(innermost(&error))),
            Ok(Ok(piece)) => Ok(piece),
        };
        if let Some(recording) = &mut self.recording {
            match &piece {
                Ok(Some(piece)) => recording.push(piece).await,
                Ok(None) => recording.end(None),
                Err(FetchError::Timeout { .. }) => recording.end(Some(Truncated::Time)),
                Err(_) => recording.end(Some(Truncated::Disconnect)),
            }
        }
        piece
    }

    fn header(&self, name: &HeaderName) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }
}

/// What an answer says of how welcome the crawl is.
fn answered(response: &reqwest::Response) -> Answered {
    match response.status().as_u16() {
        429 | 503 => {
            let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            Answered::TurnedAway(asked.and_then(|value| retry_after(value, clock::wall())))
        }
        403 | 500.. => Answered::Badly,
        _ => Answered::Well,
    }
}

/// What goes into every request, beside its host.
fn request_headers(context: &Context) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, context.user_agent.header().clone());
    headers.insert(ACCEPT, HeaderValue::from_static("text/html,*/*;q=0.5"));
    headers
}

fn client(context: &Context, timeouts: Timeouts) -> Result<reqwest::Client, NoClient> {
    let mut tls = (*context.tls).clone();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let headers = request_headers(context);
    let resolver = GuardedResolver { guard: context.guard.clone(), resolver: context.resolver.clone() };
    reqwest::Client::builder()
        .default_headers(headers)
        .tls_backend_preconfigured(tls)
        .dns_resolver(resolver)
        .local_address(context.bind)
        .connect_timeout(timeouts.connect)
        .redirect(reqwest::redirect::Policy::none())
        // The library would repeat some requests by itself, unpaced and uncounted.
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .pool_max_idle_per_host(1)
        .http2_initial_stream_window_size(HTTP2_WINDOW)
        .http2_initial_connection_window_size(HTTP2_WINDOW)
        .build()
        .map_err(NoClient)
}

/// Resolves names to vetted addresses, for the client.
struct GuardedResolver {
    guard: Guard,
    resolver: Resolver,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, resolver) = (self.guard.clone(), self.resolver.clone());
        Box::pin(async move {
            let addresses = guard.resolve(&resolver, name.as_str()).await?;
            // Port 0 stands for the URL's.
            let addresses = addresses.into_iter().map(|addr| SocketAddr::new(addr, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// The cause of all causes: what the layers above it say is who called whom.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).last().map_or_else(String::new, ToString::to_string)
}
