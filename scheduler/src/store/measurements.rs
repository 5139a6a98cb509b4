//! Measurements: each prober's newest measurement of each site and each beacon. A failure is a
//! measurement too.
//!
//! Invariant: a report is accepted only from the agent that got the measurement order, and only
//! once, because the report ends the order.

mod mesh;
pub(crate) mod orders;
pub(crate) mod quarantines_and_contradictions;
pub(crate) mod reach;
pub(crate) mod results_and_failures;
pub(crate) mod site_measurements;

pub use mesh::{MeshMeasurement, coverage, has_gap, mesh, mesh_among, mesh_of_all};
pub use results_and_failures::{Measured, MeasurementReport, ReportContent};
pub use site_measurements::{ReportTarget, observations, of_sites, record};
