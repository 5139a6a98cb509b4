//! Why a measurement failed: a cause that programs can compare, and a message for the operator.

use crate::model::words;

/// The failure stored when a prober does not report in time.
pub(in crate::store) const NO_REPORT: &str = "no report from the prober in time";

/// Why a prober has no round trip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub cause: Cause,
    /// The prober's message; may be empty.
    pub said: String,
}

words!(
    #[derive(PartialOrd, Ord)]
    Cause {
        /// The report was invalid, or this scheduler does not know the cause.
        Unknown = "unknown",
        Dns = "dns",
        /// The system refused the connection: no process listens on the port.
        Refused = "refused",
        ConnectTimeout = "connect-timeout",
        /// The connection failed for another reason.
        Connect = "connect",
        Tls = "tls",
        /// The connection was established, but no response came in time.
        Timeout = "timeout",
        /// The response was not HTTP, or the connection broke.
        Protocol = "protocol",
        /// The prober's guard refused the address.
        Guard = "guard",
        /// The prober has no contact URL, so it sends no requests.
        NoContactUrl = "no-contact-url",
        /// The prober cannot use the metric; for example, it may not send ICMP.
        Metric = "metric",
        /// The prober did not understand the order.
        Order = "order",
        /// The prober did not report in time.
        NoReport = "no-report",
    }
);

impl Cause {
    /// A description of the cause that fits before "at 12 agents".
    pub(in crate::store) const fn happened(self) -> &'static str {
        match self {
            Self::Dns => "the name of a beacon did not resolve",
            Self::Refused => "a connection was refused",
            Self::ConnectTimeout => "a connection was not established in time",
            Self::Connect | Self::Tls => "a connection failed",
            Self::Timeout => "no answer came in time",
            Self::Protocol => "a server that is not a beacon answered",
            Self::Guard => "the guard refused an address",
            Self::NoContactUrl => "no contact URL was known",
            Self::NoReport => "no report came in time",
            Self::Unknown | Self::Metric | Self::Order => "a beacon could not be measured",
        }
    }
}

impl From<&str> for Failure {
    /// Builds a failure of unknown cause with this message.
    fn from(said: &str) -> Self {
        Self { cause: Cause::Unknown, said: said.to_owned() }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let class = match self.cause {
            Cause::Unknown if !self.said.is_empty() => return f.write_str(&self.said),
            // Refused connections and connection timeouts are shown as the same word, because the
            // message contains the exact cause.
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
