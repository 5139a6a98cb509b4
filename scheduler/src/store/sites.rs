//! Sites: stores the facts about a site, its origin and its aliases, and holds tasks of sites.

pub mod addresses;
mod by_name;
pub(crate) mod geographic_positions;
mod newest_tasks;
pub(crate) mod open_circuits;
pub(crate) mod origins_and_aliases;
mod shown_measurements;
pub(crate) mod verdicts;

pub use by_name::{Site, find, find_all};
pub use newest_tasks::{Candidate, Outcome, Progress, SiteTask, tasks};
pub use shown_measurements::{SiteMeasurement, measurements, placement};
