//! Defines what a judgement finds about an agent: the kind of evidence, the trust and the reason;
//! and holds the findings on all agents.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{AgentId, words};

words!(
    /// The kind of evidence for which an agent is quarantined.
    #[derive(PartialOrd, Ord)]
    Kind {
        /// Reported round trips are shorter than light allows.
        Light = "light",
        /// Agents report that they are near each other, but other agents' measurements contradict
        /// this.
        Collusion = "collusion",
        /// The agent's measurements contradict other agents' measurements of it.
        Asymmetry = "asymmetry",
        /// The agent's measurements contradict the map fitted to the other agents.
        Residual = "residual",
        /// The agent's measurements contradict the other landmarks' measurements of sites.
        Sites = "sites",
    }
);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// The agent's measurements are used.
    Trusted,
    /// The agent's measurements are used, but the agent is doubtful and counts towards the alarm.
    Suspect,
    /// The agent's measurements are not used.
    Quarantined,
}

/// The result of judging a doubtful agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    pub kind: Kind,
    pub trust: Trust,
    /// The reason, with figures, for display.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FleetTrust {
    pub(super) findings: BTreeMap<AgentId, Finding>,
    /// For each agent, the kinds of evidence that sufficed to judge it.
    pub(super) heard: BTreeMap<AgentId, BTreeSet<Kind>>,
    pub(super) landmarks: Vec<AgentId>,
}

impl FleetTrust {
    /// The finding on an agent; `None` if the agent is trusted.
    pub fn finding(&self, agent: AgentId) -> Option<&Finding> {
        self.findings.get(&agent)
    }

    /// All doubtful agents, with their findings.
    pub const fn findings(&self) -> &BTreeMap<AgentId, Finding> {
        &self.findings
    }

    pub fn trust(&self, agent: AgentId) -> Trust {
        self.finding(agent).map_or(Trust::Trusted, |finding| finding.trust)
    }

    /// Whether there was enough evidence of this kind to judge the agent.
    pub fn heard(&self, agent: AgentId, kind: Kind) -> bool {
        self.heard.get(&agent).is_some_and(|kinds| kinds.contains(&kind))
    }

    pub fn quarantined(&self) -> BTreeSet<AgentId> {
        let held = self.findings.iter().filter(|(_, finding)| finding.trust == Trust::Quarantined);
        held.map(|(&agent, _)| agent).collect()
    }
}
