//! Measures the round trip to a host. `probe::http` and `probe::icmp` send requests.
//! `probe::schedule` decides a prober's next step, and `probe::enough_samples` decides when to
//! stop. `probe::weighted_mean` summarises the samples. `probe::origin_search` finds a site's
//! origin.
//!
//! The prober pauses before *every* request. So even if several probers measure a host one after
//! another, the host gets at most one request per interval. Requests go only to addresses that the
//! guard has vetted, and always have a user agent.

use std::net::IpAddr;
use std::time::Duration;

use crate::metrics::{METRICS, SampleResult};
use crate::net::dns::DnsError;
use crate::net::guard::{RefusedAddress, ResolveError};
use crate::net::origin::{BadOrigin, Origin};
use crate::net::request_context::RequestContext;
pub(crate) use pacer::RequestPacer;

pub mod address_lock;
pub mod enough_samples;
pub mod http;
pub mod icmp;
pub mod origin_search;
mod pacer;
mod sampling;
pub mod schedule;
pub mod sharing;
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
    /// Minimum number of answered samples before [`enough_samples`] may end the measurement early.
    /// With `None`, all samples are taken.
    pub least_samples: Option<u32>,
    /// Maximum age of a measurement that may be shared between sites at the same address. With
    /// `None`, nothing is shared.
    pub share_max_age: Option<Duration>,
    pub interval: Duration,
    /// Time limit for making a connection, and for each request on it.
    pub timeout: Duration,
    pub lock: AddressLock,
}

/// The address at which an order may be carried out. The scheduler sends at most one order at a
/// time for each address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressLock {
    /// Any address to which the name resolves.
    Anywhere,
    /// Only this address, if the name resolves to it.
    At(IpAddr),
    /// No address yet: the order only resolves the name, and sends no request.
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

    /// The address to try first, in case a name has several.
    const fn address(self) -> Option<IpAddr> {
        match self {
            Self::At(address) => Some(address),
            Self::Anywhere | Self::Nowhere => None,
        }
    }
}

impl ProbeOrder {
    pub(crate) fn is_enough(&self, samples: &[Duration]) -> bool {
        self.least_samples.is_some_and(|least| enough_samples::is_stable(samples, least))
    }
}

#[derive(Debug, Clone)]
pub struct Target {
    /// The possible origins. The first origin that responds is used.
    candidates: Vec<Origin>,
    path: String,
    /// Whether a redirect inside the registrable domain moves the target to another origin.
    may_move: bool,
    /// Whether the target is another agent's beacon.
    enrolled: bool,
    /// The address to try first, if it is one of the host's addresses.
    first: Option<IpAddr>,
}

impl Target {
    /// A site of unknown origin, with its name as submitted.
    pub fn site(name: &str) -> Result<Self, BadOrigin> {
        Ok(Self { may_move: true, ..Self::at(Origin::candidates(name)?, "/".to_owned()) })
    }

    /// A site whose origin is known.
    pub fn settled(origin: Origin) -> Self {
        Self::at(vec![origin], "/".to_owned())
    }

    /// Another agent's beacon. Only the origin of the URL is used, because private addresses may be
    /// allowed for beacons. If the path were used too, an agent could make another agent send
    /// arbitrary requests to machines in a private network.
    pub fn beacon(url: &str) -> Result<Self, BadOrigin> {
        Ok(Self { enrolled: true, ..Self::settled(url.parse()?) })
    }

    const fn at(candidates: Vec<Origin>, path: String) -> Self {
        Self { candidates, path, may_move: false, enrolled: false, first: None }
    }

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

    /// A target with exactly this URL, including path and query.
    pub fn url(url: &str) -> Result<Self, BadOrigin> {
        let origin: Origin = url.parse()?;
        let path = url::Url::parse(url).map(|url| url[url::Position::BeforePath..url::Position::AfterQuery].to_owned());
        let path = path.ok().filter(|path| path.starts_with('/')).unwrap_or_else(|| "/".to_owned());
        Ok(Self::at(vec![origin], path))
    }
}

/// The durations of a connection's phases. A phase that was not observed is absent, never zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    pub dns: Option<Duration>,
    pub connect: Option<Duration>,
    pub tls: Option<Duration>,
}

/// The result of measuring a host. If no sample is answered, the result is a [`ProbeError`]
/// instead.
#[derive(Debug, Clone)]
pub struct HostMeasurement {
    /// The host's origin; absent for ICMP, which uses only the address.
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
    /// The first request of a connection was answered after this time, which is not a sample.
    WarmUp(Duration),
    Sample(Duration),
    Lost(String),
}

pub type Observer<'a> = &'a mut (dyn FnMut(Observation) + Send);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectFailure {
    Refused,
    /// No response within the time limit.
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

/// Measures one host. Fails if no sample was answered.
pub async fn measure(
    context: &RequestContext,
    target: &Target,
    order: &ProbeOrder,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    measure_paced(context, target, order, &mut RequestPacer::new(order.interval), observe).await
}

/// Measures one host. The caller's pacer pauses before every request.
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
        let guard = origin_search::guard_for(context, target);
        let endpoint = http::Endpoint::resolve(context, &guard, origin.clone(), target, order.timeout).await?;
        return measure_below_http(endpoint, order, pacer, observe).await;
    }
    let found = origin_search::find(context, target, order.timeout, pacer, observe).await?;
    sample_settled(found, order, pacer, observe).await
}

/// Measures a target whose origin was found.
pub(crate) async fn sample_settled(
    found: origin_search::SettledEndpoint<'_>,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    match order.metric {
        Metric::Ttfb => sampling::sample(found, order, pacer, &mut counted(observe)).await,
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
    let observe = &mut counted(observe);
    match order.metric {
        Metric::Icmp => icmp::sample(endpoint, order, pacer, observe).await,
        Metric::Connect | Metric::Ttfb => sampling::handshakes(endpoint, order, pacer, observe).await,
    }
}

/// Wraps an observer, so that samples are also counted for metrics.
fn counted(observe: Observer<'_>) -> impl FnMut(Observation) + Send {
    |observation| {
        match observation {
            Observation::Sample(_) => METRICS.sampled(SampleResult::Answered),
            Observation::Lost(_) => METRICS.sampled(SampleResult::Lost),
            Observation::Connected { .. } | Observation::WarmUp(_) => {}
        }
        observe(observation);
    }
}

#[cfg(test)]
mod tests;
