//! Holds the coordinates of one fit, and predicts the round trip between two of them.

use std::collections::BTreeMap;

use crate::gnp::distance::{distance, round_trip};
use crate::gnp::switches::PlainSwitches;
use crate::model::{AgentId, EmbeddingEpoch, Rtt};

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
    pub(super) epoch: EmbeddingEpoch,
    pub(super) dimensions: usize,
    pub(super) landmarks: Vec<AgentId>,
    pub(super) agents: BTreeMap<AgentId, Placement>,
    pub(super) fit_error: f64,
    /// The median distance between the located agents, in milliseconds. Constants that represent
    /// distances on the map are given as fractions of this distance.
    pub(super) scale: f64,
    pub(super) switches: PlainSwitches,
}

/// The error for comparing coordinates of different epochs, whose distance would be meaningless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a placement of embedding {found} was compared in embedding {expected}")]
pub struct EpochMismatch {
    /// The epoch of the embedding whose method was called.
    pub expected: EmbeddingEpoch,
    pub found: EmbeddingEpoch,
}

impl Embedding {
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
    pub(in crate::gnp) const fn scale(&self) -> f64 {
        self.scale
    }

    /// The switches with which this embedding locates sites.
    pub(in crate::gnp) const fn switches(&self) -> PlainSwitches {
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
pub(super) fn scale(agents: &BTreeMap<AgentId, Placement>) -> f64 {
    let places: Vec<&[f64]> = agents.values().map(|placement| placement.coordinate.as_slice()).collect();
    let pairs = places.iter().enumerate().flat_map(|(i, a)| places[..i].iter().map(|b| distance(a, b)));
    let mut distances: Vec<f64> = pairs.filter(|distance| *distance > 0.0).collect();
    distances.sort_by(f64::total_cmp);
    distances.get(distances.len() / 2).copied().unwrap_or(1.0)
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
}
