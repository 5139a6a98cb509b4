//! Scores by the map how likely a host has several locations, by the odds of several places and by
//! short pairs of landmarks, and sets the limit above which a host is suspect.
//!
//! A *place* is a possible location of a host near some agent. The length of the place's
//! displacement from the agent is drawn log-uniformly. The place's height is the agent's height
//! times a random factor, plus a small random amount. The measurement expected from a landmark is
//! the map's distance from the place to the landmark, corrected by the map's error between the
//! agent and the landmark. The correction decays with the length of the displacement. A *mix* is
//! three to five places; each landmark measures the nearest of them.
//!
//! The log residuals of the measurements have a Student density. If the host has one place, the
//! likelihood of the measurements is the mean of this density over the drawn places; if it has
//! several, the mean over the drawn mixes. The ratio of the two likelihoods is the Bayes factor of
//! several places against one (Kass and Raftery, "Bayes factors", 1995). The logarithm of the Bayes
//! factor is the log odds if both hypotheses are equally likely beforehand.
//!
//! In a real network, one unusually short round trip from a landmark makes the sums of many of the
//! landmark's pairs too short, so most hosts have a pair whose sum is too short. To limit the
//! effect of one round trip, each landmark counts in only one pair. Pairs are matched greedily, the
//! smallest ratio of sum to distance first. The result is the sum of the absolute logarithms of
//! these ratios.

use std::collections::BTreeMap;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::gnp::{Embedding, Mesh};
use crate::model::stats::count;
use crate::model::{AgentId, Rtt};

use super::mesh_and_distance::{distance, round_trip};

/// Minimum number of measurements for a verdict based on the map, because one location often
/// explains three round trips well even if the host has several locations.
pub(super) const FEWEST_MEASURED: usize = 4;
/// Minimum number of agents for a verdict based on the map, because fewer agents do not show which
/// scores are normal.
const FEWEST_AGENTS: usize = 8;
/// Maximum absolute log odds of several locations. Greater values would depend on the tails of the
/// density that is assumed for measurement errors, not on the host.
const ODDS_HELD: f64 = 8.0;
/// The log odds added by a pair of landmarks whose round trips to the host add up to 1/e of the
/// pair's distance.
const PAIR_WEIGHT: f64 = 5.0;
/// If more landmarks than this measured a host, each pair has less weight, because more pairs
/// violate the triangle inequality by chance.
const PAIRED_LANDMARKS: f64 = 9.0;
/// The limit for the score, in standard deviations above the agents' mean score. Of hosts with one
/// location, 3 to 5 % exceed the limit. A normal distribution would give 2 %, but the upper tail of
/// the scores is longer.
const DEVIATIONS: f64 = 2.0;
/// Lower bound of the limit that is computed with [`DEVIATIONS`]. At this score, several locations
/// are as likely as one.
const LEAST_LIMIT: f64 = 0.0;
/// The log odds of several locations for a host at the limit. `AT_LIMIT` and [`PER_UNIT`] are
/// fitted to hosts whose score exceeds the limit, in measured matrices of round trips. Half of
/// these hosts are simulated anycast hosts.
const AT_LIMIT: f64 = -1.15;
/// The increase in the log odds per unit of score beyond the limit.
const PER_UNIT: f64 = 0.5;

#[derive(Debug, Clone)]
pub(super) struct MapJudge {
    mesh: Mesh,
    places: DrawnPlaces,
    /// A host whose score exceeds this limit is suspect.
    limit: f64,
}

impl MapJudge {
    /// Builds the judge of an epoch's map, with the mesh to which the map was fitted; `None` if
    /// there are too few agents.
    pub(super) fn new(embedding: &Embedding, mesh: &Mesh) -> Option<Self> {
        if embedding.agents().len() < FEWEST_AGENTS {
            return None;
        }
        let places = DrawnPlaces::new(embedding, mesh);
        let mut judge = Self { mesh: mesh.clone(), places, limit: LEAST_LIMIT };
        let scores: Vec<f64> = embedding
            .agents()
            .keys()
            .filter_map(|&agent| {
                let distance = |&landmark: &AgentId| Some((landmark, mesh.distance(agent, landmark)?));
                let measured: Vec<(AgentId, Rtt)> = embedding.landmarks().iter().filter_map(distance).collect();
                judge.score(&measured, Some(agent))
            })
            .collect();
        judge.limit = limit(&scores);
        Some(judge)
    }

