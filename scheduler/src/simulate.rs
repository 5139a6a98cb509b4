//! Simulation: Landfall's own map and strategies, judged on a matrix of measured round trips.
//!
//! A [`Matrix`] is read. For each seed a [`Draw`] takes agents from it, landmarks are elected from the agents' mesh alone,
//! and every other node is a site that only the landmarks measured. [`run`] judges the map's predictions and whom each
//! strategy takes against the true round trips. Everything after the reading is a function of the matrix and the
//! [`Settings`].

mod crawls;
mod distribution;
mod draw;
mod dump;
mod judged;
mod landmarks;
mod map;
mod matrix;
pub mod nodes;
mod page;
mod plot;
mod run;
mod score;
mod settings;
#[cfg(test)]
mod tests;

pub use distribution::Distributions;
pub use draw::{Draw, DrawError};
pub use dump::dump;
pub use judged::{Judged, JudgedAgent, JudgedSite, Taken, play_drawing};
pub use matrix::{Matrix, MatrixError};
pub use nodes::{Node, NodesError};
pub use page::{Page, page};
pub use run::{SimulateError, judge, run};
pub use score::{Estimate, LeftOut, Report, Standing};
pub use settings::{Election, Settings, SettingsError, Tier, UnknownName, ingredient, judged};
