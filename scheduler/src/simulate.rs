//! Simulation: Landfall's own map and strategies, judged on a matrix of measured round trips.
//!
//! A [`Matrix`] is read. For each seed a [`Draw`] takes agents from it, landmarks are elected from
//! the agents' mesh alone, and every other node is a site that only the landmarks measured. [`run`]
//! judges the map's predictions and whom each strategy takes against the true round trips.
//! Everything after the reading is a function of the matrix and the [`Settings`].

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
mod plot;
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
pub use plot::{Axis, Curve, document, lines};
pub use run::{SimulateError, judge, play_drawing, run};
pub use score::{ContenderScore, Estimate, LeftOut, Report};
pub use settings::{Election, Settings, SettingsError, Tier, judged};

use std::path::{Path, PathBuf};

/// Why a file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be opened or read.
    #[error("read {}: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    /// Its content is invalid: the file, the place in it, and the problem.
    #[error("{0}")]
    Nonsense(String),
}

impl FileError {
    fn read(file: &Path) -> impl Fn(std::io::Error) -> Self {
        |source| Self::Read { file: file.to_owned(), source }
    }

    /// At a place, whose text begins with the separator from the file's name.
    fn at(file: &Path, place: &str, complaint: impl std::fmt::Display) -> Self {
        Self::Nonsense(format!("{}{place}: {complaint}", file.display()))
    }
}
