//! Finds agents that report round trips shorter than light in fibre allows.

use crate::model::AgentId;
use crate::model::stats::count;

use super::evidence::TrustEvidence;

/// Returns a reason, as text for the operator, if several round trips that the agent reports are
/// shorter than light in fibre allows. If both agents of a pair report round trips to each other
/// that are too short, the pair does not count, because then probably a position is wrong, not a
/// measurement.
pub(super) fn impossible(evidence: &TrustEvidence<'_>, agent: AgentId) -> Option<String> {
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
    (broken.len() >= FEWEST_IMPOSSIBLE && share >= IMPOSSIBLE_SHARE).then(|| {
        format!(
            "{} of its {rows} round trips are shorter than light in fibre needs: one is {reported:.1} ms where light \
             needs {least:.1} ms",
            broken.len()
        )
    })
}

/// Minimum number of impossible round trips (shorter than light allows) for a quarantine by light.
/// A single one may be due to another agent's wrong position.
const FEWEST_IMPOSSIBLE: usize = 2;
/// Minimum share of impossible round trips among an agent's reports for a quarantine by light.
const IMPOSSIBLE_SHARE: f64 = 0.2;
