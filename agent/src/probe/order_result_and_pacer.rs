//! What to measure, how, and at which address; the result, or why a host could not be measured.
//! Holds the locks on addresses, and the pacer, which pauses before every request to a host.
//!
//! The scheduler gives the lock on an address to only one order at a time, across all agents, and
//! the order contains the address ([`AddressLock`]). Without locks, a machine with many names could
//! get one request a second for each name. If another order on this agent is using the address, the
//! new order waits for a few seconds ([`AddressLocks`]).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

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

/// Makes the prober pause before every request.
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

    /// Waits until a request may be sent. Returns immediately if no request was sent since the last
    /// pause.
    pub(crate) async fn pause(&mut self) {
        if !self.paused {
            tokio::time::sleep(self.interval).await;
            self.paused = true;
        }
    }

    /// Records that a request was sent or a connection was attempted, so that the next request
    /// needs a pause.
    pub(crate) const fn spend(&mut self) {
        self.paused = false;
        self.sent += 1;
    }

    pub(crate) const fn sent(&self) -> u32 {
        self.sent
    }
}

/// Maximum time for which an order waits for the lock on its address. If the address has few sites,
/// the order usually gets the lock in time. If the address has many sites, waiting orders are
/// reported to the scheduler before they expire.
const WAIT: Duration = Duration::from_secs(5);
/// Above this number of locks, those that no order uses are removed.
const SWEPT_BEYOND: usize = 4096;

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
    pub(super) fn is_at(self, address: IpAddr) -> bool {
        match self {
            Self::Anywhere => true,
            Self::At(lock) => lock == address,
            Self::Nowhere => false,
        }
    }

    /// The address to try first, in case a name has several.
    pub(super) const fn address(self) -> Option<IpAddr> {
        match self {
            Self::At(address) => Some(address),
            Self::Anywhere | Self::Nowhere => None,
        }
    }
}

/// The locks of the orders that one agent is carrying out.
#[derive(Debug)]
pub(super) struct AddressLocks {
    pub(super) wait: Duration,
    /// A lock for each address. The outer lock is never held across an await.
    locks: Mutex<HashMap<IpAddr, Weak<tokio::sync::Mutex<()>>>>,
}

impl Default for AddressLocks {
    fn default() -> Self {
        Self { wait: WAIT, locks: Mutex::default() }
    }
}

impl AddressLocks {
    /// Waits for the lock on an address; `None` if it is not free in time.
    pub(super) async fn lock(&self, address: IpAddr) -> Option<OwnedMutexGuard<()>> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            if locks.len() > SWEPT_BEYOND {
                locks.retain(|_, lock| lock.strong_count() > 0);
            }
            let lock = locks.get(&address).and_then(Weak::upgrade).unwrap_or_default();
            locks.insert(address, Arc::downgrade(&lock));
            lock
        };
        tokio::time::timeout(self.wait, lock.lock_owned()).await.ok()
    }
}
