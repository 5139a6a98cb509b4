//! Compares an agent's measurements of sites with what the other landmarks' measurements predict.

use crate::gnp::Embedding;
use crate::model::{AgentId, Rtt};

use super::bias_and_spread::{FEWEST, ReportBias};
use super::evidence::{RemainingEvidence, log_ratio};

/// An agent is judged by its measurements of sites only if it has measured at least this many,
/// because a few of them may be anycast.
pub const FEWEST_SITES: usize = 8;
/// Maximum number of sites used to judge an agent. The median over this many sites is precise
/// enough. More sites would take more time, because each site is located once per landmark.
const MOST_SITES: usize = 40;

/// The errors of a landmark's measurements of sites, compared with predictions from the other
/// landmarks' measurements. The part of an error that the control ([`control`]) also
/// shows is subtracted.
pub(super) fn landmark_sites(remaining: &RemainingEvidence<'_>, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
    if !remaining.evidence.landmarks.contains(&agent) {
        return None;
    }
    let size = sites(remaining, map, agent)?;
    Some(control(remaining, map, agent).map_or(size, |control| size.beyond(&control)))
}

/// The control for a landmark: the errors of the distances on the map from the judged landmark
/// to non-landmark agents. Each non-landmark agent is located like a site by the other
/// landmarks. The agent's distance on the map is then compared with the agent's measurement of
/// the judged landmark.
///
/// The control shows errors that the judged landmark does not cause. For example, three
/// landmarks in one town locate all sites too far from a fourth landmark.
fn control(remaining: &RemainingEvidence<'_>, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
    let own = map.placement(agent)?;
    let mesh = remaining.evidence.mesh;
    let landmarks = remaining.evidence.landmarks;
    let judges: Vec<AgentId> = remaining.others(agent).filter(|other| landmarks.contains(other)).collect();
    let witness = |witness: AgentId| {
        let said = mesh.measured(witness, agent)?;
        let of_it: Vec<(AgentId, Rtt)> =
            judges.iter().filter_map(|&judge| Some((judge, mesh.measured(judge, witness)?))).collect();
        if of_it.len() < FEWEST {
            return None;
        }
        let place = map.locate(&of_it).ok()?;
        Some(log_ratio(said, map.predict(&place, own).ok()?))
    };
    let witnesses = remaining.others(agent).filter(|other| !landmarks.contains(other)).take(MOST_SITES);
    ReportBias::of(&witnesses.filter_map(witness).collect::<Vec<f64>>(), FEWEST)
}

/// The errors of an agent's measurements of sites, compared with predictions from the landmarks'
/// measurements; `None` if the agent measured too few sites.
pub(super) fn sites(remaining: &RemainingEvidence<'_>, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
    let own = map.placement(agent)?;
    let site = |measured: &Vec<(AgentId, Rtt)>| {
        let (_, rtt) = measured.iter().find(|(prober, _)| *prober == agent)?;
        let others: Vec<(AgentId, Rtt)> = measured
            .iter()
            .copied()
            .filter(|(prober, _)| *prober != agent && !remaining.aside.contains(prober))
            .filter(|(prober, _)| remaining.evidence.landmarks.contains(prober))
            .collect();
        if others.len() < FEWEST {
            return None;
        }
        let place = map.locate(&others).ok()?;
        Some(log_ratio(*rtt, map.predict(&place, own).ok()?))
    };
    let sites = remaining.evidence.sites.iter().take(MOST_SITES);
    ReportBias::of(&sites.filter_map(site).collect::<Vec<f64>>(), FEWEST_SITES)
}
