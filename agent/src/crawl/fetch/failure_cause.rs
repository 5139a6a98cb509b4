//! Why a request returned no complete response, and why a site returned no page: also when a header
//! is too large, and when a body arrives too slowly. Failures are counted by cause.

use std::io;
use std::time::Duration;

use landfall_proto::error_causes::{causes, innermost};
use reqwest::header::HeaderMap;
use tokio::time::Instant;

use super::content_encoding::DecodeError;
use super::site_address::NotPermitted;
use crate::crawl::politeness::BREAKER;
use crate::metrics::RequestFailure;
use crate::net::dns::DnsError;
use crate::net::guard::{RefusedAddress, ResolveError};
use crate::probe::{ConnectFailure, ProbeError};

/// The name of the connection phase in timeout messages.
pub(super) const CONNECTION: &str = "connection";

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

impl FetchError {
    /// Why the HTTP client could not send a request. `is_resolving` is whether the client was still
    /// resolving the site's name; `limit` is the time limit to connect.
    pub(super) fn of_request(error: &reqwest::Error, is_resolving: bool, limit: Duration) -> Self {
        for cause in causes(error) {
            if let Some(NotPermitted(reason)) = cause.downcast_ref::<NotPermitted>() {
                return Self::NotPermitted(reason.clone());
            }
            match cause.downcast_ref::<ResolveError>() {
                Some(ResolveError::Refused(refused)) => return Self::Refused(*refused),
                Some(ResolveError::Dns(dns)) => return Self::Connect(Trouble::from(dns), dns.to_string()),
                None => {}
            }
            if cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse_too_large) {
                return Self::HeaderTooLarge;
            }
        }
        if error.is_connect() && error.is_timeout() {
            let what = if is_resolving { "address" } else { CONNECTION };
            return Self::Timeout { what, limit };
        }
        if error.is_connect() {
            Self::Connect(Trouble::of_connection(causes(error)), innermost(error))
        } else {
            Self::Broken(innermost(error))
        }
    }
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
    fn of_connection<'a>(causes: impl Iterator<Item = &'a (dyn std::error::Error + 'static)>) -> Self {
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

/// Minimum average rate of a body in bytes per second, enforced after
/// [`super::Timeouts::slow_after`]. The slowest links on which sites are hosted have four times
/// this rate.
pub(super) const MIN_RATE: u64 = 1 << 10;

/// The time at which a body is too slow if no further bytes arrive: its average rate then falls
/// below the minimum. `received` is the number of bytes since the body `began`.
pub(super) fn too_slow_at(began: Instant, received: u64, slow_after: Duration) -> Instant {
    let earned = Duration::from_millis(received.saturating_mul(1000) / MIN_RATE);
    began + earned.max(slow_after)
}

/// Maximum bytes of a response header: names, values and four bytes per field. The limits of
/// servers and browsers are usually less than a quarter of this size.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Maximum number of fields in a response header. Pages of large sites have about thirty.
pub(super) const MAX_HEADER_FIELDS: usize = 100;

pub(super) fn is_too_large(headers: &HeaderMap) -> bool {
    let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>();
    headers.len() > MAX_HEADER_FIELDS || bytes > MAX_HEADER_BYTES
}
