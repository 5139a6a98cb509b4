//! Simulation: runs the scheduler's map and strategies on a matrix of measured round trips.
//!
//! For each seed, a [`Draw`] makes some nodes of a [`Matrix`] agents and all others sites.
//! Landmarks are elected from the agents' mesh alone, and only the landmarks measure the sites.
//! [`run`] compares the map's predictions, and the agents that each strategy chooses, with the true
//! round trips. All results depend only on the matrix and the [`Settings`].

mod crawls;
mod distribution;
mod draw;
mod draw_context;
mod dump;
mod judged;
mod landmarks;
mod map;
mod matrix;
pub(crate) mod nodes;
mod page;
mod run;
mod score;
mod settings;
#[cfg(test)]
mod tests;

pub use distribution::Distributions;
pub use draw::Draw;
pub use dump::dump;
pub use judged::{ContenderChoice, JudgedAgent, JudgedSite, SeedResult};
pub use matrix::Matrix;
pub use nodes::Node;
pub use page::{Page, page};
pub use run::{SimulateError, judge, play_drawing, run};
pub use score::{ContenderScore, Estimate, LeftOut, Report};
pub use settings::{Election, Settings, SettingsError, judged};

use std::path::{Path, PathBuf};

/// The reason why a file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be opened or read.
    #[error("read {}: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    /// The file's content is invalid. The text names the file, the place in it, and the problem.
    #[error("{0}")]
    Nonsense(String),
}

impl FileError {
    fn read(file: &Path) -> impl Fn(std::io::Error) -> Self {
        |source| Self::Read { file: file.to_owned(), source }
    }

    /// Builds an error about a place in the file. `place` begins with the character that separates
    /// it from the file's name.
    fn at(file: &Path, place: &str, complaint: impl std::fmt::Display) -> Self {
        Self::Nonsense(format!("{}{place}: {complaint}", file.display()))
    }
}
