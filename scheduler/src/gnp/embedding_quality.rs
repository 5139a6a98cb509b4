//! How well an embedding explains the measurements: for each pair, for each agent, and overall.
//!
//! Errors are `|ln(predicted / measured)|`, so 0.1 is about 10 % too long or too short. Medians are
//! used instead of means, so that a few unusual pairs do not dominate.

use std::collections::BTreeMap;

use crate::model::stats::median;
use crate::model::{AgentId, Rtt};

use super::embedding::Embedding;
use super::mesh_and_distance::Mesh;

/// An agent is suspect if its median error exceeds both limits: this multiple of the median of all
/// agents' median errors, and [`STANDS_OUT_ABOVE`].
const STANDS_OUT: f64 = 3.0;
/// Minimum median error of a suspect. This minimum is necessary, because in a map that fits well,
/// three times the median of all agents' errors is still a small error.
const STANDS_OUT_ABOVE: f64 = 0.1;
/// Minimum number of distances for judging an agent. With fewer distances, the agent's median error
/// depends more on the other agents' errors than on its own.
const FEWEST_TO_JUDGE: usize = 4;
/// Maximum number of pairs listed: those that the embedding fits worst.
const WORST_PAIRS: usize = 10;

/// A measured pair and its prediction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Residual {
    /// The agent with the smaller identifier.
    pub from: AgentId,
    pub to: AgentId,
    /// The pair's distance in the mesh.
    pub measured: Rtt,
    /// The pair's distance in the embedding.
    pub predicted: Rtt,
}

impl Residual {
    /// `ln(predicted / measured)`: positive if the prediction is too long.
    pub fn log_error(&self) -> f64 {
        (self.predicted.as_millis_f64() / self.measured.as_millis_f64()).ln()
    }
}

/// The errors of one agent's pairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AgentQuality {
    pub agent: AgentId,
    /// The median error of the agent's measured pairs; 0 if there are none.
    pub median_error: f64,
    /// Number of the agent's measured pairs.
    pub distances: usize,
}

/// The errors of an embedding, compared with the distances of a mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct Quality {
    dimensions: usize,
    residuals: Vec<Residual>,
    agents: Vec<AgentQuality>,
}

impl Quality {
    /// Computes the errors of all measured pairs of placed agents.
    pub fn of(embedding: &Embedding, mesh: &Mesh) -> Self {
        Self::among(embedding, mesh, |_, _| true)
    }

    /// Computes the errors of the pairs that `counts` accepts. The first argument of `counts` is
    /// the smaller identifier.
    pub fn among(embedding: &Embedding, mesh: &Mesh, counts: impl Fn(AgentId, AgentId) -> bool) -> Self {
        let mut residuals = Vec::new();
        let mut errors: BTreeMap<AgentId, Vec<f64>> =
            embedding.agents().keys().map(|agent| (*agent, Vec::new())).collect();
        for (&to, there) in embedding.agents() {
            for (&from, here) in embedding.agents().range(..to) {
                let Some(measured) = mesh.distance(from, to).filter(|_| counts(from, to)) else { continue };
                let Ok(predicted) = embedding.predict(here, there) else { continue };
                let residual = Residual { from, to, measured, predicted };
                for agent in [from, to] {
                    errors.entry(agent).or_default().push(residual.log_error().abs());
                }
                residuals.push(residual);
            }
        }
        residuals.sort_by(|a, b| b.log_error().abs().total_cmp(&a.log_error().abs()));
        let of_one = |(agent, errors): (AgentId, Vec<f64>)| AgentQuality {
            agent,
            distances: errors.len(),
            median_error: median(errors).unwrap_or(0.0),
        };
        let agents = errors.into_iter().map(of_one).collect();
        Self { dimensions: embedding.dimensions(), residuals, agents }
    }

    /// The measured pairs, greatest error first.
    pub fn residuals(&self) -> &[Residual] {
        &self.residuals
    }

    /// The measured pairs that operators see: the few that the embedding fits worst, worst first.
    pub fn worst_pairs(&self) -> &[Residual] {
        &self.residuals[..self.residuals.len().min(WORST_PAIRS)]
    }

    /// All placed agents, in the order of identifiers.
    pub fn agents(&self) -> &[AgentQuality] {
        &self.agents
    }

