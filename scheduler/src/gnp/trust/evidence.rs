//! Holds the evidence of a judgement, and leaves out the reports of agents that are set aside.

use std::collections::{BTreeMap, BTreeSet};

use crate::gnp::Mesh;
use crate::model::{AgentId, Rtt};

/// Milliseconds added to both round trips of a ratio, because differences below a millisecond come
/// from the hosts, not from the network.
pub(super) const SOFTENING: f64 = 1.0;

#[derive(Debug, Clone, Copy)]
pub struct TrustEvidence<'a> {
    pub mesh: &'a Mesh,
    /// The landmarks, in the order of their election.
    pub landmarks: &'a [AgentId],
    /// Measurements of sites, one list per site. A few dozen sites suffice.
    pub sites: &'a [Vec<(AgentId, Rtt)>],
    /// For each pair of agents with known positions, the shortest round trip that light allows.
    pub least: &'a BTreeMap<(AgentId, AgentId), Rtt>,
}

/// `ln(reported / expected)`, softened.
pub(super) fn log_ratio(reported: Rtt, expected: Rtt) -> f64 {
    ((reported.as_millis_f64() + SOFTENING) / (expected.as_millis_f64() + SOFTENING)).ln()
}

/// The evidence without the reports of the agents that are set aside.
pub(super) struct RemainingEvidence<'a> {
    pub(super) evidence: &'a TrustEvidence<'a>,
    pub(super) agents: Vec<AgentId>,
    /// Agents set aside: their measurements are not used in the rest of the judgement.
    pub(super) aside: BTreeSet<AgentId>,
}

impl<'a> RemainingEvidence<'a> {
    pub(super) fn new(evidence: &'a TrustEvidence<'a>) -> Self {
        Self { evidence, agents: evidence.mesh.agents().into_iter().collect(), aside: BTreeSet::new() }
    }

    /// All agents except `agent` and the agents set aside.
    pub(super) fn others(&self, agent: AgentId) -> impl Iterator<Item = AgentId> {
        self.agents.iter().copied().filter(move |&other| other != agent && !self.aside.contains(&other))
    }
}
