//! Why a request returned no complete response.

use std::time::Duration;

use super::coding::DecodeError;
use super::failure_cause::Trouble;
use super::response_limits::{MAX_HEADER_BYTES, MAX_HEADER_FIELDS, MIN_RATE};
use crate::crawl::politeness::BREAKER;
use crate::metrics::RequestFailure;
use crate::net::guard::RefusedAddress;

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
