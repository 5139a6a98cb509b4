//! The two methods that search for a host's place: the simplex, and Levenberg and Marquardt's
//! method.

use std::convert::Infallible;

use super::host_cost::{Host, Point};
use super::levenberg_marquardt;
use super::simplex::{SimplexError, StopRule, minimise_fixed};
use super::starts::best_of;

/// The method that finds a host's place. All methods minimise the same cost from the same starts,
/// and predict equally well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Solver {
    /// Nelder and Mead's simplex: the default, and the method of Ng and Zhang.
    Simplex,
    /// Levenberg and Marquardt's method with analytic derivatives. This method is about ten times
    /// as fast as the simplex, and is used to locate many hosts at once.
    LevenbergMarquardt,
}

/// The step length of the first simplex, as a share of the embedding's scale (the median distance
/// between agents).
const STEP: f64 = 0.1;
const STOP: StopRule = StopRule { steps: 400, tolerance: 6e-4 };

impl Solver {
    /// Returns the place with the lowest cost that the method finds.
    pub(super) fn place<const N: usize>(self, host: &Host<'_, N>) -> Result<Point<N>, SimplexError> {
        let (point, _) = match self {
            Self::Simplex => by_simplex(host)?,
            Self::LevenbergMarquardt => in_bulk(host),
        };
        Ok(point)
    }
}

fn by_simplex<const N: usize>(host: &Host<'_, N>) -> Result<(Point<N>, f64), SimplexError> {
    let axes = || (0..host.anchorage.dimensions).chain([N - 1]);
    let step = STEP * host.anchorage.scale;
    best_of(host, |start| minimise_fixed(|point| host.cost(point), start, axes(), step, STOP))
}

fn in_bulk<const N: usize>(host: &Host<'_, N>) -> (Point<N>, f64) {
    let descend = |start: &Point<N>| Ok::<_, Infallible>(levenberg_marquardt::descend(host, start));
    match best_of(host, descend) {
        Ok(best) => best,
    }
}
