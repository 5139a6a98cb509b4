//! Computes how far a map's distances are off for each agent's pairs, and keeps these errors,
//! because they take long to compute.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::gnp::{Embedding, Mesh, Quality};
use crate::model::{AgentId, EmbeddingEpoch};
use crate::store::agents::AgentPlace;

/// Time for which the errors of an epoch are kept, because computing the errors of a thousand
/// agents takes half a second. Few measurements change in this time.
const FRESH: Duration = Duration::from_secs(60);
/// Number of pairs that an agent's tooltip names: those with the largest errors.
const WORST: usize = 3;

/// A pair's measured and predicted round trip.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MapResidual {
    pub(super) agent: String,
    pub(super) measured_ms: f64,
    pub(super) predicted_ms: f64,
}

pub(super) type AgentErrors = BTreeMap<AgentId, (Option<f64>, Vec<MapResidual>)>;

/// The errors of one epoch, and the time at which they were computed.
#[derive(Debug)]
pub(in crate::web) struct EpochErrors {
    epoch: EmbeddingEpoch,
    at: Instant,
    pub(super) errors: Arc<AgentErrors>,
}

impl EpochErrors {
    /// Whether these are errors of this epoch that were computed recently.
    pub(super) fn is_fresh(&self, epoch: EmbeddingEpoch) -> bool {
        self.epoch == epoch && self.at.elapsed() < FRESH
    }

    /// Computes the errors of a map for the pairs of each agent, from the present measurements. Takes
    /// long.
    pub(super) fn compute(mesh: &Mesh, embedding: &Embedding, known: &BTreeMap<AgentId, AgentPlace>) -> Self {
        let errors = Arc::new(residuals(mesh, embedding, known));
        Self { epoch: embedding.epoch(), at: Instant::now(), errors }
    }
}

fn residuals(mesh: &Mesh, embedding: &Embedding, known: &BTreeMap<AgentId, AgentPlace>) -> AgentErrors {
    let quality = Quality::of(embedding, mesh);
    let mut errors: AgentErrors = BTreeMap::new();
    for agent in quality.agents().iter().filter(|agent| agent.distances > 0) {
        errors.insert(agent.agent, (Some(agent.median_error), Vec::new()));
    }
    // The residuals are sorted, the largest errors first.
    for residual in quality.residuals() {
        for (agent, other) in [(residual.from, residual.to), (residual.to, residual.from)] {
            let Some((_, worst)) = errors.get_mut(&agent).filter(|(_, worst)| worst.len() < WORST) else { continue };
            worst.push(MapResidual {
                agent: known.get(&other).map_or_else(|| format!("agent {other}"), |agent| agent.name.clone()),
                measured_ms: residual.measured.as_millis_f64(),
                predicted_ms: residual.predicted.as_millis_f64(),
            });
        }
    }
    errors
}
