//! Suggests locations for new agents: greedy facility location over the coordinates of sites.
//!
//! Each pick is the candidate location at which a new agent would lower the mean predicted round
//! trip most, given the agents at the earlier picks. If each site gets one agent (`gnp-top1`), the
//! greedy picks together lower the mean by at least 1 - 1/e of the best possible reduction
//! (Nemhauser, Wolsey and Fisher, "An analysis of approximations for maximizing submodular set
//! functions", 1978).
//!
//! Candidate locations are drawn like the centres of k-means++ (Arthur and Vassilvitskii, 2007),
//! with the agents as the first centres, so that most candidate locations are far from the agents
//! and from each other. Drawing and picking use a sample of the sites; a pick's gain is computed
//! over all sites.

use std::num::NonZeroUsize;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::fleet_prediction::{Agent, AgentChange, Fleet, SiteSplit, TOP, beside};
use super::sites::{CapacityError, Sites, in_parts};
use crate::gnp::predicted_ms;
use crate::model::parallel::in_order;

/// Maximum number of sites in the sample. If one in a thousand sites is near a location, the sample
/// includes about twenty of these sites.
pub const SAMPLE: usize = 20_000;
/// Number of candidate locations: a dozen for each pick if the maximum number of picks (20) is
/// requested. Each candidate location costs a scan of the sample for every pick.
pub const CANDIDATES: usize = 256;

/// A suggested location for an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Suggestion {
    /// The index of the site at the location.
    pub site: usize,
    /// The reduction of the mean predicted round trip over all sites, in milliseconds, compared
    /// with the fleet that includes the earlier picks.
    pub gain_ms: f64,
    /// The mean predicted round trip after this pick, in milliseconds.
    pub mean_ms: f64,
    /// The share of all sites that an agent at this location would get after the earlier picks,
    /// 0 to 1. Later picks may lower this share.
    pub share: f64,
}

/// The suggestions, and the amount of data from which they were computed.
#[derive(Debug, Clone, PartialEq)]
pub struct Suggestions {
    /// The picks, best first; fewer than requested if no further pick helps.
    pub picks: Vec<Suggestion>,
    /// Number of sites in the sample.
    pub sample: usize,
    /// Number of candidate locations tried.
    pub candidates: usize,
}

/// A site's distances to its nearest agents, nearest first, in milliseconds. If there are fewer
/// than [`TOP`] agents, the missing distances are infinite.
type NearestDistances = [f32; TOP];

