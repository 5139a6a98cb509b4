//! Chooses the ticks of a chart's axis, and formats their labels.

/// About five tick values from 0 to `most`, in steps of 1, 2 or 5 times a power of ten.
pub(super) fn ticks(most: f64) -> Vec<f64> {
    let rough = (most / 5.0).max(1e-9);
    let decade = 10_f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * decade).find(|step| *step >= rough).unwrap_or(rough);
    let mut values = vec![0.0];
    while values.last().is_some_and(|last| last + step <= most * 1.001) {
        values.push(values.last().map_or(0.0, |last| last + step));
    }
    values
}

/// Formats a number: with one decimal place if it is below 10 and not whole, and otherwise with
/// none.
pub(super) fn label(value: f64) -> String {
    if value >= 10.0 || value.fract().abs() < 1e-9 { format!("{value:.0}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        assert_eq!(ticks(43.0), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(ticks(1.0).len(), 6);
        assert_eq!(ticks(0.0).len(), 1);
        assert_eq!((label(12.34), label(1.25), label(3.0)), ("12".to_owned(), "1.2".to_owned(), "3".to_owned()));
    }
}
