//! Checks claims: the round trips to sites that non-landmark agents report.
//!
//! Landmarks are judged by all their reports, but a confirmer reports little besides its claims.
//! Without a check, an agent that claims one millisecond for every site would be chosen for every
//! site. Each claim is checked against the speed of light, and against the refined map's prediction
//! from the landmarks' measurements. Only claims that are too short are rejected, because a claim
//! that is too long does not get its agent chosen.
//!
//! A rejected claim is not used in the choice: the agent is then ranked by its predicted round
//! trip. The claim stays stored, and [`super::judge`] judges the agent by it.

use std::collections::BTreeMap;

use crate::gnp::{FEWEST_LANDMARKS, Prediction, Refined};
use crate::model::geo::{Position, least_round_trip};
use crate::model::{AgentId, Rtt};

use super::bias_and_spread::ReportBias;
use super::evidence::log_ratio;
use super::reason::claims;

/// A claim is rejected if its logarithm is below the logarithm of the predicted distance by more
/// than this many standard deviations.
const FAR: f64 = 6.0;
/// A standard deviation that is combined with the spread of a prediction (root of the sum of
/// squares), because the spread is sometimes too small. On measured matrices, about one honest
/// claim in a hundred is rejected.
const LEAST_SPREAD: f64 = 0.3;
/// A non-landmark agent is quarantined if its median log ratio over sites is at most this value.
/// At this value, the median ratio of reported to expected round trips is 1/4.5. The lowest median
/// ratio of an honest agent was about a third (docs/trust.md).
const TOO_NEAR: f64 = -1.5;
/// A claim is impossible if it contradicts the round trips of at least this many landmarks. A claim
/// contradicts a landmark's round trip if the sum of the two is less than light needs to travel
/// from the agent to the landmark and back. One landmark is not enough: its position may be wrong.
const FEWEST_IMPOSSIBLE: usize = 2;

/// The measurements of a site that has only one location, without rejected claims. A claim is
/// rejected if it is physically impossible, or much shorter than the refined map predicts from the
/// landmarks' round trips.
pub fn believed(
    landmarks: &[AgentId],
    refined: Option<&Refined>,
    positions: &BTreeMap<AgentId, Position>,
    measured: &[(AgentId, Rtt)],
) -> Vec<(AgentId, Rtt)> {
    let (mut kept, claims): (Vec<_>, Vec<_>) =
        measured.iter().copied().partition(|(agent, _)| landmarks.contains(agent));
    if kept.len() < FEWEST_LANDMARKS {
        return measured.to_vec();
    }
    let landmarks = kept.clone();
    let posterior = refined.and_then(|refined| refined.locate(&landmarks).ok());
    let is_believed = |&(agent, claim): &(AgentId, Rtt)| {
        let predicted = posterior.as_ref().and_then(|posterior| posterior.predict(agent));
        let near_enough = predicted.is_none_or(|predicted| is_near_enough(claim, &predicted));
        near_enough && impossible(positions, (agent, claim), &landmarks) < FEWEST_IMPOSSIBLE
    };
    kept.extend(claims.into_iter().filter(is_believed));
    kept
}

/// Number of landmarks whose round trip to the site, added to this claim, is less than light needs
/// to travel from the agent to the landmark and back.
fn impossible(
    positions: &BTreeMap<AgentId, Position>,
    (agent, claim): (AgentId, Rtt),
    landmarks: &[(AgentId, Rtt)],
) -> usize {
    let Some(&at) = positions.get(&agent) else { return 0 };
    let placed = landmarks.iter().filter_map(|(landmark, rtt)| Some((*rtt, *positions.get(landmark)?)));
    placed.filter(|(rtt, landmark_at)| !leaves_light_time(claim, at, *rtt, *landmark_at)).count()
}

/// Whether the claim is long enough to be compatible with the prediction from other agents'
/// measurements.
fn is_near_enough(claim: Rtt, predicted: &Prediction) -> bool {
    log_ratio(predicted.median, claim) <= FAR * predicted.spread.hypot(LEAST_SPREAD)
}

/// Whether the claim plus a landmark's round trip to the site is at least as long as light in fibre
/// needs for a round trip between the two agents.
fn leaves_light_time(claim: Rtt, at: Position, landmark: Rtt, landmark_at: Position) -> bool {
    claim.as_duration() + landmark.as_duration() >= least_round_trip(at, landmark_at)
}

/// Returns a reason, as text for the operator, if an agent's claims are far too short for most of
/// the sites that it confirmed. `size` is the deviation of the claims from the round trips that the
/// landmarks' measurements predict.
pub(super) fn too_short(size: &ReportBias, landmarks: usize) -> Option<String> {
    (size.bias <= TOO_NEAR).then(|| claims(size, landmarks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gnp::fixture::rtt;

    #[test]
    fn a_claim_far_below_what_is_predicted_is_not_believed_and_one_above_always_is() {
        let predicted = |spread| Prediction { median: rtt(40.0), expected: rtt(42.0), spread };
        assert!(!is_near_enough(rtt(1.0), &predicted(0.1)));
        assert!(is_near_enough(rtt(10.0), &predicted(0.1)));
        assert!(is_near_enough(rtt(1.0), &predicted(0.6)), "the map does not know");
        assert!(is_near_enough(rtt(4000.0), &predicted(0.1)));
    }

    #[test]
    fn who_claims_to_be_next_to_a_site_that_is_next_to_a_far_landmark_beats_light() {
        let position = |latitude, longitude| Position::try_new(latitude, longitude).unwrap();
        let (beijing, frankfurt) = (position(39.9, 116.4), position(50.1, 8.7));
        assert!(!leaves_light_time(rtt(1.0), beijing, rtt(5.0), frankfurt));
        assert!(leaves_light_time(rtt(1.0), beijing, rtt(90.0), frankfurt));
        assert!(leaves_light_time(rtt(1.0), beijing, rtt(1.0), beijing));
    }
}