/// Suggests the best locations for `count` further agents after the planned change of the fleet.
/// Equal seeds give equal suggestions.
pub fn suggest(
    sites: &Sites,
    agents: &[Agent],
    split: SiteSplit,
    count: usize,
    seed: u64,
    threads: NonZeroUsize,
) -> Result<Suggestions, CapacityError> {
    let SiteSplit::Nearest(most) = split else { return Err(CapacityError::NothingToSuggest) };
    if sites.is_empty() {
        return Err(CapacityError::NoSites);
    }
    let most = most.clamp(1, TOP);
    let fleet = Fleet::of(sites, agents, AgentChange::Leaves)?.ok_or(CapacityError::NobodyLeft(sites.epoch()))?;
    let mut nearby = in_parts(sites.len(), threads, |part| {
        let near = fleet.nearest(sites, &part).into_iter();
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
    Ok(Suggestions { picks, sample: sample.len(), candidates: candidates.len() })
}

/// Draws one site from each of [`SAMPLE`] equal ranges of the list of `count` sites, so that every
/// range of the list is represented. If there are at most [`SAMPLE`] sites, returns all of them.
fn sampled(count: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
    if count <= SAMPLE {
        return (0..count).collect();
    }
    let bound = |stretch: usize| stretch * count / SAMPLE;
    (0..SAMPLE).map(|stretch| rng.random_range(bound(stretch)..bound(stretch + 1))).collect()
}

/// Draws the sites at which new agents are tried.
fn candidates(sites: &Sites, fleet: &Fleet<'_>, sample: &[usize], rng: &mut ChaCha8Rng) -> Vec<usize> {
    let nearest_agent = |site: &usize| {
        let apart = fleet.there.iter().map(|(_, agent)| square(sites.coordinate(*site), &agent.coordinate));
        apart.fold(f64::INFINITY, f64::min)
    };
    let mut apart: Vec<f64> = sample.iter().map(nearest_agent).collect();
    let mut chosen = Vec::new();
    while chosen.len() < CANDIDATES.min(sample.len()) {
        let all: f64 = apart.iter().sum();
        // Stop if every sampled site coincides with an agent or a candidate location.
        if !(all > 0.0 && all.is_finite()) {
            break;
        }
        let mut left = rng.random_range(0.0..all);
        let drawn = apart.iter().position(|weight| {
            left -= weight;
            *weight > 0.0 && left <= 0.0
        });
        // If rounding leaves a remainder, the last site with a positive weight is drawn.
        let Some(drawn) = drawn.or_else(|| apart.iter().rposition(|weight| *weight > 0.0)) else { break };
        let place = sites.coordinate(sample[drawn]);
        for (weight, site) in apart.iter_mut().zip(sample) {
            *weight = weight.min(square(sites.coordinate(*site), place));
        }
        chosen.push(sample[drawn]);
    }
    chosen
}

/// The squared distance between two coordinates, without their heights. Heights are left out,
/// because a new agent is assumed to have the same height at every location.
fn square(a: &[f64], b: &[f64]) -> f64 {
    let dimensions = a.len().saturating_sub(1);
    a.iter().zip(b).take(dimensions).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// The index of the place with the greatest `worth`, the first if several are equal. `None` if no
/// place has a positive worth.
fn best_of(places: &[Vec<f64>], threads: NonZeroUsize, worth: impl Fn(&Vec<f64>) -> f64 + Sync) -> Option<usize> {
    let worths = in_order(places.len(), threads, |place| worth(&places[place]));
    let best = worths.iter().copied().fold(0.0, f64::max);
    (best > 0.0).then(|| worths.iter().position(|worth| *worth >= best)).flatten()
}

/// How much an agent at this location would lower the mean round trip of each sampled site, summed
/// over the sample, in milliseconds.
fn gain(sites: &Sites, nearby: &[NearestDistances], sample: &[usize], place: &[f64], most: usize) -> f64 {
    let saved = sample.iter().map(|site| {
        let near = &nearby[*site];
        let with = joined(near, single(predicted_ms(sites.coordinate(*site), place)));
        mean_of(near, most) - mean_of(&with, most)
    });
    saved.sum()
}

/// Adds an agent at this location to the nearest distances of all sites. Returns the share of all
/// sites that the agent gets.
fn takes(sites: &Sites, nearby: &mut [NearestDistances], place: &[f64], most: usize) -> f64 {
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

fn nearby(millis: impl Iterator<Item = f64>) -> NearestDistances {
    let mut nearby = [f32::INFINITY; TOP];
    for (slot, millis) in nearby.iter_mut().zip(millis) {
        *slot = single(millis);
    }
    nearby
}

/// The nearest distances after an agent at the distance `millis` is added.
fn joined(near: &NearestDistances, millis: f32) -> NearestDistances {
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

/// The number of agents that share a site: the number of finite distances among the first `most`,
/// but at least 1.
fn there(near: &NearestDistances, most: usize) -> usize {
    near.iter().take(most).filter(|millis| millis.is_finite()).count().max(1)
}

/// The mean distance between a site and the agents that share it, in milliseconds; 0 if there are
/// no agents.
fn mean_of(near: &NearestDistances, most: usize) -> f64 {
    let sum: f64 = near.iter().take(most).filter(|millis| millis.is_finite()).copied().map(f64::from).sum();
    sum / there(near, most) as f64
}

/// The mean of [`mean_of`] over all sites, in milliseconds.
fn mean(nearby: &[NearestDistances], most: usize) -> f64 {
    nearby.iter().map(|near| mean_of(near, most)).sum::<f64>() / nearby.len().max(1) as f64
}

/// Rounds to single precision, so that the nearest distances of a million sites take 12 MB.
#[expect(clippy::cast_possible_truncation, reason = "only digits beyond the seventh are lost")]
fn single(millis: f64) -> f32 {
    millis as f32
}
