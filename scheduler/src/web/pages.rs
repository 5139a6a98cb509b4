//! The pages of the dashboard. Each page is drawn from the answers of the operators' services.

mod agent;
mod batches;
pub(super) mod buttons;
mod draw;
mod fleet;
pub(super) mod map;
mod overview;
mod site;
pub(super) mod trends;

pub(super) use draw::{page, show};
