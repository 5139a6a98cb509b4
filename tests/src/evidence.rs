//! What a run shows: read from the database and the sites, and held against what must be true.

pub mod check;
pub mod figures;
pub mod machine;
pub mod pace;
pub mod truth;
pub mod witness;
