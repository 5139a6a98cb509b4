//! What to measure, how, and at which address; the result, or why a host could not be measured.

use std::net::IpAddr;
use std::time::Duration;

use super::address_locks::AddressLock;
use super::sample_schedule;
use crate::net::dns::DnsError;
use crate::net::guard::{RefusedAddress, ResolveError};
use crate::net::origin::{BadOrigin, Origin};

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
    /// Minimum number of answered samples before the stopping rule may end the measurement early.
    /// If `None`, all samples are taken.
    pub least_samples: Option<u32>,
    /// Maximum age of a measurement that may be shared between sites at the same address. If
    /// `None`, nothing is shared.
    pub share_max_age: Option<Duration>,
    pub interval: Duration,
    /// Time limit for making a connection, and for each request on it.
    pub timeout: Duration,
    pub lock: AddressLock,
}

impl ProbeOrder {
    pub(super) fn is_enough(&self, samples: &[Duration]) -> bool {
        self.least_samples.is_some_and(|least| sample_schedule::is_stable(samples, least))
    }
}

#[derive(Debug, Clone)]
pub struct Target {
    /// The possible origins. The first origin that responds is used.
    pub(super) candidates: Vec<Origin>,
    pub(super) path: String,
    /// Whether the target is a site of unknown origin.
    pub(super) is_unsettled: bool,
    /// Whether the target is another agent's beacon.
    pub(super) enrolled: bool,
    /// The address to try first, if it is one of the host's addresses.
    pub(super) first: Option<IpAddr>,
}

impl Target {
    /// A site of unknown origin, with its name as submitted.
    pub fn site(name: &str) -> Result<Self, BadOrigin> {
        Ok(Self { is_unsettled: true, ..Self::at(Origin::candidates(name)?, "/".to_owned()) })
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
        Self { candidates, path, is_unsettled: false, enrolled: false, first: None }
    }

    #[must_use]
    pub fn with_first(self, first: Option<IpAddr>) -> Self {
        Self { first, ..self }
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

/// The result of measuring a host. If no sample is answered, the result is a [`super::ProbeError`]
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
