//! Fits the map for a judgement, and chooses the agents whose measurements are used for it.

use std::collections::BTreeSet;

use crate::gnp::{Embedding, Mesh, default_dimensions, fit};
use crate::model::{AgentId, EmbeddingEpoch};

use super::evidence::RemainingEvidence;

/// The epoch of maps that are fitted only for a judgement.
const JUDGED: EmbeddingEpoch = EmbeddingEpoch::new(0);
/// The seed of fits for a judgement. The seed is fixed, so that equal evidence gives equal
/// judgements.
const SEED: u64 = 0;
/// Maximum number of non-landmark agents whose measurements are used to fit the map for a
/// judgement. This number is enough to place each landmark well, and small enough to judge a large
/// fleet within a second.
const MOST_JURORS: usize = 32;

/// The agents whose measurements are used to fit the map for a judgement.
fn choose(landmarks: &[AgentId], mesh: &Mesh) -> BTreeSet<AgentId> {
    let others = mesh.agents().into_iter().filter(|agent| !landmarks.contains(agent)).take(MOST_JURORS);
    landmarks.iter().copied().chain(others).collect()
}

/// Fits the map of the agents that are not set aside.
pub(super) fn map(remaining: &RemainingEvidence<'_>) -> Option<Embedding> {
    let landmarks: Vec<AgentId> =
        remaining.evidence.landmarks.iter().copied().filter(|landmark| !remaining.aside.contains(landmark)).collect();
    let mesh = remaining.evidence.mesh.without_reports_of(&remaining.aside);
    let mesh = mesh.among(&choose(&landmarks, &mesh));
    fit(JUDGED, &mesh, &landmarks, default_dimensions(landmarks.len()), SEED).ok()
}
