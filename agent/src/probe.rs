//! Measures the round trip to a host. `probe::http` and `probe::icmp` send, `probe::schedule`
//! decides the next step, `probe::stopping` when to stop, `probe::weighted_mean` summarises, and
//! `probe::settle` finds a site's origin.
//!
//! There is a pause before *every* request, so a host never gets more than one request in that
//! time, however many probers take turns. Nothing is sent to an address that the guard has not
//! vetted, or without a user agent.

use std::net::IpAddr;
use std::time::Duration;

use crate::net::context::RequestContext;
use crate::net::dns::DnsError;
use crate::net::guard::{RefusedAddress, ResolveError};
use crate::net::origin::{BadOrigin, Origin};

pub mod addresses;
pub mod http;
pub mod icmp;
mod sampling;
pub mod schedule;
pub mod settle;
pub mod sharing;
pub mod stopping;
pub mod weighted_mean;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Metric {
    /// From sending a request on a warm connection to the first byte of the response
    Ttfb,
    /// TCP handshake
    Connect,
    /// ICMP echo
    Icmp,
}

#[derive(Debug, Clone, Copy)]
pub struct ProbeOrder {
    pub metric: Metric,
    pub samples: u32,
    /// Minimum answered samples before [`stopping`] may end it early; `None` takes all samples.
    pub least_samples: Option<u32>,
    /// Maximum age of another site's measurement at its address for sharing; `None` shares nothing.
    pub share_max_age: Option<Duration>,
    pub interval: Duration,
    /// Time limit of a connection, and of a request on it.
    pub timeout: Duration,
    /// The address at which it may be carried out.
    pub lock: AddressLock,
}

/// The address at which an order may be carried out: the scheduler sends an address one order at a
/// time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressLock {
    /// Any address of the name.
    Anywhere,
    /// Only this address, while the name resolves to it.
    At(IpAddr),
    /// No address yet: resolve the name without sending a request.
    Nowhere,
}

impl AddressLock {
    /// Whether an order may be carried out at this address.
    fn is_at(self, address: IpAddr) -> bool {
        match self {
            Self::Anywhere => true,
            Self::At(lock) => lock == address,
            Self::Nowhere => false,
        }
    }

    /// The address to try first if a name has several.
    const fn address(self) -> Option<IpAddr> {
        match self {
            Self::At(address) => Some(address),
            Self::Anywhere | Self::Nowhere => None,
        }
    }
}

impl ProbeOrder {
    pub(crate) fn is_enough(&self, samples: &[Duration]) -> bool {
        self.least_samples.is_some_and(|least| stopping::is_stable(samples, least))
    }
}

#[derive(Debug, Clone)]
pub struct Target {
    /// The possible origins; the first that responds counts.
    candidates: Vec<Origin>,
    path: String,
    /// Whether a redirect inside the registrable domain moves it.
    may_move: bool,
    /// Whether it is an enrolled beacon.
    enrolled: bool,
    /// The address to try first, if it is one of the host's.
    first: Option<IpAddr>,
}

impl Target {
    /// A submitted site whose origin is unknown.
    pub fn site(name: &str) -> Result<Self, BadOrigin> {
        Ok(Self { may_move: true, ..Self::at(Origin::candidates(name)?, "/".to_owned()) })
    }

    /// A site whose origin is known.
    pub fn settled(origin: Origin) -> Self {
        Self::at(vec![origin], "/".to_owned())
    }

    /// Another agent's beacon. Only its origin counts: this agent's operator may allow private
    /// addresses for it, so a path would let one agent send arbitrary requests to a machine near
    /// another agent.
    pub fn beacon(url: &str) -> Result<Self, BadOrigin> {
        Ok(Self { enrolled: true, ..Self::settled(url.parse()?) })
    }

    const fn at(candidates: Vec<Origin>, path: String) -> Self {
        Self { candidates, path, may_move: false, enrolled: false, first: None }
    }

    /// The same target, with this address tried first.
    #[must_use]
    pub fn with_first(self, first: Option<IpAddr>) -> Self {
        Self { first, ..self }
    }

    fn settled_origin(&self) -> Option<&Origin> {
        self.candidates.first().filter(|_| self.candidates.len() == 1 && !self.may_move)
    }

    pub const fn is_beacon(&self) -> bool {
        self.enrolled
    }

    /// Exactly this URL, path and query included.
    pub fn url(url: &str) -> Result<Self, BadOrigin> {
        let origin: Origin = url.parse()?;
        let path = url::Url::parse(url).map(|url| url[url::Position::BeforePath..url::Position::AfterQuery].to_owned());
        let path = path.ok().filter(|path| path.starts_with('/')).unwrap_or_else(|| "/".to_owned());
        Ok(Self::at(vec![origin], path))
    }
}

