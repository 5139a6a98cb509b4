//! How far out an agent is: the size of its log ratios, and the limits of what is believed.

use super::{Kind, Standing};

/// Scales the MAD of normally distributed values to their standard deviation.
const MAD_SCALE: f64 = 1.4826;
/// The least standard deviation assumed among the sizes of honest agents, a log ratio: a network without any noise
/// is no reason to convict for a tenth.
const LEAST_DEVIATION: f64 = 0.03;

/// From which size and which robust z (distance from the fleet's median in scaled MADs) on an agent is doubted. The
/// nearer to honest it looks, the farther out of the fleet it must be.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Limit {
    /// The log of a factor, and the z.
    size: f64,
    z: f64,
    standing: Standing,
}

impl Kind {
    /// Its limits, the gravest first.
    const fn limits(self) -> [Limit; 3] {
        let [far, near, odd] = match self {
            // Light has no size: it is counted.
            Self::Light => [f64::INFINITY; 3],
            Self::Asymmetry => [0.35, 0.2, 0.15],
            Self::Residual => [0.45, 0.3, 0.22],
            Self::Sites => [0.45, 0.35, 0.26],
        };
        [
            Limit { size: far, z: 5.0, standing: Standing::Quarantined },
            Limit { size: near, z: 10.0, standing: Standing::Quarantined },
            Limit { size: odd, z: 8.0, standing: Standing::Suspect },
        ]
    }
}

/// How far out what an agent reported is: the median size of its log ratios.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Size {
    /// The median of the absolute log ratios.
    pub(super) size: f64,
    /// The median log ratio, with its sign: above zero it reports too much.
    pub(super) bias: f64,
    /// How many there are.
    pub(super) rows: usize,
}

impl Size {
    /// `None` when there are fewer than `fewest`.
    pub(super) fn of(ratios: Vec<f64>, fewest: usize) -> Option<Self> {
        let rows = ratios.len();
        let size = median(ratios.iter().map(|ratio| ratio.abs()).collect())?;
        (rows >= fewest).then_some(Self { size, bias: median(ratios)?, rows })
    }
}

/// The sizes of those who are believed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Believed {
    pub(super) median: f64,
    /// Scaled MAD, at least [`LEAST_DEVIATION`].
    deviation: f64,
}

impl Believed {
    pub(super) fn of<'a>(sizes: impl Iterator<Item = &'a Size>) -> Self {
        let sizes: Vec<f64> = sizes.map(|size| size.size).collect();
        let center = median(sizes.clone()).unwrap_or(0.0);
        let away = median(sizes.iter().map(|size| (size - center).abs()).collect()).unwrap_or(0.0);
        Self { median: center, deviation: (MAD_SCALE * away).max(LEAST_DEVIATION) }
    }

    fn z(&self, size: &Size) -> f64 {
        (size.size - self.median) / self.deviation
    }

    pub(super) fn standing(&self, kind: Kind, size: &Size) -> Standing {
        let z = self.z(size);
        let reached = kind.limits().into_iter().find(|limit| size.size >= limit.size && z >= limit.z);
        reached.map_or(Standing::Trusted, |limit| limit.standing)
    }
}

/// The upper median; `None` of nothing.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
