//! Global network positioning: hosts as points whose distance is the round trip between them.
//!
//! A few landmarks measure each other and a site; every other distance is computed (seed paper 1.1 and 2.1, after Ng and
//! Zhang, "Towards global network positioning", IMW 2001). [`fit`] places the agents, [`Embedding::locate`] places one
//! host against them, [`Embedding::predict`] is the distance. `docs/gnp.md` has the mathematics and what was measured.
//!
//! A coordinate has one component a dimension and a last one, the *height*: the delay of the host's own access, which
//! every path to it pays (Dabek et al., "Vivaldi", SIGCOMM 2004, section 5.4). The distance is
//! `|x - y| + height(x) + height(y)`. Raw `f64` milliseconds exist only in here.
//!
//! Invariants: every coordinate of an embedding has `dimensions + 1` finite components, the last not negative; every
//! result is a function of its arguments and the seed; argmin and nalgebra types never leave this module.

use std::collections::BTreeMap;

use crate::model::{AgentId, EmbeddingEpoch, Rtt};

mod elect;
mod fit;
mod locate;
mod mds;
mod mesh;
mod objective;
mod simplex;

pub use elect::{ElectError, Elected, Nominee, elect};
pub use fit::{FitError, fit};
pub use locate::LocateError;
pub use mesh::Mesh;

/// Dimensions beyond which more landmarks buy no more of them (seed paper, table 1).
const MOST_DIMENSIONS: usize = 8;
/// Of a log error, as a part of the scale.
const SOFTENING: f64 = 0.005;

/// Where a host lies in one embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The embedding it belongs to.
    pub epoch: EmbeddingEpoch,
    /// Milliseconds: one component a dimension, then the height.
    pub coordinate: Vec<f64>,
    /// Root mean square of the relative errors against what it was fitted on; 0.1 is ten per cent.
    pub fit_error: f64,
}

/// One fit of the landmarks and of every agent that could be placed by them.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    epoch: EmbeddingEpoch,
    dimensions: usize,
    landmarks: Vec<AgentId>,
    agents: BTreeMap<AgentId, Placement>,
    fit_error: f64,
    /// The median distance between its agents, milliseconds: the unit of every step and start.
    scale: f64,
}

/// Two placements, or a placement and an embedding, of different epochs: their coordinates never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a placement of embedding {found} was compared in embedding {expected}")]
pub struct EpochMismatch {
    /// The embedding that was asked.
    pub expected: EmbeddingEpoch,
    /// The placement's.
    pub found: EmbeddingEpoch,
}

/// Stored parts that are not an embedding.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PartsError {
    /// An agent's coordinate is of another length, not finite, or has a negative height.
    #[error("agent {agent} has no valid coordinate in {dimensions} dimensions")]
    Coordinate {
        /// The agent.
        agent: AgentId,
        /// The embedding's dimensions.
        dimensions: usize,
    },
    /// An agent's placement says another epoch.
    #[error("agent {agent} is not placed in this embedding")]
    Epoch {
        /// The agent.
        agent: AgentId,
        /// What is wrong with its epoch.
        #[source]
        source: EpochMismatch,
    },
    /// A landmark has no placement.
    #[error("landmark {landmark} has no placement")]
    UnplacedLandmark {
        /// The landmark.
        landmark: AgentId,
    },
    /// No dimension at all.
    #[error("an embedding needs at least one dimension")]
    NoDimension,
}

/// The dimensions used when none are asked for: `min(8, landmarks - 1)`.
pub fn default_dimensions(landmarks: usize) -> usize {
    landmarks.saturating_sub(1).min(MOST_DIMENSIONS)
}

impl Embedding {
    /// Puts stored parts together.
    ///
    /// # Errors
    /// When a coordinate is not of `dimensions + 1` finite components, a placement is of another epoch, or a landmark
    /// has none.
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
        Ok(Self { epoch, dimensions, landmarks, agents, fit_error, scale })
    }

    /// Its number.
    pub const fn epoch(&self) -> EmbeddingEpoch {
        self.epoch
    }

    /// Dimensions, the height not counted: a coordinate has one component more.
    pub const fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The landmarks it was fitted on, in order of choice.
    pub fn landmarks(&self) -> &[AgentId] {
        &self.landmarks
    }

    /// Every placed agent, landmarks among them.
    pub const fn agents(&self) -> &BTreeMap<AgentId, Placement> {
        &self.agents
    }

    /// Root mean square of the landmarks' relative errors; 0.1 is ten per cent.
    pub const fn fit_error(&self) -> f64 {
        self.fit_error
    }

    /// Where an agent lies; `None` when it could not be placed.
    pub fn placement(&self, agent: AgentId) -> Option<&Placement> {
        self.agents.get(&agent)
    }

    /// Predicts the round trip between two hosts placed in this embedding.
    ///
    /// # Errors
    /// When either was placed in another embedding.
    pub fn predict(&self, a: &Placement, b: &Placement) -> Result<Rtt, EpochMismatch> {
        for placement in [a, b] {
            if placement.epoch != self.epoch {
                return Err(EpochMismatch { expected: self.epoch, found: placement.epoch });
            }
        }
        Ok(round_trip(objective::distance(&a.coordinate, &b.coordinate)))
    }
}

/// The median distance between placed agents, milliseconds; 1 where there are no two.
fn scale(agents: &BTreeMap<AgentId, Placement>) -> f64 {
    let places: Vec<&[f64]> = agents.values().map(|placement| placement.coordinate.as_slice()).collect();
    let pairs = places.iter().enumerate().flat_map(|(i, a)| places[..i].iter().map(|b| objective::distance(a, b)));
    let mut distances: Vec<f64> = pairs.filter(|distance| *distance > 0.0).collect();
    distances.sort_by(f64::total_cmp);
    distances.get(distances.len() / 2).copied().unwrap_or(1.0)
}

/// Milliseconds added to both sides of a log error, so that a round trip near zero cannot outweigh all others: a part of
/// the scale, so that the map of a network twice as large is twice as large.
fn softening(scale: f64) -> f64 {
    SOFTENING * scale
}

/// Leaves the milliseconds of this module: held between a microsecond and [`Rtt::MAX`], whatever the coordinates say.
fn round_trip(millis: f64) -> Rtt {
    let longest = Rtt::MAX.as_secs_f64() * 1e3;
    let held = if millis.is_nan() { longest } else { millis.clamp(1e-3, longest) };
    Rtt::try_from_millis_f64(held).expect("clamped into the range of a round trip")
}

/// Enters the milliseconds of this module.
fn millis(rtt: Rtt) -> f64 {
    rtt.as_millis_f64()
}

/// Whether it has a component for each dimension and a height that is not negative.
fn is_coordinate(coordinate: &[f64], dimensions: usize) -> bool {
    coordinate.len() == dimensions + 1
        && coordinate.iter().all(|component| component.is_finite())
        && coordinate.last().is_some_and(|&height| height >= 0.0)
}
