//! Chooses the agents whose measurements are used to fit the map for a judgement.

use std::collections::BTreeSet;

use crate::gnp::Mesh;
use crate::model::AgentId;

/// Maximum number of non-landmark agents whose measurements are used to fit the map for a
/// judgement. This number is enough to place each landmark well, and small enough to judge a large
/// fleet within a second.
const MOST_JURORS: usize = 32;

/// The agents whose measurements are used to fit the map for a judgement.
pub(super) fn choose(landmarks: &[AgentId], mesh: &Mesh) -> BTreeSet<AgentId> {
    let others = mesh.agents().into_iter().filter(|agent| !landmarks.contains(agent)).take(MOST_JURORS);
    landmarks.iter().copied().chain(others).collect()
}
