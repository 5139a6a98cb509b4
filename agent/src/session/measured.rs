//! What came of an order to measure: the report, and the beacon that the guard refused, which is warned of.

use std::collections::HashSet;

use landfall_proto::v1::MeasurementReport;

use super::wire;
use crate::guard::Refused;
use crate::probe::addresses::Visit;
use crate::probe::{ProbeError, Target};

/// What came of an order.
#[derive(Debug)]
pub(super) struct Measured {
    report: MeasurementReport,
    /// Where another agent's beacon is, if the guard refused it.
    refused_beacon: Option<Refused>,
}

impl Measured {
    pub(super) fn new(order_id: i64, target: &Target, visit: Visit) -> Self {
        let refused_beacon = match &visit.result {
            Err(ProbeError::Guard(refused)) if target.is_beacon() => Some(*refused),
            _ => None,
        };
        Self { report: wire::measured(order_id, target, visit), refused_beacon }
    }

    /// The report; of a refused beacon it is warned once for each kind of address.
    pub(super) fn report(self, warned: &mut HashSet<&'static str>) -> MeasurementReport {
        if let Some(refused) = self.refused_beacon.filter(|refused| warned.insert(refused.why)) {
            tracing::warn!("another agent's beacon is not measured: {}", refused.with_way_in());
        }
        self.report
    }
}
