//! Finds collusion: agents report that they are near each other, but other agents' measurements
//! contradict this.
//!
//! If two agents are `d` milliseconds apart, a third agent's round trips to them differ by at most
//! `d`, except on unusual paths. One contradicted pair may be due to an unusual path. But an agent
//! in several contradicted pairs lies, because an honest partner would not report the same short
//! distance.

use std::collections::BTreeMap;

use crate::gnp::Mesh;
use crate::model::AgentId;
use crate::model::stats::median;

use super::evidence::{SOFTENING, log_ratio};

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
