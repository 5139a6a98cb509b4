//! Holds the coordinates of one fit, and predicts the round trip between two of them.

use std::collections::BTreeMap;

use crate::model::{AgentId, EmbeddingEpoch, Rtt};

use super::distance::{distance, round_trip};
use super::switches::PlainSwitches;

pub(super) mod align;
pub mod projection;
pub(super) mod quality;

/// Minimum number of landmarks in a map, and of measurements needed to locate a site. Two distances
/// are too few, because even in one dimension they do not determine both a host's point and its
/// height.
pub const FEWEST_LANDMARKS: usize = 3;
/// Upper limit of the default number of dimensions. More dimensions do not improve the map, however
/// many landmarks it has (table 1 of the paper that the README cites).
const MOST_DIMENSIONS: usize = 8;

/// A host's coordinate in one embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    pub epoch: EmbeddingEpoch,
    /// One component per dimension, then the height; all in milliseconds.
    pub coordinate: Vec<f64>,
    /// Root mean square of the relative errors on the fitted measurements; 0.1 is 10 %.
    pub fit_error: f64,
}

/// A fit of the landmarks and of all agents that could be located from them.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    epoch: EmbeddingEpoch,
    dimensions: usize,
    landmarks: Vec<AgentId>,
    agents: BTreeMap<AgentId, Placement>,
    fit_error: f64,
    /// The median distance between the located agents, in milliseconds. Constants that represent
    /// distances on the map are given as fractions of this distance.
    scale: f64,
    switches: PlainSwitches,
}

/// The error for comparing coordinates of different epochs, whose distance would be meaningless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a placement of embedding {found} was compared in embedding {expected}")]
pub struct EpochMismatch {
    /// The epoch of the embedding whose method was called.
    pub expected: EmbeddingEpoch,
    pub found: EmbeddingEpoch,
}

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

pub fn default_dimensions(landmarks: usize) -> usize {
    landmarks.saturating_sub(1).min(MOST_DIMENSIONS)
}

/// The number of dimensions of a fit. `requested` is the operator's choice; `None` means the default
/// number. A fit needs one more landmark than it has dimensions.
pub fn dimensions_of_fit(landmarks: usize, requested: Option<usize>) -> usize {
    requested.unwrap_or_else(|| default_dimensions(landmarks)).min(landmarks.saturating_sub(1))
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

    /// Sets the switches with which this embedding locates sites. [`Embedding::from_parts`] sets
    /// the defaults, because the switches used for the fit are not stored.
    #[must_use]
    pub fn with(self, switches: PlainSwitches) -> Self {
        Self { switches, ..self }
    }

    pub const fn epoch(&self) -> EmbeddingEpoch {
        self.epoch
    }

    /// Number of dimensions. A coordinate has one more component, the height.
    pub const fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The landmarks of the embedding's fit, in the order of their election.
    pub fn landmarks(&self) -> &[AgentId] {
        &self.landmarks
    }

    /// All located agents, including landmarks.
    pub const fn agents(&self) -> &BTreeMap<AgentId, Placement> {
        &self.agents
    }

    /// Root mean square of the landmarks' relative errors; 0.1 is 10 %.
    pub const fn fit_error(&self) -> f64 {
        self.fit_error
    }

    /// The median distance between the located agents, in milliseconds.
    pub(super) const fn scale(&self) -> f64 {
        self.scale
    }

    /// The switches with which this embedding locates sites.
    pub(super) const fn switches(&self) -> PlainSwitches {
        self.switches
    }

    /// Returns the agent's placement, or `None` if the agent could not be located.
    pub fn placement(&self, agent: AgentId) -> Option<&Placement> {
        self.agents.get(&agent)
    }

    pub fn predict(&self, a: &Placement, b: &Placement) -> Result<Rtt, EpochMismatch> {
        for placement in [a, b] {
            if placement.epoch != self.epoch {
                return Err(EpochMismatch { expected: self.epoch, found: placement.epoch });
            }
        }
        Ok(round_trip(distance(&a.coordinate, &b.coordinate)))
    }
}

/// The median distance between located agents, in milliseconds; 1 if fewer than two agents are
/// located.
fn scale(agents: &BTreeMap<AgentId, Placement>) -> f64 {
    let places: Vec<&[f64]> = agents.values().map(|placement| placement.coordinate.as_slice()).collect();
    let pairs = places.iter().enumerate().flat_map(|(i, a)| places[..i].iter().map(|b| distance(a, b)));
    let mut distances: Vec<f64> = pairs.filter(|distance| *distance > 0.0).collect();
    distances.sort_by(f64::total_cmp);
    distances.get(distances.len() / 2).copied().unwrap_or(1.0)
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
    fn placements_of_another_epoch_are_refused() {
        let map = fitted(&hosts(4, 2, 3), 4, 2, 3, 1.0);
        let here = map.placement(agent(1)).unwrap();
        let elsewhere = Placement { epoch: EmbeddingEpoch::new(8), ..here.clone() };
        let mismatch = EpochMismatch { expected: EPOCH, found: EmbeddingEpoch::new(8) };
        assert_eq!(map.predict(here, &elsewhere), Err(mismatch));
        assert_eq!(map.predict(&elsewhere, here), Err(mismatch));
    }

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

    #[test]
    fn dimensions_default_to_eight_or_one_below_the_landmarks() {
        assert_eq!([0, 1, 2, 5, 9, 15].map(default_dimensions), [0, 0, 1, 4, 8, 8]);
        assert_eq!([None, Some(3), Some(8)].map(|requested| dimensions_of_fit(9, requested)), [8, 3, 8]);
        assert_eq!([0, 1, 4].map(|landmarks| dimensions_of_fit(landmarks, Some(8))), [0, 0, 3]);
    }
}
