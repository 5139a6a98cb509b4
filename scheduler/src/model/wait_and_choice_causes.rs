//! Causes: why a task waits, why its agent was chosen, and why a fallback replaced a strategy.
//!
//! The store contains each cause as a word. The messages of the protocol have an enum value for
//! each word. [`crate::strategy::explain`] turns causes into sentences for display, which are never
//! stored.

use serde::{Deserialize, Serialize};

use crate::model::words;

words!(
    /// A stage of the work before a task has an agent. A stage can be stopped for the whole fleet.
    Stage {
        Measuring = "measuring",
        /// Locating measured sites on the map.
        Locating = "locating",
        Choosing = "choosing",
    }
);

words!(
    /// Why a task has no agent yet.
    WaitCause {
        Queued = "queued",
        Measurements = "measurements",
        /// The choice of an agent is pending.
        Choice = "choice",
        /// The slot that is planned for the task is not free yet.
        Planned = "planned",
        NoAgent = "no-agent",
        /// Agents are connected, but none accepts work.
        NoneAcceptsWork = "none-accepts-work",
        /// No landmarks are chosen, and the fleet is too large to work without them.
        NoLandmarks = "no-landmarks",
        LandmarksAway = "landmarks-away",
        /// Every prober is quarantined.
        AllQuarantined = "all-quarantined",
        /// No map has been fitted yet.
        NoMap = "no-map",
        /// Confirmers are measuring the site.
        Confirming = "confirming",
        /// The site's address permits no further crawl at present.
        Address = "address",
        /// The site asked for a pause, which has not ended.
        Pause = "pause",
        /// The site's circuit is open, so the site is not crawled until an operator reopens the
        /// circuit.
        Breaker = "breaker",
        /// No agent may crawl the site for the batch.
        Unmet = "unmet",
    }
);

impl WaitCause {
    /// Whether reports of the batch should show the cause. Causes that apply to every task for a
    /// while are not shown.
    pub const fn needs_saying(self) -> bool {
        !matches!(self, Self::Queued | Self::Measurements | Self::Choice)
    }
}

words!(
    /// Why no agent gets the tasks of a batch although some agent accepts work.
    UnmetCause {
        /// No agent meets the batch's constraints.
        Excluded = "excluded",
        /// The agents that meet the constraints accept no work.
        TakeNoWork = "take-no-work",
    }
);

words!(
    /// Why a site has no measured distance.
    UnmeasuredCause {
        /// Every prober tried and failed.
        Failed = "failed",
        /// No prober reported anything.
        Silent = "silent",
    }
);

words!(
    /// Why a fallback replaced a strategy.
    FallbackCause {
        /// No agent's distance to the site is known.
        NoDistance = "no-distance",
        /// The site's address is unknown.
        NoAddress = "no-address",
        /// No agent's address has a common prefix with the site's address.
        NothingShared = "nothing-shared",
        /// The site's name is an IP address, which has no suffix.
        NoSuffix = "no-suffix",
        /// The site's position is unknown.
        NoPosition = "no-position",
        /// No agent's position is known.
        NoAgentPosition = "no-agent-position",
        /// There is no map by which confirmers could be selected.
        NoMap = "no-map",
        /// No agent that measured the site is connected.
        NobodyMeasured = "nobody-measured",
        /// No prober could measure the site.
        Unmeasured = "unmeasured",
        /// The map cannot be trusted.
        UntrustedMap = "untrusted-map",
    }
);

words!(
    /// Why a task is no longer at its previous agent.
    Parting {
        /// The agent's session was lost during the crawl.
        Lost = "lost",
        /// The agent's process restarted, and did not continue the crawl.
        Restarted = "restarted",
        /// The agent reconnected, and did not continue the crawl.
        Reconnected = "reconnected",
        /// The agent was enrolled again on another machine.
        Replaced = "replaced",
        /// The agent ended its session without handing the task back.
        Left = "left",
        /// The operator removed the agent during the crawl.
        Removed = "removed",
        /// The database was restored from a backup, to a time during the crawl.
        Restored = "restored",
        /// The crawl crashed, but the agent continued.
        Crashed = "crashed",
        /// The agent handed the task back.
        HandedBack = "handed-back",
        /// The agent was draining and handed the task back.
        Drained = "drained",
        /// The agent disconnected before it began the crawl.
        WaitedAway = "waited-away",
        /// The agent was removed before it began the crawl.
        WaitedRemoved = "waited-removed",
        /// The agent started to drain before it began the crawl.
        WaitedDrained = "waited-drained",
        /// The agent was paused (it got no leases for a while) before it began the crawl.
        WaitedPaused = "waited-paused",
        /// The agent's stream broke before it began the crawl.
        WaitedDisconnected = "waited-disconnected",
        /// A change of the batch's constraints excluded the agent before it began the crawl.
        WaitedExcluded = "waited-excluded",
    }
);

words!(
    /// The gain of moving a waiting task to another agent.
    Gain {
        /// The task begins at once. The previous agent had no free slot.
        BeginsAtOnce = "begins-at-once",
        EndsSooner = "ends-sooner",
        /// The new agent joined after the previous choice and is nearer.
        Nearer = "nearer",
    }
);

/// Why a fallback replaced a strategy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    pub cause: FallbackCause,
    /// Details from the prober or the alarm, for display only.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub said: String,
}

