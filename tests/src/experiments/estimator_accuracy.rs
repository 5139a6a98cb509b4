//! Tests how closely several estimators recover a known distance, which is a host's round trip, and
//! how many samples early stopping saves, in simulated trials.
//!
//! The trials are pure and seeded. Each trial draws a distance, uniformly from 10 to 400 ms, and 20
//! samples around it with normal jitter of 2 %. With probability one fifth, a sample gets an
//! additional 200 to 3,000 ms. The number of these spikes is random. So the trial is harder than
//! one with a fixed number of spikes: sometimes half of the samples are spikes.

use std::time::Duration;

use landfall_agent::probe::sample_schedule::{self, is_stable};
use landfall_agent::probe::weighted_mean::{literal, mean, median, weighted_mean};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};

const SAMPLES: usize = 20;
/// Maximum error of a good estimate, as a fraction of the distance.
const TOLERANCE: f64 = 0.02;

const JITTER: f64 = 0.02;
const HIT: f64 = 0.2;

/// For each estimator, the share of trials, from 0 to 1, in which its error was within
/// [`TOLERANCE`].
#[derive(Debug, Clone, Copy, PartialEq)]
struct TrialTable {
    /// The statistical weighted mean as Landfall computes it.
    ours: f64,
    literal: f64,
    median: f64,
    minimum: f64,
    mean: f64,
}

fn trials(seed: u64, n: u32) -> TrialTable {
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
    TrialTable { ours, literal, median, minimum, mean }
}

/// How early stopping affects the number of samples and the accuracy.
#[derive(Debug, Clone, Copy, PartialEq)]
struct StoppingTrial {
    most: usize,
    /// Whether each trial stopped as soon as its samples were stable.
    early: bool,
    samples: f64,
    /// The share of trials with an error within [`TOLERANCE`], 0 to 1.
    good: f64,
    /// The share of trials with an error above [`FAR_OFF`], 0 to 1.
    far_off: f64,
}

/// An error above this fraction of the distance may lead to the choice of the wrong agent.
const FAR_OFF: f64 = 0.2;
/// The maximum numbers of samples tried with the stopping rule: 5 (too few for bins), and
/// `SAMPLES`, as in the other trials.
const MOST: [usize; 2] = [5, SAMPLES];

/// Runs `n` trials with and `n` trials without the stopping rule, for each maximum in `MOST`.
fn stopping_trials(seed: u64, n: u32) -> Vec<StoppingTrial> {
    let run = |most, early| stopping_trial(seed, n, most, early);
    MOST.into_iter().flat_map(|most| [run(most, false), run(most, true)]).collect()
}

fn stopping_trial(seed: u64, n: u32, most: usize, early: bool) -> StoppingTrial {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut taken, mut good, mut far_off) = (0_usize, 0_u32, 0_u32);
    for _ in 0..n {
        let distance = rng.random_range(0.010..0.400);
        let samples = take(&mut rng, distance, most, early);
        taken += samples.len();
        let Some(summary) = weighted_mean(&samples) else { continue };
        let error = (summary.rtt.as_secs_f64() - distance).abs() / distance;
        good += u32::from(error <= TOLERANCE);
        far_off += u32::from(error > FAR_OFF);
    }
    let share = |count: u32| f64::from(count) / f64::from(n.max(1));
    let samples = share(u32::try_from(taken).unwrap_or(u32::MAX));
    StoppingTrial { most, early, samples, good: share(good), far_off: share(far_off) }
}

/// Draws `most` samples of a host `distance` seconds away. If `early` is set, stops as soon as the
/// samples are stable.
fn take(rng: &mut impl Rng, distance: f64, most: usize, early: bool) -> Vec<Duration> {
    let mut samples = Vec::with_capacity(most);
    while samples.len() < most && !(early && is_stable(&samples, sample_schedule::FEWEST)) {
        samples.push(sample(rng, distance));
    }
    samples
}

/// Draws a sample of a host `distance` seconds away.
fn sample(rng: &mut impl Rng, distance: f64) -> Duration {
    // The Box–Muller method. 1 - u is never 0, so its logarithm is finite.
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    let hit = if rng.random_bool(HIT) { rng.random_range(0.2..3.0) } else { 0.0 };
    Duration::from_secs_f64((distance * (1.0 + JITTER * normal) + hit).max(0.0))
}

#[test]
fn the_weighted_mean_is_within_two_percent_in_99_of_100_trials() {
    let table = trials(2, 10_000);
    assert!(table.ours >= 0.99, "{table:?}");
    assert!(table.ours > table.literal && table.ours > table.minimum && table.ours > table.mean, "{table:?}");
    assert_eq!(table, trials(2, 10_000));
}

#[test]
fn stopping_early_takes_a_third_of_the_samples_and_seldom_misses_by_much() {
    let stopped = stopping_trials(2, 4_000);
    let of = |most, early| *stopped.iter().find(|line| line.most == most && line.early == early).unwrap();
    let (all, early, five) = (of(SAMPLES, false), of(SAMPLES, true), of(5, false));
    assert!(early.samples <= all.samples / 3.0, "{early:?}");
    assert!(early.good >= five.good + 0.05, "better than as many samples of everyone: {early:?}\n{five:?}");
    assert!(early.far_off <= 0.005 && five.far_off >= 0.05, "{early:?}\n{five:?}");
}
