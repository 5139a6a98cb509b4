//! Fits an embedding: places the landmarks first, then all agents, using the whole mesh.

mod error;
mod former_places;
pub(super) mod mds;
mod measured;
mod phases;
pub(super) mod rejection;
mod shortest_chains;
mod starts;
mod sweeps;

pub use error::FitError;
pub(super) use error::check;
pub(super) use measured::Measured;
pub use phases::{fit, fit_with};
