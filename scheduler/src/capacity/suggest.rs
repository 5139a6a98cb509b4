//! Where the next agents would help most: greedy facility location over places at which sites are.
//!
//! Each pick is the candidate that lowers the mean predicted round trip most, given those before it; for one agent a site greedy choice
//! comes within 1 - 1/e of the best (Nemhauser, Wolsey and Fisher, "An analysis of approximations for maximizing submodular set functions",
//! 1978). Candidates are drawn as k-means++ draws its centres (Arthur and Vassilvitskii, 2007), with the agents as the first ones: far from
//! all agents and all other candidates, but where sites are. Both are done on a sample; what a pick is worth is told of all sites.

use std::num::NonZeroUsize;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Agent, CapacityError, Change, Fleet, Sites, Split, TOP, beside, in_parts, nearest};
use crate::gnp::predicted_ms;
use crate::model::parallel::in_order;

/// Sites among which places are looked for, where there are more: a place that one site in a thousand is near has twenty in the sample.
pub const SAMPLE: usize = 20_000;
/// Places that are tried for each pick: a dozen for each of the most that are asked for. Each costs a look at the whole sample.
pub const CANDIDATES: usize = 256;

/// Where an agent would help.
#[derive(Debug, Clone, PartialEq)]
pub struct Suggestion {
    /// The site beside which it would stand, by its place in the list of sites.
    pub site: usize,
    /// By how much it lowers the mean predicted round trip over all sites, milliseconds, given the picks before.
    pub gain_ms: f64,
    /// The mean after it, milliseconds.
    pub mean_ms: f64,
    /// The part of all sites it would take, 0 to 1, given the picks before and none after.
    pub share: f64,
}

/// What is suggested, and what it rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Suggested {
    /// The picks, best first; fewer than asked for where none would help any more.
    pub picks: Vec<Suggestion>,
    /// Sites in the sample.
    pub sample: usize,
    /// Places that were tried.
    pub candidates: usize,
}

/// Distances to the nearest agents of a site, nearest first, milliseconds; infinite where there are fewer.
type Nearby = [f32; TOP];

/// Suggests where so many agents would help most, after the changes to the fleet. The same seed suggests the same.
pub fn suggest(
    sites: &Sites,
    agents: &[Agent],
    split: Split,
    count: usize,
    seed: u64,
    threads: NonZeroUsize,
) -> Result<Suggested, CapacityError> {
    let Split::Nearest(most) = split else { return Err(CapacityError::NothingToSuggest) };
    if sites.is_empty() {
        return Err(CapacityError::NoSites);
    }
    let most = most.clamp(1, TOP);
    let fleet = Fleet::of(sites, agents, Change::Leaves)?.ok_or(CapacityError::NobodyLeft(sites.epoch))?;
    let mut nearby = in_parts(sites.len(), threads, |part| {
        let near = nearest(&fleet.map, sites, &part).into_iter();
        near.map(|near| nearby(near.iter().map(|(_, millis)| millis))).collect::<Vec<_>>()
    })
    .concat();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let sample = sampled(sites.len(), &mut rng);
    let candidates = candidates(sites, &fleet, &sample, &mut rng);
    let places: Vec<Vec<f64>> = candidates.iter().map(|site| beside(sites.coordinate(*site), agents)).collect();
    let mut picks = Vec::new();
    let mut mean_ms = mean(&nearby, most);
    for _ in 0..count {
        let worth = |place: &Vec<f64>| gain(sites, &nearby, &sample, place, most);
        let Some(best) = best_of(&places, threads, worth) else { break };
        let share = takes(sites, &mut nearby, &places[best], most);
        let now_ms = mean(&nearby, most);
        picks.push(Suggestion { site: candidates[best], gain_ms: mean_ms - now_ms, mean_ms: now_ms, share });
        mean_ms = now_ms;
    }
    Ok(Suggested { picks, sample: sample.len(), candidates: candidates.len() })
}

/// One of each of as many equal stretches of the list, so that every part of it has its share.
fn sampled(count: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
    if count <= SAMPLE {
        return (0..count).collect();
    }
    let bound = |stretch: usize| stretch * count / SAMPLE;
    (0..SAMPLE).map(|stretch| rng.random_range(bound(stretch)..bound(stretch + 1))).collect()
}

