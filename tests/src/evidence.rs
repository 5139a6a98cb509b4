//! The evidence of a run, read from the database and the sites, and compared with what must hold.

pub mod check;
pub mod figures;
pub mod machine;
pub mod pace;
pub mod truth;
pub mod witness;