/// The phases of a connection, timed separately; an unobserved phase is absent, never zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    pub dns: Option<Duration>,
    pub connect: Option<Duration>,
    pub tls: Option<Duration>,
}

/// The result of measuring a host. Without an answered sample there is a [`ProbeError`] instead.
#[derive(Debug, Clone)]
pub struct HostMeasurement {
    /// Its origin; absent for ICMP, which contacts only the address.
    pub origin: Option<Origin>,
    pub address: IpAddr,
    pub phases: Phases,
    /// The answered samples, in order; never empty.
    pub samples: Vec<Duration>,
    pub lost: u32,
}

/// Progress of a measurement, for display.
#[derive(Debug, Clone)]
pub enum Observation {
    Connected {
        origin: Origin,
        address: IpAddr,
        phases: Phases,
    },
    /// A connection's first request was answered, and discarded.
    WarmUp(Duration),
    Sample(Duration),
    Lost(String),
}

pub type Observer<'a> = &'a mut (dyn FnMut(Observation) + Send);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectFailure {
    Refused,
    /// No response in time.
    TimedOut,
    Failed,
}

impl From<std::io::ErrorKind> for ConnectFailure {
    fn from(kind: std::io::ErrorKind) -> Self {
        match kind {
            std::io::ErrorKind::ConnectionRefused => Self::Refused,
            std::io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Failed,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error(transparent)]
    Dns(DnsError),
    #[error(transparent)]
    Guard(RefusedAddress),
    #[error("connect to {origin} at {address}: {reason}")]
    Connect { origin: String, address: IpAddr, reason: String, cause: ConnectFailure },
    #[error("TLS with {origin}: {reason}")]
    Tls { origin: String, reason: String },
    #[error("{0} did not answer in time")]
    Timeout(String),
    /// The response was not HTTP, or the connection broke.
    #[error("{origin}: {reason}")]
    Protocol { origin: String, reason: String },
    #[error("{0}")]
    NotPermitted(String),
    #[error("{0}")]
    BadOrder(String),
}

impl From<ResolveError> for ProbeError {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Dns(error) => Self::Dns(error),
            ResolveError::Refused(refused) => Self::Guard(refused),
        }
    }
}

/// Measures one host. It fails when no sample was answered.
pub async fn measure(
    context: &RequestContext,
    target: &Target,
    order: &ProbeOrder,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    measure_paced(context, target, order, &mut RequestPacer::new(order.interval), observe).await
}

/// Measures one host with a pace shared with the caller.
pub(crate) async fn measure_paced(
    context: &RequestContext,
    target: &Target,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    if order.samples == 0 {
        return Err(ProbeError::BadOrder("the number of samples must be at least 1".to_owned()));
    }
    if let Some(origin) = target.settled_origin().filter(|_| order.metric != Metric::Ttfb) {
        let guard = settle::guard_for(context, target);
        let endpoint = http::Endpoint::resolve(context, &guard, origin.clone(), target, order.timeout).await?;
        return measure_below_http(endpoint, order, pacer, observe).await;
    }
    let found = settle::find(context, target, order.timeout, pacer, observe).await?;
    sample_settled(found, order, pacer, observe).await
}

/// Measures a target at its found origin.
pub(crate) async fn sample_settled(
    found: settle::SettledEndpoint<'_>,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    match order.metric {
        Metric::Ttfb => sampling::sample(found, order, pacer, observe).await,
        Metric::Connect | Metric::Icmp => {
            drop(found.connection);
            measure_below_http(found.endpoint, order, pacer, observe).await
        }
    }
}

async fn measure_below_http(
    endpoint: http::Endpoint<'_>,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    match order.metric {
        Metric::Icmp => icmp::sample(endpoint, order, pacer, observe).await,
        Metric::Connect | Metric::Ttfb => sampling::handshakes(endpoint, order, pacer, observe).await,
    }
}

/// Keeps the pause before every request.
#[derive(Debug)]
pub(crate) struct RequestPacer {
    interval: Duration,
    paused: bool,
    sent: u32,
}

impl RequestPacer {
    pub(crate) const fn new(interval: Duration) -> Self {
        Self { interval, paused: false, sent: 0 }
    }

    /// Returns when a request may be sent; at once if it already waited and nothing was sent since.
    pub(crate) async fn pause(&mut self) {
        if !self.paused {
            tokio::time::sleep(self.interval).await;
            self.paused = true;
        }
    }

    /// Records that a request was sent, or a connection tried.
    pub(crate) const fn spend(&mut self) {
        self.paused = false;
        self.sent += 1;
    }

    pub(crate) const fn sent(&self) -> u32 {
        self.sent
    }
}

#[cfg(test)]
mod tests;
