//! Simulation: Landfall's own map and strategies, judged on a matrix of measured round trips.
//!
//! A [`Matrix`] is read, a [`Draw`] takes agents and sites from it by a seed. Everything after the reading is a function
//! of the matrix and the seed.

mod draw;
mod matrix;

pub use draw::{Draw, DrawError};
pub use matrix::{Matrix, MatrixError};
