//! Liars who bear each other out: agents that claim, both ways, to be next to each other, where the others see them apart.
//!
//! If two hosts are d apart, no third sees their round trips differ by more than d (but for odd paths). What the two say
//! of each other is their word alone; what the others measured of them is not. One such pair may be an odd path; who
//! has several partners of this sort lies, since every honest agent would deny it.

use std::collections::BTreeMap;

use crate::gnp::{Mesh, millis};
use crate::model::AgentId;
use crate::model::stats::median;

use super::evidence::{SOFTENING, log_ratio};

/// Partners from which on it is no odd path.
const FEWEST_PARTNERS: usize = 2;
/// Witnesses below which nobody is convicted by them.
const FEWEST_WITNESSES: usize = 4;
/// Witnesses of a pair at most: the median of so many is sharp enough, and a large fleet has a million pairs.
const MOST_WITNESSES: usize = 32;
/// By which factor the others must see them farther apart than they claim.
const DENIED_BY: f64 = 4.0;
/// The log of the factor within which two say the same of each other.
const AGREED: f64 = 0.35;

/// A pair's claim, and how far apart half of the witnesses see the two at least, milliseconds.
type Denied = (f64, f64);

/// Who of these agents has partners in a lie, and why, for people.
pub(super) fn colluders(mesh: &Mesh, agents: &[AgentId]) -> BTreeMap<AgentId, String> {
    let mut partners: BTreeMap<AgentId, Vec<Denied>> = BTreeMap::new();
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

/// What each of these agents measured of a target, milliseconds.
fn witnesses(mesh: &Mesh, agents: &[AgentId], target: AgentId) -> BTreeMap<AgentId, f64> {
    agents.iter().filter_map(|&witness| Some((witness, millis(mesh.measured(witness, target)?)))).collect()
}

/// What two claim of each other, milliseconds; `None` where they do not agree.
fn claimed(mesh: &Mesh, a: AgentId, b: AgentId) -> Option<f64> {
    let (there, back) = (mesh.measured(a, b)?, mesh.measured(b, a)?);
    (log_ratio(there, back).abs() <= AGREED).then_some((millis(there) * millis(back)).sqrt())
}

/// Whether those who measured both of a pair deny its claim. The two themselves are no witnesses: neither measured itself.
fn denied(claimed: f64, of_a: &BTreeMap<AgentId, f64>, of_b: &BTreeMap<AgentId, f64>) -> Option<Denied> {
    let apart = of_a.iter().filter_map(|(witness, to_a)| Some((to_a - of_b.get(witness)?).abs()));
    let seen: Vec<f64> = apart.take(MOST_WITNESSES).collect();
    if seen.len() < FEWEST_WITNESSES {
        return None;
    }
    let seen = median(seen)?;
    (seen + SOFTENING >= DENIED_BY * (claimed + SOFTENING)).then_some((claimed, seen))
}

fn reason(partners: &[Denied]) -> String {
    let plainest = partners.iter().max_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
    let (claimed, seen) = plainest.copied().unwrap_or_default();
    format!(
        "it and {} others bear each other out against everyone else: {claimed:.1} ms from one of them, says each, and half \
         of the others see them more than {seen:.1} ms apart",
        partners.len()
    )
}
