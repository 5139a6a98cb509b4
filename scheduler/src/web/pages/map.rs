//! The page of the map: the embedding in a plane, or the known positions on the globe.

mod data;
pub(in crate::web) mod distance_errors;
mod drawing;

pub(in crate::web) use data::read;
pub(super) use drawing::page;