impl Fallback {
    /// The fallback to store. If the site is unmeasured, the reason is more specific than the cause
    /// that the strategy gave, and replaces it. During an alarm, the alarm is the cause.
    pub fn stored(unmeasured: Option<&Unmeasured>, given: Option<Self>, alarmed: bool) -> Option<Self> {
        let reason = unmeasured.filter(|_| !alarmed).cloned();
        given.map(|given| reason.map_or(given, Into::into))
    }
}

impl From<FallbackCause> for Fallback {
    fn from(cause: FallbackCause) -> Self {
        Self { cause, said: String::new() }
    }
}

/// Why a site has no measured distance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmeasured {
    pub cause: UnmeasuredCause,
    /// The newest details from a prober; empty if there are none.
    pub said: String,
}

impl From<Unmeasured> for Fallback {
    fn from(unmeasured: Unmeasured) -> Self {
        Self { cause: FallbackCause::Unmeasured, said: unmeasured.said }
    }
}

/// The agent that was previously chosen for a task, and why the task is no longer at this agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerAgent {
    /// The agent's name at the time of the next choice.
    pub agent: String,
    pub how: Parting,
}

/// Why an agent was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum ChoiceCause {
    Strategy {
        /// Number of candidates without a free slot; 0 if the chosen agent had no free slot either.
        #[serde(default, skip_serializing_if = "is_zero")]
        full: u32,
        /// Number of candidates, full or not; 0 if the number `full` is 0.
        #[serde(default, skip_serializing_if = "is_zero")]
        of: u32,
    },
    /// The agent may be nearer than the best known agent.
    Explores,
    /// The site probably has several locations, so the near agent with the most free slots was
    /// chosen.
    Spread {
        /// The confidence that the site has several locations, from 0 to 1.
        confidence: f64,
        /// Number of near agents.
        near: u32,
    },
    /// The agent is the best of the candidates that remained from the previous choice.
    NextCandidate,
    /// The task waited at another agent and was moved by rebalancing.
    Rebalanced {
        /// The previous agent's name at the time of the move.
        from: String,
        gain: Gain,
    },
    /// The crawl was preempted at another agent.
    TakenBack {
        /// The previous agent's name at the time of the preemption.
        from: String,
        /// The predicted time until the crawl would have ended at the previous agent, in
        /// milliseconds.
        remaining_ms: u64,
        /// The predicted duration of the crawl at the new agent, in milliseconds; `None` without a
        /// prediction.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        takes_ms: Option<u64>,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Default for ChoiceCause {
    fn default() -> Self {
        Self::Strategy { full: 0, of: 0 }
    }
}

impl ChoiceCause {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Strategy { .. } => "strategy",
            Self::Explores => "explores",
            Self::Spread { .. } => "spread",
            Self::NextCandidate => "next-candidate",
            Self::Rebalanced { .. } => "rebalanced",
            Self::TakenBack { .. } => "taken-back",
        }
    }
}

/// Why a task has its agent. This value is stored with the choice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChoiceReasons {
    #[serde(flatten)]
    pub cause: ChoiceCause,
    /// The task's previous agent; `None` if it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parted: Option<FormerAgent>,
    /// Why a fallback replaced the batch's strategy; `None` if the strategy was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_of_a_choice_is_read_as_it_was_written_and_named_by_its_word() {
        let parted = Some(FormerAgent { agent: "a".into(), how: Parting::WaitedDisconnected });
        let fallback = Some(Fallback { cause: FallbackCause::UntrustedMap, said: "it lies".into() });
        let causes = [
            ChoiceCause::default(),
            ChoiceCause::Strategy { full: 1, of: 3 },
            ChoiceCause::Explores,
            ChoiceCause::Spread { confidence: 0.97, near: 4 },
            ChoiceCause::NextCandidate,
            ChoiceCause::Rebalanced { from: "b".into(), gain: Gain::BeginsAtOnce },
            ChoiceCause::TakenBack { from: "b".into(), remaining_ms: 83_600, takes_ms: None },
        ];
        for cause in causes {
            for (parted, fallback) in [(None, None), (parted.clone(), fallback.clone())] {
                let why = ChoiceReasons { cause: cause.clone(), parted, fallback };
                let stored = serde_json::to_value(&why).unwrap();
                assert_eq!(stored["cause"], cause.name());
                assert_eq!(serde_json::from_value::<ChoiceReasons>(stored).unwrap(), why);
            }
        }
        assert_eq!(serde_json::to_string(&ChoiceReasons::default()).unwrap(), r#"{"cause":"strategy"}"#);
        assert_eq!(serde_json::to_string(&Parting::WaitedDisconnected).unwrap(), r#""waited-disconnected""#);
    }

    #[test]
    fn only_a_present_alarm_outweighs_why_a_site_is_unmeasured() {
        let of = |cause, said: &str| Fallback { cause, said: said.to_owned() };
        let (alarm, unmeasured) =
            (of(FallbackCause::UntrustedMap, "alarm"), of(FallbackCause::Unmeasured, "no answer"));
        let why = Unmeasured { cause: UnmeasuredCause::ALL[0], said: "no answer".to_owned() };
        assert_eq!(Fallback::stored(Some(&why), Some(alarm.clone()), true), Some(alarm.clone()));
        assert_eq!(Fallback::stored(Some(&why), Some(alarm.clone()), false), Some(unmeasured), "the alarm is over");
        assert_eq!(Fallback::stored(None, Some(alarm.clone()), false), Some(alarm));
        assert_eq!(Fallback::stored(Some(&why), None, false), None, "nothing was fallen back from");
    }
}
