//! A measurement report is a prober's answer to a measurement order.

use std::net::IpAddr;
use std::time::Duration;

use super::measurement_result::{Measured, MeasurementResult};

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
