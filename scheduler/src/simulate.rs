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
pub use matrix::Matrix;
pub use nodes::Node;
pub use page::{Page, page};
pub use run::{SimulateError, judge, play_drawing, run};
pub use score::{ContenderScore, Estimate, LeftOut, Report};
pub use seed_result::{ContenderChoice, JudgedAgent, JudgedSite, SeedResult};
pub use settings::{Election, Settings, judged};
pub use settings_error::SettingsError;

use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("read {}: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    /// The content of the file is invalid.
    #[error("{0}")]
    Nonsense(String),
}

impl FileError {
    fn read(file: &Path) -> impl Fn(std::io::Error) -> Self {
        |source| Self::Read { file: file.to_owned(), source }
    }

    /// `place` is a text that follows the file's name directly, such as ", line 3".
    fn at(file: &Path, place: &str, complaint: impl std::fmt::Display) -> Self {
        Self::Nonsense(format!("{}{place}: {complaint}", file.display()))
    }
}
