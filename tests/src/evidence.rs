//! Reads the evidence of a run from the database and from the sites' logs, and checks it.

pub mod batch_record;
pub mod check;
pub mod figures;
pub mod measurement_accuracy;
pub mod request_limits;
pub mod table;

/// Converts a count to a float. Counts in the lab are below 2^32, so the conversion is exact.
pub fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}
