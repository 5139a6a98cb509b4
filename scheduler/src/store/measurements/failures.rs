//! Why nothing could be measured: a cause that programs tell apart, and a sentence for people.

use crate::model::words;

/// What a measurement says when its prober kept silent.
pub(in crate::store) const NO_REPORT: &str = "no report from the prober in time";

/// Why a prober has no round trip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub cause: Cause,
    /// What the prober said of it; empty when it said nothing.
    pub said: String,
}

words!(
    /// The causes that are told apart.
    #[derive(PartialOrd, Ord)]
    Cause {
        /// One that this scheduler does not know, or a report that cannot be.
        Unknown = "unknown",
        /// The name did not resolve.
        Dns = "dns",
        /// The system refused the connection: nothing listens there.
        Refused = "refused",
        /// No connection came about in time.
        ConnectTimeout = "connect-timeout",
        /// No connection, for another reason.
        Connect = "connect",
        /// No TLS session.
        Tls = "tls",
        /// Connected, and no answer in time.
        Timeout = "timeout",
        /// Something other than HTTP answered, or the connection broke.
        Protocol = "protocol",
        /// The prober's guard refused the address.
        Guard = "guard",
        /// The prober has no contact URL, so it sends nothing.
        NoContactUrl = "no-contact-url",
        /// The metric is not permitted there.
        Metric = "metric",
        /// The prober did not understand the order.
        Order = "order",
        /// The prober did not report in time.
        NoReport = "no-report",
    }
);

impl Cause {
    /// What happened, before "at 12 agents".
    pub(in crate::store) const fn happened(self) -> &'static str {
        match self {
            Self::Dns => "the name of a beacon did not resolve",
            Self::Refused => "a connection was refused",
            Self::ConnectTimeout => "no connection came about in time",
            Self::Connect | Self::Tls => "no connection came about",
            Self::Timeout => "no answer came in time",
            Self::Protocol => "something answered that is no beacon",
            Self::Guard => "the guard refused an address",
            Self::NoContactUrl => "no contact URL was known",
            Self::NoReport => "no report came in time",
            Self::Unknown | Self::Metric | Self::Order => "a beacon could not be measured",
        }
    }
}

impl From<&str> for Failure {
    /// A sentence that says it all.
    fn from(said: &str) -> Self {
        Self { cause: Cause::Unknown, said: said.to_owned() }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let class = match self.cause {
            Cause::Unknown if !self.said.is_empty() => return f.write_str(&self.said),
            // Of a connection that failed the sentence says how.
            Cause::Refused | Cause::ConnectTimeout => Cause::Connect.name(),
            Cause::NoContactUrl => "no contact url",
            other => other.name(),
        };
        match self.said.is_empty() {
            true => f.write_str(class),
            false => write!(f, "{class}: {}", self.said),
        }
    }
}
