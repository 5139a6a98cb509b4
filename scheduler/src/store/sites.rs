//! Sites: stores the facts about a site, its origin and its aliases, and holds tasks of sites.

pub mod addresses;
mod details;
pub(crate) mod names_and_origins;
pub(crate) mod open_circuits;
pub(crate) mod positions_and_verdicts;

pub(super) use details::candidates;
pub use details::{Outcome, Progress, SiteMeasurement, SiteTask, measurements, placement, tasks};
pub use names_and_origins::{Site, find, find_all};
