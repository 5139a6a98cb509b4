//! Puts a stored embedding together, and rejects it if a coordinate or another part is invalid.

use std::collections::BTreeMap;

use crate::gnp::switches::PlainSwitches;
use crate::model::{AgentId, EmbeddingEpoch};

use super::coordinates::{Embedding, EpochMismatch, Placement, scale};

/// Stored parts do not form a valid embedding.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PartsError {
    /// The agent's coordinate has the wrong length, is not finite, or has a negative height.
    #[error("agent {agent} has no valid coordinate in {dimensions} dimensions")]
    Coordinate { agent: AgentId, dimensions: usize },
    #[error("agent {agent} is not placed in this embedding")]
    Epoch {
        agent: AgentId,
        #[source]
        source: EpochMismatch,
    },
    #[error("landmark {landmark} has no placement")]
    UnplacedLandmark { landmark: AgentId },
    #[error("an embedding needs at least one dimension")]
    NoDimension,
}

impl Embedding {
    /// Builds an embedding from stored parts.
    pub fn from_parts(
        epoch: EmbeddingEpoch,
        dimensions: usize,
        landmarks: Vec<AgentId>,
        agents: BTreeMap<AgentId, Placement>,
        fit_error: f64,
    ) -> Result<Self, PartsError> {
        if dimensions == 0 {
            return Err(PartsError::NoDimension);
        }
        for (&agent, placement) in &agents {
            if placement.epoch != epoch {
                let source = EpochMismatch { expected: epoch, found: placement.epoch };
                return Err(PartsError::Epoch { agent, source });
            }
            if !is_coordinate(&placement.coordinate, dimensions) {
                return Err(PartsError::Coordinate { agent, dimensions });
            }
        }
        if let Some(&landmark) = landmarks.iter().find(|landmark| !agents.contains_key(landmark)) {
            return Err(PartsError::UnplacedLandmark { landmark });
        }
        let scale = scale(&agents);
        Ok(Self { epoch, dimensions, landmarks, agents, fit_error, scale, switches: PlainSwitches::default() })
    }
}

/// Whether the coordinate has one component per dimension and a non-negative height.
pub(crate) fn is_coordinate(coordinate: &[f64], dimensions: usize) -> bool {
    coordinate.len() == dimensions + 1
        && coordinate.iter().all(|component| component.is_finite())
        && coordinate.last().is_some_and(|&height| height >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gnp::fixture::{EPOCH, agent, fitted, hosts};

    #[test]
    fn stored_parts_are_put_together_again_and_broken_ones_refused() {
        let map = fitted(&hosts(5, 2, 3), 4, 2, 3, 1.0);
        let again = |agents: &BTreeMap<AgentId, Placement>| {
            Embedding::from_parts(EPOCH, 2, map.landmarks().to_vec(), agents.clone(), map.fit_error())
        };
        assert_eq!(again(map.agents()), Ok(map.clone()));
        for broken in [vec![1.0, 2.0], vec![1.0, f64::NAN, 0.0], vec![1.0, 2.0, -0.5]] {
            let mut agents = map.agents().clone();
            agents.get_mut(&agent(1)).unwrap().coordinate = broken;
            assert_eq!(again(&agents), Err(PartsError::Coordinate { agent: agent(1), dimensions: 2 }));
        }
        let mut agents = map.agents().clone();
        agents.remove(&agent(3));
        assert_eq!(again(&agents), Err(PartsError::UnplacedLandmark { landmark: agent(3) }));
    }
}
