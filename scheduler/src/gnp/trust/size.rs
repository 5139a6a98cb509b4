//! How far out an agent is: the bias and the spread of its log ratios, and the limits of what is believed.
//!
//! Whoever multiplies what it measures has a *bias*: its ratios lie together, away from one. Whoever reports anything,
//! or what is true of another place, has a *spread*. They are judged apart, since a bias is known to a fraction of the
//! spread: thirty odd paths tell little of a network's noise and much of whether one agent is off from all others.

use super::{Kind, Standing};
use crate::model::stats::{count, median};

/// Scales the MAD of normally distributed values to their standard deviation.
const MAD_SCALE: f64 = 1.4826;
/// The standard error of a median, in standard deviations over the root of the number of values.
const MEDIAN_ERROR: f64 = 1.2533;
/// The least standard deviation assumed among honest agents, a log ratio: a network without any noise is no reason to
/// convict for a tenth.
const LEAST_DEVIATION: f64 = 0.03;
/// Standard deviations from which on an agent is put aside for its bias: one honest agent in fifteen thousand would be, were
/// the errors normal, and the limits below ask for more than that.
const FAR_BIAS: f64 = 4.0;
/// From which on it counts towards the alarm: a third of the landmarks are never so far out by chance.
const ODD_BIAS: f64 = 3.0;
/// The same of spreads, whose tails are heavy: how noisy paths are differs among honest agents.
const FAR_SPREAD: f64 = 5.0;
const FARTHER_SPREAD: f64 = 10.0;

/// From where on an agent is doubted.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Limits {
    /// The log of a factor, and the least z.
    bias: (f64, f64),
    spread: (f64, f64),
    standing: Standing,
}

impl Kind {
    /// Its limits, the gravest first.
    const fn limits(self) -> [Limits; 3] {
        let ([bias, odd_bias], [far, near, odd]) = match self {
            // Neither has a size: they are counted.
            Self::Light | Self::Collusion => ([f64::INFINITY; 2], [f64::INFINITY; 3]),
            // What a bias of a tenth and a half more does to a map is within what twelve honest landmarks differ by.
            Self::Asymmetry => ([0.14, 0.1], [0.55, 0.5, 0.35]),
            Self::Residual => ([0.3, 0.3], [0.55, 0.5, 0.35]),
            Self::Sites => ([0.35, 0.35], [0.55, 0.5, 0.35]),
        };
        [
            Limits { bias: (bias, FAR_BIAS), spread: (far, FAR_SPREAD), standing: Standing::Quarantined },
            Limits { bias: (bias, FAR_BIAS), spread: (near, FARTHER_SPREAD), standing: Standing::Quarantined },
            Limits { bias: (odd_bias, ODD_BIAS), spread: (odd, FARTHER_SPREAD), standing: Standing::Suspect },
        ]
    }
}

/// What an agent reported, against what it should have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Size {
    /// The median log ratio: above zero it reports too much.
    pub(super) bias: f64,
    /// The median distance of the log ratios from the bias.
    pub(super) spread: f64,
    /// Two thirds of them are within this of the bias: a standard deviation, were they normal.
    deviation: f64,
    /// How many there are.
    pub(super) rows: usize,
}

impl Size {
    /// `None` when there are fewer than `fewest`.
    pub(super) fn of(ratios: &[f64], fewest: usize) -> Option<Self> {
        let rows = ratios.len();
        let bias = median(ratios.to_vec())?;
        let away = sorted(ratios.iter().map(|ratio| (ratio - bias).abs()).collect());
        // Not the scaled median distance: with half of the rows alike, as of clocks with coarse steps, that is nothing.
        let (spread, deviation) = (*away.get(rows / 2)?, *away.get(rows * 2 / 3)?);
        (rows >= fewest).then_some(Self { bias, spread, deviation, rows })
    }

    /// The same without the part of its bias that a control shows too.
    pub(super) fn beyond(self, control: &Self) -> Self {
        let shared =
            if self.bias > 0.0 { control.bias.clamp(0.0, self.bias) } else { control.bias.clamp(self.bias, 0.0) };
        Self { bias: self.bias - shared, ..self }
    }

    /// Which of several is put aside first.
    pub(super) fn far(&self) -> f64 {
        self.bias.abs() + self.spread
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Believed {
    /// Medians, and scaled MADs.
    bias: f64,
    bias_deviation: f64,
    pub(super) spread: f64,
    spread_deviation: f64,
    deviation: f64,
}

impl Believed {
    pub(super) fn of<'a>(sizes: impl Iterator<Item = &'a Size>) -> Self {
        let sizes: Vec<&Size> = sizes.collect();
        let (bias, bias_deviation) = center(&sizes.iter().map(|size| size.bias).collect::<Vec<f64>>());
        let (spread, spread_deviation) = center(&sizes.iter().map(|size| size.spread).collect::<Vec<f64>>());
        let deviation = median(sizes.iter().map(|size| size.deviation).collect()).unwrap_or(0.0);
        Self { bias, bias_deviation, spread, spread_deviation, deviation }
    }

    /// How many standard deviations its bias is off: of the believed agents' biases, and of its own error.
    fn z_of_bias(&self, size: &Size) -> f64 {
        let rows = count(size.rows.max(1));
        let error = MEDIAN_ERROR * size.deviation.max(self.deviation) / rows.sqrt();
        (size.bias - self.bias).abs() / self.bias_deviation.hypot(error).max(LEAST_DEVIATION)
    }

    fn z_of_spread(&self, size: &Size) -> f64 {
        (size.spread - self.spread) / self.spread_deviation.max(LEAST_DEVIATION)
    }

    pub(super) fn standing(&self, kind: Kind, size: &Size) -> Standing {
        let off = (size.bias - self.bias).abs();
        let reached = kind.limits().into_iter().find(|limits| {
            let (bias, spread) = (limits.bias, limits.spread);
            (off >= bias.0 && self.z_of_bias(size) >= bias.1)
                || (size.spread >= spread.0 && self.z_of_spread(size) >= spread.1)
        });
        reached.map_or(Standing::Trusted, |limits| limits.standing)
    }

    /// Whether it is the bias that is off, and not the spread.
    pub(super) fn is_biased(&self, size: &Size) -> bool {
        (size.bias - self.bias).abs() >= size.spread
    }
}

/// The median and the scaled MAD; zero of nothing.
fn center(values: &[f64]) -> (f64, f64) {
    let center = median(values.to_vec()).unwrap_or(0.0);
    let away = median(values.iter().map(|value| (value - center).abs()).collect()).unwrap_or(0.0);
    (center, MAD_SCALE * away)
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}
