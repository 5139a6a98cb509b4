//! Chooses the range and the ticks of an axis, and places values on it.

use crate::model::stats::count;

pub struct Axis {
    /// The quantity, with its unit.
    pub(super) label: String,
    /// The least and the greatest value on the axis.
    range: (f64, f64),
    pub(super) ticks: Vec<f64>,
    /// Whether the scale is logarithmic.
    ratios: bool,
}

impl Axis {
    /// An axis from 0 to `most`, which is rounded up to a round value.
    pub fn linear(label: impl Into<String>, most: f64) -> Self {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        let rough = most / 5.0;
        let decade = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade);
        let step = steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(rough);
        let count = (most / step - 1e-9).ceil().max(1.0);
        let ticks =
            (0..=20).map(|tick| f64::from(tick) * step).take_while(|tick| *tick <= step * (count + 0.5)).collect();
        Self { label: label.into(), range: (0.0, step * count), ticks, ratios: false }
    }

    /// An axis with whole numbers from 1 to `most`.
    pub(crate) fn counted(label: impl Into<String>, most: usize) -> Self {
        let step = most.div_ceil(20).max(1);
        let ticks = (1..=most).step_by(step).map(count).collect();
        Self { label: label.into(), range: (1.0, count(most.max(2))), ticks, ratios: false }
    }

    /// A logarithmic axis that contains `least` and `most`.
    pub(crate) fn ratios(label: impl Into<String>, least: f64, most: f64) -> Self {
        let least = if least.is_finite() && least > 0.0 { least } else { 1.0 };
        let most = if most.is_finite() && most > least { most } else { least * 10.0 };
        let decades = (-6..=7).map(|decade| 10_f64.powi(decade));
        let all: Vec<f64> = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|factor| factor * decade)).collect();
        let from = all.iter().copied().rfind(|tick| *tick <= least).unwrap_or(least);
        let to = all.iter().copied().find(|tick| *tick >= most).unwrap_or(most);
        let ticks = all.into_iter().filter(|tick| (from..=to).contains(tick)).collect();
        Self { label: label.into(), range: (from, to), ticks, ratios: true }
    }

    /// The position of a value on the axis, from 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        let (from, to) = self.range;
        let place = match self.ratios {
            true => (value.max(f64::MIN_POSITIVE) / from).ln() / (to / from).ln(),
            false => (value - from) / (to - from),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_round_and_hold_what_they_show() {
        let linear = Axis::linear("ms", 43.0);
        assert_eq!((linear.range, linear.ticks.len()), ((0.0, 50.0), 6));
        assert_eq!(Axis::linear("", 100.0).range, (0.0, 100.0));
        assert_eq!((Axis::linear("", 0.0).range, Axis::linear("", f64::NAN).range), ((0.0, 1.0), (0.0, 1.0)));
        let ratios = Axis::ratios("ms", 3.0, 320.0);
        assert_eq!(
            (ratios.range, ratios.ticks.as_slice()),
            ((2.0, 500.0), &[2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0][..])
        );
        assert!((ratios.place(1000.0_f64.sqrt()) - 0.5).abs() < 1e-9);
        for odd in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert!((0.0..=1.0).contains(&ratios.place(odd)) && (0.0..=1.0).contains(&linear.place(odd)));
            assert!(Axis::ratios("", odd, odd).ticks.len() > 1);
        }
        assert_eq!(Axis::counted("crawl", 5).ticks, [1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}
