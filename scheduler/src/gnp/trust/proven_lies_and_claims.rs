//! Finds agents that report round trips shorter than light allows, finds collusion, and checks
//! claims: the round trips to sites that non-landmark agents report.
//!
//! If two agents are `d` milliseconds apart, a third agent's round trips to them differ by at most
//! `d`, except on unusual paths. One contradicted pair may be due to an unusual path. But an agent
//! in several contradicted pairs lies, because an honest partner would not report the same short
//! distance.
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

use crate::gnp::{FEWEST_LANDMARKS, Mesh, Prediction, Refined};
use crate::model::geo::{Position, least_round_trip};
use crate::model::stats::{count, median};
use crate::model::{AgentId, Rtt};

use super::evidence_and_findings::{ReportBias, SOFTENING, TrustEvidence, claims, log_ratio};

/// Returns a reason, as text for the operator, if several round trips that the agent reports are
/// shorter than light in fibre allows. If both agents of a pair report round trips to each other
/// that are too short, the pair does not count, because then probably a position is wrong, not a
/// measurement.
pub(super) fn faster_than_light(evidence: &TrustEvidence<'_>, agent: AgentId) -> Option<String> {
    let mut rows = 0_usize;
    let mut broken: Vec<(f64, f64)> = Vec::new();
    for (&(a, b), &least) in evidence.least {
        let other = if a == agent {
            b
        } else if b == agent {
            a
        } else {
            continue;
        };
        let Some(reported) = evidence.mesh.measured(agent, other) else { continue };
        rows += 1;
        let denied = evidence.mesh.measured(other, agent).is_none_or(|back| back >= least);
        if reported < least && denied {
            broken.push((reported.as_millis_f64(), least.as_millis_f64()));
        }
    }
    let share = count(broken.len()) / count(rows.max(1));
    let &(reported, least) = broken.iter().max_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)))?;
    (broken.len() >= FEWEST_TOO_FAST && share >= TOO_FAST_SHARE).then(|| {
        format!(
            "{} of its {rows} round trips are shorter than light in fibre needs: one is {reported:.1} ms where light \
             needs {least:.1} ms",
            broken.len()
        )
    })
}

/// Minimum number of impossible round trips (shorter than light allows) for a quarantine by light.
/// A single one may be due to another agent's wrong position.
const FEWEST_TOO_FAST: usize = 2;
/// Minimum share of impossible round trips among an agent's reports for a quarantine by light.
const TOO_FAST_SHARE: f64 = 0.2;

/// Minimum number of an agent's contradicted pairs for a quarantine.
const FEWEST_PARTNERS: usize = 2;
/// Minimum number of witnesses: agents that measured both agents of a pair.
const FEWEST_WITNESSES: usize = 4;
/// Maximum number of witnesses per pair, because a large fleet has a million pairs. The median over
/// this many witnesses is precise enough.
const MOST_WITNESSES: usize = 32;
/// Witnesses contradict a pair if the median difference of their round trips to the two agents is
/// at least this many times the distance that the two agents report.
const DENIED_BY: f64 = 4.0;
/// Two agents' measurements of each other agree if their absolute log ratio is at most this.
const AGREED: f64 = 0.35;

/// The distance that the two agents of a pair report, and the median difference of the witnesses'
/// round trips to the two agents; in milliseconds.
type DisputedPair = (f64, f64);

/// Returns the agents in several contradicted pairs, each with the reason as text for the operator.
pub(super) fn colluders(mesh: &Mesh, agents: &[AgentId]) -> BTreeMap<AgentId, String> {
    let mut partners: BTreeMap<AgentId, Vec<DisputedPair>> = BTreeMap::new();
    let of_it: Vec<BTreeMap<AgentId, f64>> = agents.iter().map(|&agent| witnesses(mesh, agents, agent)).collect();
    for (i, &a) in agents.iter().enumerate() {
        for (j, &b) in agents[..i].iter().enumerate() {
            let Some(denied) = claimed(mesh, a, b).and_then(|claimed| denied(claimed, &of_it[i], &of_it[j])) else {
                continue;
            };
            partners.entry(a).or_default().push(denied);
            partners.entry(b).or_default().push(denied);
        }
    }
    partners.retain(|_, partners| partners.len() >= FEWEST_PARTNERS);
    partners.into_iter().map(|(agent, partners)| (agent, reason(&partners))).collect()
}

/// Other agents' measurements of a target, in milliseconds.
fn witnesses(mesh: &Mesh, agents: &[AgentId], target: AgentId) -> BTreeMap<AgentId, f64> {
    agents.iter().filter_map(|&witness| Some((witness, mesh.measured(witness, target)?.as_millis_f64()))).collect()
}

/// The distance that two agents report between them, in milliseconds; `None` if their measurements
/// disagree.
fn claimed(mesh: &Mesh, a: AgentId, b: AgentId) -> Option<f64> {
    let (there, back) = (mesh.measured(a, b)?, mesh.measured(b, a)?);
    (log_ratio(there, back).abs() <= AGREED).then_some((there.as_millis_f64() * back.as_millis_f64()).sqrt())
}

/// Returns the pair if the witnesses contradict the reported distance `claimed`. The two agents
/// themselves are never witnesses, because no agent measures itself.
fn denied(claimed: f64, of_a: &BTreeMap<AgentId, f64>, of_b: &BTreeMap<AgentId, f64>) -> Option<DisputedPair> {
    let apart = of_a.iter().filter_map(|(witness, to_a)| Some((to_a - of_b.get(witness)?).abs()));
    let seen: Vec<f64> = apart.take(MOST_WITNESSES).collect();
    if seen.len() < FEWEST_WITNESSES {
        return None;
    }
    let seen = median(seen)?;
    (seen + SOFTENING >= DENIED_BY * (claimed + SOFTENING)).then_some((claimed, seen))
}

fn reason(partners: &[DisputedPair]) -> String {
    let plainest = partners.iter().max_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
    let (claimed, seen) = plainest.copied().unwrap_or_default();
    format!(
        "it and {} others confirm each other against all other agents: it claims to be {claimed:.1} ms from one of \
         them, but half of the other agents measure them more than {seen:.1} ms apart",
        partners.len()
    )
}

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
pub(super) fn claims_too_short(size: &ReportBias, landmarks: usize) -> Option<String> {
    (size.bias <= TOO_NEAR).then(|| claims(size, landmarks))
}

#[cfg(test)]
mod tests {
    use crate::gnp::fixture::rtt;

    use super::*;

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
