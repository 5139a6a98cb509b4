//! Statistics of lists of numbers.

/// The mean; `None` for an empty list.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / count(values.len()))
}

/// Converts a count to `f64`; exact up to 2^53.
pub fn count(of: usize) -> f64 {
    of as f64
}

/// The median, or the greater of two middle values. `None` for an empty list.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// A quantile of a sorted list, interpolated linearly between neighbours. `share` is from 0 to 1.
/// `None` for an empty list.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = share * count(last);
    // The index is found by binary search, because the project's lints forbid casts from floats to
    // integers.
    let (mut low, mut high) = (0, last);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if count(middle) <= place { low = middle } else { high = middle - 1 }
    }
    let above = sorted[(low + 1).min(last)];
    Some(sorted[low] + (above - sorted[low]) * (place - count(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let sorted = [1.0, 2.0, 4.0, 8.0];
        assert_eq!(quantile(&sorted, 0.0), Some(1.0));
        assert_eq!(quantile(&sorted, 0.5), Some(3.0));
        assert_eq!(quantile(&sorted, 1.0), Some(8.0));
        assert_eq!(quantile(&[5.0], 0.9), Some(5.0));
        assert_eq!(quantile(&[], 0.9), None);
    }
}
