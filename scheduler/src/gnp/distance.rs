//! Computes the distance between two coordinates, and converts distances to round trips.

use crate::model::Rtt;

/// The distance between two coordinates in milliseconds: `|x - y| + height(x) + height(y)`.
/// Absolute values of the heights are used, because the simplex may make a height negative.
pub(super) fn distance(a: &[f64], b: &[f64]) -> f64 {
    let dimensions = a.len().min(b.len()).saturating_sub(1);
    let square: f64 = a.iter().zip(b).take(dimensions).map(|(p, q)| (p - q) * (p - q)).sum();
    square.sqrt() + a[dimensions].abs() + b[dimensions].abs()
}

/// Predicts the round trip between two coordinates of one embedding, in milliseconds. Both
/// coordinates must have the same number of components. Unlike
/// [`Embedding::predict`](super::Embedding::predict), this function checks nothing, because hot
/// paths call it.
pub(crate) fn predicted_ms(a: &[f64], b: &[f64]) -> f64 {
    held(distance(a, b))
}

/// Converts milliseconds to a round trip, clamped to the range from one microsecond to
/// [`Rtt::MAX`].
pub(super) fn round_trip(millis: f64) -> Rtt {
    Rtt::try_from_millis_f64(held(millis)).expect("clamped into the range of a round trip")
}

/// Clamps milliseconds to the range of a round trip.
fn held(millis: f64) -> f64 {
    let longest = Rtt::MAX.as_secs_f64() * 1e3;
    if millis.is_nan() { longest } else { millis.clamp(1e-3, longest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_adds_both_heights_to_the_straight_line() {
        assert_eq!(distance(&[0.0, 0.0, 1.0], &[3.0, 4.0, 2.0]), 8.0);
        assert_eq!(distance(&[0.0, 0.0, -1.0], &[3.0, 4.0, 2.0]), 8.0);
    }
}
