//! Determines how many landmarks and dimensions a map has.

/// Minimum number of landmarks in a map, and of measurements needed to locate a site. Two distances
/// are too few, because even in one dimension they do not determine both a host's point and its
/// height.
pub const FEWEST_LANDMARKS: usize = 3;
/// Upper limit of the default number of dimensions. More dimensions do not improve the map, however
/// many landmarks it has (table 1 of the paper that the README cites).
const MOST_DIMENSIONS: usize = 8;

pub fn default_dimensions(landmarks: usize) -> usize {
    landmarks.saturating_sub(1).min(MOST_DIMENSIONS)
}

/// The number of dimensions of a fit. `requested` is the operator's choice; `None` means the
/// default number. A fit needs one more landmark than it has dimensions.
pub fn dimensions_of_fit(landmarks: usize, requested: Option<usize>) -> usize {
    requested.unwrap_or_else(|| default_dimensions(landmarks)).min(landmarks.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_default_to_eight_or_one_below_the_landmarks() {
        assert_eq!([0, 1, 2, 5, 9, 15].map(default_dimensions), [0, 0, 1, 4, 8, 8]);
        assert_eq!([None, Some(3), Some(8)].map(|requested| dimensions_of_fit(9, requested)), [8, 3, 8]);
        assert_eq!([0, 1, 4].map(|landmarks| dimensions_of_fit(landmarks, Some(8))), [0, 0, 3]);
    }
}
