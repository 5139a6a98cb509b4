//! Formats the numbers in plots and drawings.

/// Formats a number for display, without trailing zeros.
pub fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a coordinate or length in a drawing.
pub fn px(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_end_without_zeros() {
        assert_eq!((label(0.2), label(50.0), label(1.0)), ("0.2".to_owned(), "50".to_owned(), "1".to_owned()));
    }
}
