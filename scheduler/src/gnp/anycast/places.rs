//! Computes from the map the odds that a host has several places instead of one.
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

use std::collections::BTreeMap;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::model::AgentId;
use crate::model::stats::count;

use crate::gnp::distance::distance;
use crate::gnp::{Embedding, Mesh};

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
pub(super) struct DrawnPlaces {
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
    pub(super) fn new(embedding: &Embedding, mesh: &Mesh) -> Self {
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
    pub(super) fn knows(&self, agent: AgentId) -> bool {
        self.columns.contains_key(&agent)
    }

    /// The log odds of several places against one. `measured` contains each agent's round trip in
    /// milliseconds. If `without` is an agent, places that were drawn around it, and mixes with
    /// such a place, are not used.
    pub(super) fn log_odds(&self, measured: &[(AgentId, f64)], without: Option<AgentId>) -> f64 {
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
