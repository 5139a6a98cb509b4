//! Measurements: each prober's newest measurement of each site and each beacon. A failure is a
//! measurement too.
//!
//! Invariant: a report is accepted only from the agent that got the measurement order, and only
//! once, because the report ends the order.

mod accepted_reports;
pub(crate) mod contradictions;
pub(crate) mod failures;
mod measurement_report;
pub(crate) mod measurement_result;
mod mesh;
pub(crate) mod mesh_orders;
mod of_sites;
pub(crate) mod orders;
pub(crate) mod quarantines;
pub(crate) mod reach;
pub(crate) mod resolved_addresses;
pub(crate) mod sharing;
pub(crate) mod site_orders;

pub use accepted_reports::{ReportTarget, record};
pub use measurement_report::{MeasurementReport, ReportContent};
pub use measurement_result::Measured;
pub use mesh::{MeshMeasurement, coverage, mesh, mesh_among, mesh_gaps, mesh_of_all};
pub use of_sites::{observations, of_sites};
