//! Claims (round trips to sites, measured by non-landmark agents): decides which claims are used in
//! the choice of an agent.
//!
//! Landmarks are judged by all their reports (`jobs::fit::trust`). A confirmer has made few other
//! reports, and could win every site by claiming a round trip near zero. Therefore each claim is
//! checked here. A rejected claim is not used in the choice; the agent is then ranked by its
//! predicted round trip. The claim stays stored, and `jobs::fit::trust` judges the agent by it.

use std::collections::BTreeMap;

use crate::gnp::Position;
use crate::gnp::trust::{is_near_enough, leaves_light_time};
use crate::model::{AgentId, Rtt};

use crate::jobs::locate::refined::CurrentMap;
use crate::jobs::measure::fleet::FEWEST_LANDMARKS;

/// A claim is impossible if it contradicts the round trips of at least this many landmarks. A claim
/// contradicts a landmark's round trip if the sum of the two is shorter than light needs to travel
/// between agent and landmark and back. One landmark is not enough: its position may be wrong.
const FEWEST_IMPOSSIBLE: usize = 2;

/// Whether one of the measurements is a claim, that is, was not made by a landmark.
pub(in crate::jobs) fn are_among(map: &CurrentMap, measured: &[(AgentId, Rtt)]) -> bool {
    measured.iter().any(|(agent, _)| !map.embedding.landmarks().contains(agent))
}

/// The measurements of a site that has only one location, without rejected claims. A claim is
/// rejected if it is physically impossible, or much shorter than the refined map predicts from the
/// landmarks' round trips.
pub(in crate::jobs) fn believed(
    map: &CurrentMap,
    positions: &BTreeMap<AgentId, Position>,
    measured: &[(AgentId, Rtt)],
) -> Vec<(AgentId, Rtt)> {
    let (mut kept, claims): (Vec<_>, Vec<_>) =
        measured.iter().copied().partition(|(agent, _)| map.embedding.landmarks().contains(agent));
    if kept.len() < FEWEST_LANDMARKS {
        return measured.to_vec();
    }
    let landmarks = kept.clone();
    let posterior = map.refined.as_ref().and_then(|refined| refined.locate(&landmarks).ok());
    let is_believed = |&(agent, claim): &(AgentId, Rtt)| {
        let predicted = posterior.as_ref().and_then(|posterior| posterior.predict(agent));
        let near_enough = predicted.is_none_or(|predicted| is_near_enough(claim, &predicted));
        near_enough && impossible(positions, (agent, claim), &landmarks) < FEWEST_IMPOSSIBLE
    };
    let (true_claims, refused): (Vec<_>, Vec<_>) = claims.into_iter().partition(is_believed);
    for (agent, claim) in refused {
        tracing::debug!(agent.id = %agent, rtt_ms = claim.as_millis_f64(), "a claim to be near a site was rejected");
    }
    kept.extend(true_claims);
    kept
}

/// Number of landmarks whose round trip to the site, added to this claim, is shorter than light
/// needs to travel between the landmark and the agent and back.
fn impossible(
    positions: &BTreeMap<AgentId, Position>,
    (agent, claim): (AgentId, Rtt),
    landmarks: &[(AgentId, Rtt)],
) -> usize {
    let Some(&at) = positions.get(&agent) else { return 0 };
    let placed = landmarks.iter().filter_map(|(landmark, rtt)| Some((*rtt, *positions.get(landmark)?)));
    placed.filter(|(rtt, landmark_at)| !leaves_light_time(claim, at, *rtt, *landmark_at)).count()
}
