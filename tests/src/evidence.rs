//! Reads the evidence of a run from the database and from the sites' logs, and checks it.

pub mod check;
pub mod figures;
pub mod machine;
pub mod pace;
pub mod table;
pub mod truth;
pub mod witness;

/// Converts a count to a float. Counts in the lab are below 2^32, so the conversion is exact.
pub fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}
