//! Why a host could not be measured.

use std::net::IpAddr;

use crate::net::dns::DnsError;
use crate::net::guard::{RefusedAddress, ResolveError};

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
