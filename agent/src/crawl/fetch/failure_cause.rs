//! Why a request returned no complete response, and why a site returned no page. Failures are
//! counted by cause, not by message.

use std::io;
use std::time::Duration;

use super::coding::DecodeError;
use super::response_limits::{MAX_HEADER_BYTES, MAX_HEADER_FIELDS, MIN_RATE};
use crate::crawl::politeness::BREAKER;
use crate::metrics::RequestFailure;
use crate::net::dns::DnsError;
use crate::net::guard::RefusedAddress;
use crate::probe::{ConnectFailure, ProbeError};

/// Why a request returned no response, or only a part of a response.
#[derive(Debug, thiserror::Error)]
pub(in crate::crawl) enum FetchError {
    #[error(transparent)]
    Refused(RefusedAddress),
    /// No connection could be made, or the site's name has no address.
    #[error("no connection: {1}")]
    Connect(Trouble, String),
    /// No complete response within the time limit.
    #[error("no {what} within {limit:?}")]
    Timeout { what: &'static str, limit: Duration },
    #[error("the body arrives slower than {MIN_RATE} bytes a second")]
    TooSlow,
    #[error("the header has more than {} KiB, or more than {MAX_HEADER_FIELDS} fields", MAX_HEADER_BYTES >> 10)]
    HeaderTooLarge,
    #[error(transparent)]
    Decode(DecodeError),
    /// The connection broke, or the response is not HTTP.
    #[error("{0}")]
    Broken(String),
    /// Too many consecutive errors: the crawl sends no more requests to the site.
    #[error("{BREAKER} requests in a row failed")]
    CircuitOpen,
    /// The site's name now resolves to an address that permits no further crawl.
    #[error("{0}")]
    NotPermitted(String),
    /// The crawl's deadline comes before the request may start.
    #[error("the crawl's time is over")]
    OutOfTime,
}

/// Why a site returned no page.
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

impl From<&FetchError> for Trouble {
    fn from(error: &FetchError) -> Self {
        match error {
            FetchError::Connect(trouble, _) => *trouble,
            FetchError::Timeout { .. } | FetchError::TooSlow => Self::TimedOut,
            FetchError::HeaderTooLarge | FetchError::Decode(_) | FetchError::Broken(_) => Self::BrokenAnswer,
            FetchError::Refused(_) | FetchError::CircuitOpen | FetchError::NotPermitted(_) | FetchError::OutOfTime => {
                Self::Other
            }
        }
    }
}

impl From<&FetchError> for RequestFailure {
    fn from(error: &FetchError) -> Self {
        if matches!(error, FetchError::Refused(_) | FetchError::NotPermitted(_)) {
            return Self::NotPermitted;
        }
        match Trouble::from(error) {
            Trouble::NameNotFound => Self::NameNotFound,
            Trouble::Refused => Self::ConnectionRefused,
            Trouble::NoConnection => Self::NoConnection,
            Trouble::TimedOut => Self::TimedOut,
            Trouble::Tls => Self::Tls,
            Trouble::BrokenAnswer => Self::BrokenAnswer,
            Trouble::Redirect | Trouble::ClientError | Trouble::ServerError | Trouble::Other => Self::Other,
        }
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
