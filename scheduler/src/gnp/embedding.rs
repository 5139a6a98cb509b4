//! An embedding: the coordinates of one fit. The folder also aligns, judges and projects
//! embeddings.

pub(super) mod align;
mod coordinates;
mod dimensions;
pub mod projection;
pub(super) mod quality;
mod stored_parts;

pub use coordinates::{Embedding, EpochMismatch, Placement};
pub use dimensions::{FEWEST_LANDMARKS, default_dimensions, dimensions_of_fit};
pub use stored_parts::PartsError;
pub(crate) use stored_parts::is_coordinate;