    /// The confidence that a host has several locations, and a sentence about the round trips;
    /// `None` if the host's score does not exceed the limit. `name` returns an agent's name.
    pub(super) fn evidence(
        &self,
        seen: impl Iterator<Item = (AgentId, Rtt)>,
        name: impl Fn(AgentId) -> String,
    ) -> Option<(f64, String)> {
        // Only landmarks' measurements are used, as for the agents' scores from which the limit is
        // computed.
        let measured: Vec<(AgentId, Rtt)> = seen.filter(|(prober, _)| self.places.knows(*prober)).collect();
        let beyond = self.score(&measured, None)? - self.limit;
        if beyond <= 0.0 {
            return None;
        }
        let ShortPairs { far_below, shortest, .. } = short_pairs(&self.mesh, &measured);
        let mut evidence = "several places explain the round trips better than one".to_owned();
        if let Some(((a, b), sum, apart)) = shortest {
            let (a, b) = (name(a), name(b));
            evidence += &format!("; {a} and {b} measure {sum} to it in sum, but {apart} to each other");
        }
        if far_below > 1 {
            evidence += &format!(", and {far_below} separate pairs measure less than 0.8 of their distance in sum");
        }
        Some((confidence(beyond), evidence))
    }

    /// Returns the score for several locations; `None` if there are too few measurements. If
    /// `without` is an agent, the score does not use places that were drawn around it.
    fn score(&self, measured: &[(AgentId, Rtt)], without: Option<AgentId>) -> Option<f64> {
        if measured.len() < FEWEST_MEASURED {
            return None;
        }
        let rows: Vec<(AgentId, f64)> =
            measured.iter().map(|&(landmark, rtt)| (landmark, rtt.as_millis_f64())).collect();
        let odds = self.places.log_odds(&rows, without).clamp(-ODDS_HELD, ODDS_HELD);
        let size = count(measured.len());
        let share = (PAIRED_LANDMARKS / size).min(1.0);
        Some(odds + PAIR_WEIGHT * share * short_pairs(&self.mesh, measured).total)
    }
}

fn limit(scores: &[f64]) -> f64 {
    let size = count(scores.len().max(1));
    let mean = scores.iter().sum::<f64>() / size;
    let variance = scores.iter().map(|score| (score - mean).powi(2)).sum::<f64>() / size;
    (mean + DEVIATIONS * variance.sqrt()).max(LEAST_LIMIT)
}

/// The probability of several locations for a score that exceeds the limit by `beyond`, assuming
/// that half of all hosts have several locations.
fn confidence(beyond: f64) -> f64 {
    1.0 / (1.0 + (-(AT_LIMIT + PER_UNIT * beyond)).exp())
}

const PLACES: usize = 2000;
const MIXES: usize = 4000;
/// Number of places in a mix. A few landmarks can hardly distinguish more than five places from
/// five.
const PLACES_OF_MIX: std::ops::RangeInclusive<usize> = 3..=5;
/// The least and greatest displacement of a place from its agent, as shares of the map's scale (the
/// median distance).
const DISPLACEMENT: (f64, f64) = (0.025, 0.6);
/// The greatest factor by which an agent's height is multiplied for a place near the agent.
const HEIGHT_FACTOR: f64 = 1.5;
/// The mean of the exponential variable added to the height, as a share of the scale.
const HEIGHT_ADDED: f64 = 0.008;
/// A place near an agent has about the same map error as the agent. For a place without
/// displacement, this share of the map's log error between the agent and a landmark is added to the
/// expected log round trip.
const CARRIED: f64 = 0.9;
/// The displacement, as a share of the map's scale, at which the added share of the map's error has
/// fallen to 1/e of [`CARRIED`].
const WEARS_OFF: f64 = 0.5;
/// Softening of a log residual, as a share of the scale. The softening is added to the measured and
/// to the expected round trip before their logarithms are taken.
const SOFTENING: f64 = 0.008;
/// The scale of the Student density of a log residual, if the host has one place.
const SPREAD_ONE: f64 = 0.1;
/// The scale of the Student density, if the host has several places. This scale is greater than
/// [`SPREAD_ONE`], because the drawn mixes cover the possible mixes more sparsely than the drawn
/// places cover the possible places.
const SPREAD_SEVERAL: f64 = 0.15;
/// The degrees of freedom of the Student density. A small value gives the density heavy tails,
/// which are needed because a few landmarks always have an unusual path.
const FREEDOM: f64 = 3.0;

