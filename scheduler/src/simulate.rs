//! Simulation: runs the scheduler's map and strategies on a matrix of measured round trips.
//!
//! For each seed, a [`Draw`] turns some nodes of a [`Matrix`] into agents and all other nodes into
//! sites. Landmarks are elected from the agents' mesh, and only landmarks and confirmers measure
//! sites. [`run`] compares the map's predictions and the strategies' choices with the true round
//! trips. In type names, a compared strategy is called a *contender*. All results depend only on
//! the matrix and the [`Settings`].

mod choices;
mod map_and_landmarks;
mod matrix_and_nodes;
mod page;
mod run;
mod score;
mod settings_and_draw;
#[cfg(test)]
mod tests;

pub use choices::{ContenderChoice, JudgedAgent, JudgedSite, SeedResult};
pub use matrix_and_nodes::{FileError, Matrix, Node};
pub(crate) use matrix_and_nodes::{line_of, read_nodes};
pub use page::{Page, page};
pub use run::{SimulateError, judge, play_drawing, run};
pub use score::{ContenderScore, Distributions, Estimate, LeftOut, Report, dump};
pub use settings_and_draw::{Draw, Election, Settings, SettingsError, judged};
