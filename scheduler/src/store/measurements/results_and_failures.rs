//! A prober's report about a measurement order, with the result: a summary of the samples, or the
//! cause of the failure and a message for the operator.

use std::net::IpAddr;
use std::time::Duration;

use crate::model::{Rtt, words};
use crate::store::types::whole;

/// A prober's answer to a measurement order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasurementReport {
    pub finding: ReportContent,
    pub origin: Option<String>,
    /// The address to which the prober connected, or to which the name resolved.
    pub address: Option<IpAddr>,
    /// Number of requests sent and connections tried.
    pub requests: u32,
}

/// What the prober did, and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportContent {
    /// The prober measured the target, or tried to and failed.
    Measured {
        result: MeasurementResult,
        /// Whether the result agrees with an earlier measurement at the same address that the
        /// prober could have reported instead; `None` if there was no such measurement.
        agreed: Option<bool>,
    },
    /// The prober recently measured another site at the same address, and reports that measurement.
    Shared {
        measured: Measured,
        /// The other site's origin.
        from: String,
        age: Duration,
    },
    /// The prober did not measure, because the name resolved to an address that the order did not
    /// lock.
    Postponed,
}

impl From<MeasurementResult> for MeasurementReport {
    fn from(result: MeasurementResult) -> Self {
        Self { finding: ReportContent::Measured { result, agreed: None }, origin: None, address: None, requests: 0 }
    }
}

/// Summary of one prober's samples of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    pub rtt: Rtt,
    pub min: Rtt,
    pub median: Rtt,
    /// The scaled median absolute deviation.
    pub spread: Duration,
    pub answered: u32,
    pub lost: u32,
}

/// A prober's measurement, or the reason why it failed.
pub type MeasurementResult = Result<Measured, Failure>;

/// A measurement's result as columns.
pub(super) struct ResultColumns {
    pub(super) rtt: Option<i64>,
    pub(super) min: Option<i64>,
    pub(super) median: Option<i64>,
    pub(super) spread: Option<i64>,
    pub(super) answered: i32,
    pub(super) lost: i32,
    pub(super) failure: Option<String>,
}

impl From<&MeasurementResult> for ResultColumns {
    fn from(result: &MeasurementResult) -> Self {
        match result {
            Ok(measured) => Self {
                rtt: Some(measured.rtt.as_micros()),
                min: Some(measured.min.as_micros()),
                median: Some(measured.median.as_micros()),
                spread: Some(whole(measured.spread.as_micros())),
                answered: whole(measured.answered),
                lost: whole(measured.lost),
                failure: None,
            },
            Err(failure) => {
                let failure = Some(failure.to_string());
                Self { rtt: None, min: None, median: None, spread: None, answered: 0, lost: 0, failure }
            }
        }
    }
}

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