/// The sites beside which agents are tried.
fn candidates(sites: &Sites, fleet: &Fleet<'_>, sample: &[usize], rng: &mut ChaCha8Rng) -> Vec<usize> {
    let nearest_agent = |site: &usize| {
        let apart = fleet.there.iter().map(|(_, agent)| square(sites.coordinate(*site), &agent.coordinate));
        apart.fold(f64::INFINITY, f64::min)
    };
    let mut apart: Vec<f64> = sample.iter().map(nearest_agent).collect();
    let mut chosen = Vec::new();
    while chosen.len() < CANDIDATES.min(sample.len()) {
        let all: f64 = apart.iter().sum();
        // Every site lies where an agent or a candidate is.
        if !(all > 0.0 && all.is_finite()) {
            break;
        }
        let mut left = rng.random_range(0.0..all);
        let drawn = apart.iter().position(|weight| {
            left -= weight;
            *weight > 0.0 && left <= 0.0
        });
        // Rounding may leave a little over.
        let Some(drawn) = drawn.or_else(|| apart.iter().rposition(|weight| *weight > 0.0)) else { break };
        let place = sites.coordinate(sample[drawn]);
        for (weight, site) in apart.iter_mut().zip(sample) {
            *weight = weight.min(square(sites.coordinate(*site), place));
        }
        chosen.push(sample[drawn]);
    }
    chosen
}

/// The square of the straight line between two positions: heights go along wherever an agent is put.
fn square(a: &[f64], b: &[f64]) -> f64 {
    let dimensions = a.len().saturating_sub(1);
    a.iter().zip(b).take(dimensions).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// The place that is worth most, where one is worth anything; of equals the first.
fn best_of(places: &[Vec<f64>], threads: NonZeroUsize, worth: impl Fn(&Vec<f64>) -> f64 + Sync) -> Option<usize> {
    let worths = in_order(places.len(), threads, |place| worth(&places[place]));
    let best = worths.iter().copied().fold(0.0, f64::max);
    (best > 0.0).then(|| worths.iter().position(|worth| *worth >= best)).flatten()
}

/// The sum over the sample of what an agent at this place would save, milliseconds.
fn gain(sites: &Sites, nearby: &[Nearby], sample: &[usize], place: &[f64], most: usize) -> f64 {
    let saved = sample.iter().map(|site| {
        let near = &nearby[*site];
        let with = joined(near, single(predicted_ms(sites.coordinate(*site), place)));
        mean_of(near, most) - mean_of(&with, most)
    });
    saved.sum()
}

/// Puts an agent at this place; the part of all sites it takes.
fn takes(sites: &Sites, nearby: &mut [Nearby], place: &[f64], most: usize) -> f64 {
    let mut taken = 0.0;
    for (index, near) in nearby.iter_mut().enumerate() {
        let millis = single(predicted_ms(sites.coordinate(index), place));
        if near[most - 1] > millis {
            *near = joined(near, millis);
            taken += 1.0 / there(near, most) as f64;
        }
    }
    taken / sites.len() as f64
}

fn nearby(millis: impl Iterator<Item = f64>) -> Nearby {
    let mut nearby = [f32::INFINITY; TOP];
    for (slot, millis) in nearby.iter_mut().zip(millis) {
        *slot = single(millis);
    }
    nearby
}

/// The nearest with one more among them.
fn joined(near: &Nearby, millis: f32) -> Nearby {
    let mut with = *near;
    if millis < with[TOP - 1] {
        with[TOP - 1] = millis;
        for place in (1..TOP).rev() {
            if with[place] < with[place - 1] {
                with.swap(place, place - 1);
            }
        }
    }
    with
}

/// How many of the nearest so many there are.
fn there(near: &Nearby, most: usize) -> usize {
    near.iter().take(most).filter(|millis| millis.is_finite()).count().max(1)
}

/// The mean over those that share a site, milliseconds; 0 where nobody does.
fn mean_of(near: &Nearby, most: usize) -> f64 {
    let sum: f64 = near.iter().take(most).filter(|millis| millis.is_finite()).copied().map(f64::from).sum();
    sum / there(near, most) as f64
}

/// The mean over all sites, milliseconds.
fn mean(nearby: &[Nearby], most: usize) -> f64 {
    nearby.iter().map(|near| mean_of(near, most)).sum::<f64>() / nearby.len().max(1) as f64
}

/// In single precision: of a million sites that is 12 MB.
#[expect(clippy::cast_possible_truncation, reason = "only digits beyond the seventh are lost")]
fn single(millis: f64) -> f32 {
    millis as f32
}
