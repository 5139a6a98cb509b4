//! Why a site returned no page. Failures are counted by cause, not by message.

use std::io;

use crate::net::dns::DnsError;
use crate::probe::{ConnectFailure, ProbeError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    NameNotFound,
    /// The site's address refused the connection.
    Refused,
    /// The connection failed for another reason.
    NoConnection,
    TimedOut,
    Tls,
    /// The start page redirects to another site, or in a loop.
    Redirect,
    ClientError,
    ServerError,
    /// The response was not HTTP, or was cut off.
    BrokenAnswer,
    Other,
}

impl Trouble {
    pub(in crate::crawl) fn of_status(status: reqwest::StatusCode) -> Self {
        if status.is_server_error() {
            Self::ServerError
        } else if status.is_client_error() {
            Self::ClientError
        } else {
            Self::Other
        }
    }

    /// Finds the cause of a failed connection in the chain of the error's sources, which can
    /// include TLS and system errors.
    pub(in crate::crawl) fn of_connection<'a>(
        causes: impl Iterator<Item = &'a (dyn std::error::Error + 'static)>,
    ) -> Self {
        for cause in causes {
            // A TLS or system error may be wrapped in several io errors.
            let mut inner = cause;
            while let Some(inside) = inner.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
                inner = inside;
            }
            if inner.is::<rustls::Error>() {
                return Self::Tls;
            }
            match inner.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(io::ErrorKind::ConnectionRefused) => return Self::Refused,
                Some(io::ErrorKind::TimedOut) => return Self::TimedOut,
                _ => {}
            }
        }
        Self::NoConnection
    }
}

impl From<&DnsError> for Trouble {
    fn from(error: &DnsError) -> Self {
        match error {
            DnsError::Timeout(_) => Self::TimedOut,
            DnsError::BadName(_) | DnsError::NotFound(_) | DnsError::Failed { .. } => Self::NameNotFound,
        }
    }
}

impl From<&ProbeError> for Trouble {
    fn from(error: &ProbeError) -> Self {
        match error {
            ProbeError::Dns(error) => error.into(),
            ProbeError::Connect { cause, .. } => match cause {
                ConnectFailure::Refused => Self::Refused,
                ConnectFailure::TimedOut => Self::TimedOut,
                ConnectFailure::Failed => Self::NoConnection,
            },
            ProbeError::Tls { .. } => Self::Tls,
            ProbeError::Timeout(_) => Self::TimedOut,
            ProbeError::Protocol { .. } => Self::BrokenAnswer,
            ProbeError::Guard(_) | ProbeError::NotPermitted(_) | ProbeError::BadOrder(_) => Self::Other,
        }
    }
}
