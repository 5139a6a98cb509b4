//! Reads the evidence of a run from the database and from the sites' logs, and checks it.

pub mod batch_record;
pub mod check;
pub mod figures;
