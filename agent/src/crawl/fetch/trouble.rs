//! What kept a site from giving a single page, as a word: failures are counted by it, whatever their sentences say.

use std::io;

use super::FetchError;
use crate::net::dns::DnsError;
use crate::probe::{NoConnection, ProbeError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    NameNotFound,
    /// Its address refused the connection.
    Refused,
    /// No connection came about for another cause.
    NoConnection,
    TimedOut,
    Tls,
    /// Its start page leads out of the site, or in a circle.
    Redirect,
    ClientError,
    ServerError,
    /// Its answer was no HTTP, or broke off.
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

    /// Why there is no connection, as TLS or the system says it in one of these causes.
    pub(in crate::crawl) fn of_connection<'a>(
        causes: impl Iterator<Item = &'a (dyn std::error::Error + 'static)>,
    ) -> Self {
        for cause in causes {
            // What TLS or the system says may lie in errors of the system's type, one inside another.
            let mut said = cause;
            while let Some(inside) = said.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
                said = inside;
            }
            if said.is::<rustls::Error>() {
                return Self::Tls;
            }
            match said.downcast_ref::<io::Error>().map(io::Error::kind) {
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
                NoConnection::Refused => Self::Refused,
                NoConnection::TimedOut => Self::TimedOut,
                NoConnection::Failed => Self::NoConnection,
            },
            ProbeError::Tls { .. } => Self::Tls,
            ProbeError::Timeout(_) => Self::TimedOut,
            ProbeError::Protocol { .. } => Self::BrokenAnswer,
            ProbeError::Guard(_) | ProbeError::NotPermitted(_) | ProbeError::BadOrder(_) => Self::Other,
        }
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
