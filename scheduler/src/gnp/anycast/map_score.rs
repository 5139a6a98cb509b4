//! Scores by the map how likely a host has several locations, and sets the limit above which a host
//! is suspect.

use crate::gnp::{Embedding, Mesh};
use crate::model::stats::count;
use crate::model::{AgentId, Rtt};

use super::evidence::AnycastEvidence;
use super::pairs;
use super::places::DrawnPlaces;

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

    /// The confidence that a host has several locations, and the evidence; `None` if the host's
    /// score does not exceed the limit.
    pub(super) fn evidence(&self, seen: impl Iterator<Item = (AgentId, Rtt)>) -> Option<(f64, AnycastEvidence)> {
        // Only landmarks' measurements are used, as for the agents' scores from which the limit is
        // computed.
        let measured: Vec<(AgentId, Rtt)> = seen.filter(|(prober, _)| self.places.knows(*prober)).collect();
        let beyond = self.score(&measured, None)? - self.limit;
        if beyond <= 0.0 {
            return None;
        }
        let pairs = pairs::short(&self.mesh, &measured);
        Some((confidence(beyond), AnycastEvidence::Map { beyond, pair: pairs.shortest, short_pairs: pairs.far_below }))
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
        Some(odds + PAIR_WEIGHT * share * pairs::short(&self.mesh, measured).total)
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