    /// The median error of all pairs; `None` if no pair was measured.
    pub fn median_error(&self) -> Option<f64> {
        median(self.residuals.iter().map(|residual| residual.log_error().abs()).collect())
    }

    /// Agents with an unusually large median error, largest first.
    pub fn suspects(&self) -> Vec<AgentQuality> {
        let judged = self.agents.iter().filter(|agent| agent.distances >= FEWEST_TO_JUDGE);
        let medians: Vec<f64> = judged.clone().map(|agent| agent.median_error).collect();
        let usual = median(medians).unwrap_or(0.0);
        let bound = (STANDS_OUT * usual).max(STANDS_OUT_ABOVE);
        let mut suspects: Vec<AgentQuality> = judged.filter(|agent| agent.median_error > bound).copied().collect();
        suspects.sort_by(|a, b| b.median_error.total_cmp(&a.median_error));
        suspects
    }

    /// Agents with fewer distances than their coordinate has components, so that the distances do
    /// not determine the coordinate.
    pub fn low_confidence(&self) -> Vec<AgentQuality> {
        self.agents.iter().filter(|agent| agent.distances < self.dimensions + 1).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::gnp::fixture::{agent, rtt};
    use crate::gnp::{Placement, fit};
    use crate::model::EmbeddingEpoch;

    use super::*;

    /// Eight agents on a line, 10 ms apart, and a ninth with a measurement to only one of them.
    fn line() -> (Embedding, Mesh) {
        let epoch = EmbeddingEpoch::new(1);
        let mut mesh = Mesh::new();
        let mut placed = BTreeMap::new();
        for i in 0..9_i32 {
            let coordinate = vec![f64::from(i) * 10.0, 1.0];
            placed.insert(agent(i), Placement { epoch, coordinate, fit_error: 0.0 });
            for j in (0..9_i32).filter(|&j| j != i && (i < 8 && j < 8 || i == 8 && j == 0)) {
                let millis = f64::from((i - j).abs()) * 10.0 + 2.0;
                mesh.insert(agent(i), agent(j), rtt(millis));
            }
        }
        let landmarks = vec![agent(0), agent(1), agent(2)];
        (Embedding::from_parts(epoch, 1, landmarks, placed, 0.0).unwrap(), mesh)
    }

    #[test]
    fn a_map_that_explains_everything_has_no_suspects_but_says_who_is_barely_known() {
        let (map, mesh) = line();
        let quality = Quality::of(&map, &mesh);
        assert_eq!(quality.residuals().len(), 8 * 7 / 2 + 1);
        assert!(quality.median_error().unwrap() < 1e-3);
        assert_eq!(quality.suspects(), []);
        let unsure: Vec<AgentId> = quality.low_confidence().iter().map(|agent| agent.agent).collect();
        assert_eq!(unsure, [agent(8)]);
    }

    #[test]
    fn an_agent_whose_distances_are_all_wrong_is_the_suspect_and_its_pairs_are_the_worst() {
        let (map, mut mesh) = line();
        for other in (0..8).filter(|&other| other != 3) {
            let honest = mesh.distance(agent(3), agent(other)).unwrap().as_millis_f64();
            for (a, b) in [(3, other), (other, 3)] {
                mesh.insert(agent(a), agent(b), rtt(honest * 2.0));
            }
        }
        let quality = Quality::of(&map, &mesh);
        assert_eq!(quality.suspects().iter().map(|found| found.agent).collect::<Vec<_>>(), [agent(3)]);
        assert!(quality.residuals()[..7].iter().all(|pair| pair.from == agent(3) || pair.to == agent(3)));
        assert!((quality.residuals()[0].log_error() + 2.0_f64.ln()).abs() < 1e-3, "predicted half of the measured");
        let without = Quality::among(&map, &mesh, |a, b| a != agent(3) && b != agent(3));
        assert!(without.suspects().is_empty());
    }

    #[test]
    fn nothing_measured_is_no_error_and_no_panic() {
        let (map, mesh) = line();
        let quality = Quality::of(&map, &Mesh::new());
        assert_eq!((quality.median_error(), quality.suspects().len()), (None, 0));
        let landmarks: Vec<AgentId> = (0..4).map(agent).collect();
        let fitted = fit(EmbeddingEpoch::new(2), &mesh, &landmarks, 2, 1).unwrap();
        assert!(Quality::of(&fitted, &mesh).median_error().unwrap() < 0.1);
    }
}
