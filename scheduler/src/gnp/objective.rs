//! The error functions that fitting and locating minimise.
//!
//! Costs are finite for all inputs, because the simplex panics if its first step meets a NaN, and
//! reports a later NaN as an error.

use super::mesh_and_distance::distance;

/// The cost that replaces a cost that is not finite; larger than any real cost.
pub(super) const WORST: f64 = 1e30;

/// The limit of Huber's loss: a log error of 0.1, or about 10 %. A larger log error counts
/// linearly, so that one unusual pair cannot distort the map (Huber, "Robust estimation of a
/// location parameter", 1964).
pub(super) const HUBER: f64 = 0.1;
/// The softening of log errors ([`softening`]), as a share of the map's scale (the median distance
/// between agents).
const SOFTENING: f64 = 0.005;

/// The relative error of GNP: `(g - d) / d` for a measured distance `d` and a computed distance
/// `g`. The square of the relative error is Ng and Zhang's normalised error.
pub(super) fn relative_error(computed: f64, measured: f64) -> f64 {
    (computed - measured) / measured.max(f64::MIN_POSITIVE)
}

/// The log error `ln((g + s) / (d + s))` for a computed distance `g`, a measured distance `d` and
/// the softening `s`.
pub(super) fn log_error(computed: f64, measured: f64, softening: f64) -> f64 {
    ((computed + softening) / (measured + softening)).ln()
}

/// Returns the softening of log errors: the milliseconds added to both the computed and the
/// measured distance before their logarithms are compared. Without the softening, a round trip near
/// zero could outweigh all others. The softening is proportional to the map's scale, so that it has
/// the same effect in networks with long distances and in networks with short ones.
pub(super) fn softening(scale: f64) -> f64 {
    SOFTENING * scale
}

pub(super) fn huber(error: f64) -> f64 {
    huber_within(error, HUBER)
}

/// Huber's loss: quadratic up to `limit`, linear beyond.
pub(super) fn huber_within(error: f64, limit: f64) -> f64 {
    let size = error.abs();
    if size <= limit { size * size } else { limit * (2.0 * size - limit) }
}

/// A host with a known coordinate, and its measured distance to the host being located.
#[derive(Debug, Clone, Copy)]
pub(super) struct Anchor<'a> {
    pub(super) coordinate: &'a [f64],
    /// The measured distance in milliseconds.
    pub(super) measured: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Loss {
    /// Whether log errors are minimised. If false, relative errors are minimised.
    pub(super) log: bool,
    /// Whether Huber's loss of the errors is summed. If false, the squares of the errors are
    /// summed.
    pub(super) robust: bool,
}

impl Loss {
    /// The loss that Ng and Zhang's method minimises.
    pub(super) const RELATIVE: Self = Self { log: false, robust: false };

    /// The loss of one host, summed over its anchors.
    pub(super) fn of(self, host: &[f64], anchors: &[Anchor<'_>], softening: f64) -> f64 {
        let loss = |anchor: &Anchor<'_>| {
            let computed = distance(host, anchor.coordinate);
            let error = match self.log {
                true => log_error(computed, anchor.measured, softening),
                false => relative_error(computed, anchor.measured),
            };
            if self.robust { huber(error) } else { error * error }
        };
        finite(anchors.iter().map(loss).sum())
    }
}

/// Root mean square of a host's relative errors.
pub(super) fn rms_relative_error(host: &[f64], anchors: &[Anchor<'_>]) -> f64 {
    let squares = anchors.iter().map(|a| relative_error(distance(host, a.coordinate), a.measured).powi(2));
    root_mean(squares)
}

/// The root of the mean of `squares`; 0 if there are none.
pub(super) fn root_mean(squares: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = squares.fold((0.0, 0.0), |(count, sum), square| (count + 1.0, sum + square));
    if count > 0.0 { (sum / count).sqrt() } else { 0.0 }
}

/// The cost, or [`WORST`] if it is not finite.
pub(super) fn finite(cost: f64) -> f64 {
    if cost.is_finite() { cost.min(WORST) } else { WORST }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_finite_whatever_the_numbers() {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308, 0.0] {
            for measured in [odd, 0.0, 1.0] {
                let anchor = Anchor { coordinate: &[1.0, 0.0], measured };
                for loss in [Loss::RELATIVE, Loss { log: true, robust: true }] {
                    assert!(loss.of(&[odd, odd], &[anchor], 0.1).is_finite(), "{odd} {measured}");
                }
            }
        }
    }

    #[test]
    fn huber_is_continuous_where_it_turns_linear() {
        assert!((huber(HUBER) - huber(HUBER + 1e-12)).abs() < 1e-9);
        assert!(huber(1.0) < 1.0);
    }
}