#[derive(Debug, Clone)]
struct DrawnPlaces {
    /// The index of each landmark in [`ExpectedRtts::row`].
    columns: BTreeMap<AgentId, usize>,
    one: Vec<ExpectedRtts>,
    several: Vec<ExpectedRtts>,
    /// The softening of log residuals, in milliseconds.
    softening: f64,
}

/// The round trips that the landmarks would measure to a site in one place, or in several places
/// (a mix).
#[derive(Debug, Clone)]
struct ExpectedRtts {
    /// The agents around which the places were drawn.
    around: Vec<AgentId>,
    /// The logarithm of the softened round trip in milliseconds, for each landmark.
    row: Vec<f64>,
}

impl DrawnPlaces {
    /// Draws places and mixes. The epoch is the seed, so equal maps give equal places.
    fn new(embedding: &Embedding, mesh: &Mesh) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(embedding.epoch().get().cast_unsigned());
        let agents: Vec<AgentId> = embedding.agents().keys().copied().collect();
        let softening = SOFTENING * embedding.scale();
        let one: Vec<ExpectedRtts> = (0..PLACES)
            .map(|i| {
                let agent = agents[i % agents.len()];
                ExpectedRtts { around: vec![agent], row: drawn(embedding, mesh, agent, softening, &mut rng) }
            })
            .collect();
        let several = (0..MIXES).map(|_| mixed(&one, &mut rng)).collect();
        let columns =
            embedding.landmarks().iter().copied().enumerate().map(|(column, agent)| (agent, column)).collect();
        Self { columns, one, several, softening }
    }

    /// Whether the agent is a landmark of the map. Measurements by other agents are ignored.
    fn knows(&self, agent: AgentId) -> bool {
        self.columns.contains_key(&agent)
    }

    /// The log odds of several places against one. `measured` contains each agent's round trip in
    /// milliseconds. If `without` is an agent, places that were drawn around it, and mixes with
    /// such a place, are not used.
    fn log_odds(&self, measured: &[(AgentId, f64)], without: Option<AgentId>) -> f64 {
        let seen: Vec<(usize, f64)> = measured
            .iter()
            .filter_map(|(agent, millis)| Some((*self.columns.get(agent)?, (millis + self.softening).ln())))
            .collect();
        let mean = |all: &[ExpectedRtts], spread: f64| {
            let allowed = all.iter().filter(|one| !without.is_some_and(|agent| one.around.contains(&agent)));
            log_mean(&allowed.map(|one| one.log_likelihood(&seen, spread)).collect::<Vec<f64>>())
        };
        mean(&self.several, SPREAD_SEVERAL) - mean(&self.one, SPREAD_ONE)
    }
}

impl ExpectedRtts {
    /// The log of the Student density, without the terms that are the same for one place and for
    /// several places.
    fn log_likelihood(&self, seen: &[(usize, f64)], spread: f64) -> f64 {
        // One logarithm of the product is enough, because a product of so few factors neither
        // overflows nor underflows.
        let factor = |&(column, log): &(usize, f64)| 1.0 + ((log - self.row[column]) / spread).powi(2) / FREEDOM;
        let size = count(seen.len());
        -f64::midpoint(FREEDOM, 1.0) * seen.iter().map(factor).product::<f64>().ln() - size * spread.ln()
    }
}

/// Draws a place around an agent, and returns its [`ExpectedRtts::row`].
fn drawn(embedding: &Embedding, mesh: &Mesh, agent: AgentId, softening: f64, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let (scale, dimensions) = (embedding.scale(), embedding.dimensions());
    let home = &embedding.agents()[&agent].coordinate;
    let (nearest, farthest) = DISPLACEMENT;
    let away = scale * nearest * (farthest / nearest).powf(rng.random::<f64>());
    let component = away / count(dimensions).sqrt();
    let mut place: Vec<f64> = home[..dimensions].iter().map(|at| at + component * normal(rng)).collect();
    let added = -HEIGHT_ADDED * scale * (1.0 - rng.random::<f64>()).ln();
    place.push(home[dimensions] * HEIGHT_FACTOR * rng.random::<f64>() + added);
    let carried = CARRIED * (-away / (WEARS_OFF * scale)).exp();
    let expected = |landmark: &AgentId| {
        let placed = &embedding.agents()[landmark];
        let wrong = mesh.distance(agent, *landmark).map_or(0.0, |measured| {
            let predicted = distance(home, &placed.coordinate);
            ((measured.as_millis_f64() + softening) / (predicted + softening)).ln()
        });
        (distance(&place, &placed.coordinate) + softening).ln() + carried * wrong
    };
    embedding.landmarks().iter().map(expected).collect()
}

