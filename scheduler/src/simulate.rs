//! Simulation: runs the scheduler's map and strategies on a matrix of measured round trips.
//!
//! For each seed, a [`Draw`] turns some nodes of a [`Matrix`] into agents and all other nodes into
//! sites. Landmarks are elected from the agents' mesh, and only landmarks and confirmers measure
//! sites. [`run`] compares the map's predictions and the strategies' choices with the true round
//! trips. In type names, a compared strategy is called a *contender*. All results depend only on
//! the matrix and the [`Settings`].

mod choices;
mod crawls;
mod distribution;
mod draw;
mod dump;
mod file_error;
mod landmarks;
mod map;
mod matrix;
pub(crate) mod nodes;
mod page;
mod run;
mod score;
mod seed_result;
mod settings;
mod settings_error;
#[cfg(test)]
mod tests;

pub use distribution::Distributions;
pub use draw::Draw;
pub use dump::dump;
pub use file_error::FileError;
pub use matrix::Matrix;
pub use nodes::Node;
pub use page::{Page, page};
pub use run::{SimulateError, judge, play_drawing, run};
pub use score::{ContenderScore, Estimate, LeftOut, Report};
pub use seed_result::{ContenderChoice, JudgedAgent, JudgedSite, SeedResult};
pub use settings::{Election, Settings, judged};
pub use settings_error::SettingsError;
