//! What to measure, how, and at which address.

use std::net::IpAddr;
use std::time::Duration;

use super::stopping_rule;

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
    /// Minimum number of answered samples before [`stopping_rule`] may end the measurement early.
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

impl ProbeOrder {
    pub(crate) fn is_enough(&self, samples: &[Duration]) -> bool {
        self.least_samples.is_some_and(|least| stopping_rule::is_stable(samples, least))
    }
}
