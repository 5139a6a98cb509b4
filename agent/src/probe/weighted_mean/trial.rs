//! How well estimators recover a distance that is known: the trial the weighted mean has to pass.
//!
//! Pure and seeded. One trial draws a distance of 10 to 400 ms evenly, 20 samples around it with normal jitter of 2 %,
//! and hits each sample with probability one fifth by +200 to +3,000 ms. Drawing the number of hits, too, makes the trial
//! harder than a fixed fifth: now and then half of the samples are spikes.

use std::fmt;
use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{literal, mean, median, weighted_mean};

/// Samples of one trial.
pub const SAMPLES: usize = 20;
/// An estimate is good when it is off by no more than this share of the distance.
pub const TOLERANCE: f64 = 0.02;

const JITTER: f64 = 0.02;
const HIT: f64 = 0.2;

/// The share of trials in which each estimator came within [`TOLERANCE`], 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialTable {
    /// How many trials.
    pub trials: u32,
    /// The statistical weighted mean as Landfall computes it.
    pub ours: f64,
    /// The rule as published.
    pub literal: f64,
    /// The median.
    pub median: f64,
    /// The smallest sample.
    pub minimum: f64,
    /// The arithmetic mean.
    pub mean: f64,
}

/// Runs `n` trials.
pub fn trials(seed: u64, n: u32) -> TrialTable {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut good = [0_u32; 5];
    for _ in 0..n {
        let distance = rng.random_range(0.010..0.400);
        let samples: Vec<Duration> = (0..SAMPLES).map(|_| sample(&mut rng, distance)).collect();
        let estimates = [
            weighted_mean(&samples).map(|summary| summary.rtt),
            literal(&samples),
            median(&samples),
            samples.iter().min().copied(),
            mean(&samples),
        ];
        for (good, estimate) in good.iter_mut().zip(estimates) {
            let near = |rtt: Duration| (rtt.as_secs_f64() - distance).abs() <= TOLERANCE * distance;
            *good += u32::from(estimate.is_some_and(near));
        }
    }
    let [ours, literal, median, minimum, mean] = good.map(|good| f64::from(good) / f64::from(n.max(1)));
    TrialTable { trials: n, ours, literal, median, minimum, mean }
}

/// One sample of a host `distance` seconds away.
fn sample(rng: &mut impl Rng, distance: f64) -> Duration {
    // Box and Muller; 1 - u keeps the logarithm away from zero.
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    let hit = if rng.random_bool(HIT) { rng.random_range(0.2..3.0) } else { 0.0 };
    Duration::from_secs_f64((distance * (1.0 + JITTER * normal) + hit).max(0.0))
}

impl fmt::Display for TrialTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "within {:.0} % in {} trials of {SAMPLES} samples", TOLERANCE * 100.0, self.trials)?;
        let rows = [
            ("weighted mean", self.ours),
            ("literal rule", self.literal),
            ("median", self.median),
            ("minimum", self.minimum),
            ("plain mean", self.mean),
        ];
        for (name, share) in rows {
            writeln!(f, "  {name:<14} {:>6.2} %", share * 100.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weighted_mean_is_within_two_percent_in_99_of_100_trials() {
        let table = trials(2, 10_000);
        println!("{table}");
        assert!(table.ours >= 0.99, "{table}");
        assert!(table.ours > table.literal && table.ours > table.minimum && table.ours > table.mean, "{table}");
        assert_eq!(table, trials(2, 10_000));
    }
}