/// Draws a mix of places.
fn mixed(places: &[ExpectedRtts], rng: &mut ChaCha8Rng) -> ExpectedRtts {
    let members: Vec<&ExpectedRtts> =
        (0..rng.random_range(PLACES_OF_MIX)).map(|_| &places[rng.random_range(0..places.len())]).collect();
    let nearest = |column: usize| members.iter().map(|place| place.row[column]).fold(f64::INFINITY, f64::min);
    ExpectedRtts {
        around: members.iter().flat_map(|place| place.around.iter().copied()).collect(),
        row: (0..places[0].row.len()).map(nearest).collect(),
    }
}

/// Draws a standard normal number (Box and Muller 1958).
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// The logarithm of the mean of `exp(log)` over all `logs`; minus infinity for an empty list.
fn log_mean(logs: &[f64]) -> f64 {
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !most.is_finite() {
        return f64::NEG_INFINITY;
    }
    let size = count(logs.len());
    most + (logs.iter().map(|log| (log - most).exp()).sum::<f64>() / size).ln()
}

/// A pair is counted in [`ShortPairs::far_below`] if the sum of its two round trips to the host is
/// below this share of the pair's distance.
const FAR_BELOW: f64 = 0.8;
/// Milliseconds added to the sum of a pair's two round trips and to the pair's distance, so that
/// errors of a millisecond are not taken as evidence if two landmarks are in one building.
const SOFTENING_MS: f64 = 2.0;

#[derive(Debug, Clone, PartialEq)]
struct ShortPairs {
    /// The total of `ln(distance / sum)` over the matched pairs of landmarks, where `sum` is the sum
    /// of the two landmarks' round trips to the site. Only pairs whose sum is below their distance
    /// are matched, so no term is negative.
    total: f64,
    far_below: usize,
    /// The pair with the smallest ratio of sum to distance: its landmarks, the sum of their round
    /// trips, and their distance.
    shortest: Option<((AgentId, AgentId), Rtt, Rtt)>,
}

/// Matches the landmarks that measured a host into pairs.
fn short_pairs(mesh: &Mesh, measured: &[(AgentId, Rtt)]) -> ShortPairs {
    let mut pairs: Vec<(f64, AgentId, AgentId, f64, Rtt)> = Vec::new();
    for (i, &(a, to_a)) in measured.iter().enumerate() {
        for &(b, to_b) in &measured[..i] {
            let Some(apart) = mesh.distance(a, b) else { continue };
            let sum = to_a.as_millis_f64() + to_b.as_millis_f64();
            let ratio = ((sum + SOFTENING_MS) / (apart.as_millis_f64() + SOFTENING_MS)).ln();
            if ratio < 0.0 {
                pairs.push((ratio, a.min(b), a.max(b), sum, apart));
            }
        }
    }
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut used: Vec<AgentId> = Vec::new();
    let mut short = ShortPairs { total: 0.0, far_below: 0, shortest: None };
    for (ratio, a, b, sum, apart) in pairs {
        if used.contains(&a) || used.contains(&b) {
            continue;
        }
        used.extend([a, b]);
        short.total -= ratio;
        short.far_below += usize::from(sum < FAR_BELOW * apart.as_millis_f64());
        short.shortest.get_or_insert(((a, b), round_trip(sum), apart));
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_goes_with_the_agents_and_never_below_even_odds() {
        assert!((limit(&[]) - LEAST_LIMIT).abs() < f64::EPSILON);
        assert!((limit(&[-5.0, -5.0, -4.0]) - LEAST_LIMIT).abs() < f64::EPSILON);
        assert!((limit(&[2.0, 4.0]) - 5.0).abs() < 1e-12);
    }
}
