//! Defines what a judgement finds about an agent: the kind of evidence, the trust and the reason.

use crate::model::words;

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
