//! What to measure, how, and at which address.

use std::time::Duration;

use super::address_lock::AddressLock;
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

impl ProbeOrder {
    pub(crate) fn is_enough(&self, samples: &[Duration]) -> bool {
        self.least_samples.is_some_and(|least| stopping_rule::is_stable(samples, least))
    }
}
