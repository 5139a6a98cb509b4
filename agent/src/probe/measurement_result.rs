//! The result of a measurement, and its progress for display.

use std::net::IpAddr;
use std::time::Duration;

use crate::net::origin::Origin;

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
