//! Fitting: computes an embedding from the mesh. The new embedding replaces the previous one in a
//! single transaction.
//!
//! A fit is made if there is a reason (see `due`). Unless an operator requested the fit, it first
//! waits, for at most `PATIENCE`, until every connected agent has tried to measure the landmarks'
//! beacons. A fit is discarded if another embedding has been stored since the fit began.

pub(super) mod due;
pub(super) mod fittable_landmarks;
mod kept_embeddings;
pub mod lost_landmarks;
mod pass;
mod refusals;
mod solve;
pub mod trust;

pub use pass::Fit;
