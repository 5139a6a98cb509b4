//! Causes: why a task waits, why its agent was chosen, and why a strategy could not be followed.
//!
//! These words are stored, sent and compared; the sentences about them are made by [`crate::strategy::explain`] and stored nowhere.

use serde::{Deserialize, Serialize};

words!(
    /// A part of the way to an agent that may be closed to the whole fleet at once.
    Stage {
        /// Sites are measured.
        Measuring = "measuring",
        /// Measured sites are placed on the map.
        Locating = "locating",
        /// Agents are chosen.
        Choosing = "choosing",
    }
);

words!(
    /// What a task without an agent waits for.
    WaitCause {
        /// Its turn to be measured.
        Turn = "turn",
        /// The measurements of its site.
        Measurements = "measurements",
        /// The choice of an agent, which is about to be made.
        Choice = "choice",
        /// The slot that it is planned for.
        Planned = "planned",
        /// An agent that connects.
        NoAgent = "no-agent",
        /// An agent that takes work: those that are connected do not.
        NobodyTakesWork = "nobody-takes-work",
        /// Landmarks: the fleet is too large to do without.
        NoLandmarks = "no-landmarks",
        /// A landmark that connects.
        LandmarksAway = "landmarks-away",
        /// A prober that is believed: all are quarantined.
        NobodyBelieved = "nobody-believed",
        /// The map that is about to be fitted.
        NoMap = "no-map",
        /// The agents that may be nearest, which measure its site.
        Confirming = "confirming",
        /// A turn at its address.
        Address = "address",
        /// The end of a pause that its site asked for.
        Pause = "pause",
        /// Somebody who reopens its site.
        Breaker = "breaker",
        /// An agent that meets its batch's constraints.
        Unmet = "unmet",
    }
);

impl WaitCause {
    /// Whether it is more than the usual course of things, which a batch need not be told of.
    pub const fn needs_saying(self) -> bool {
        !matches!(self, Self::Turn | Self::Measurements | Self::Choice)
    }
}

words!(
    /// Why nobody gets the tasks of a batch, though some agent takes work.
    UnmetCause {
        /// No agent meets the batch's constraints.
        Excluded = "excluded",
        /// The agents that meet them take no work.
        TakeNoWork = "take-no-work",
    }
);

words!(
    /// Why no distance of a site could be had.
    UnmeasuredCause {
        /// Every prober tried, and failed.
        Failed = "failed",
        /// No prober reported anything.
        Silent = "silent",
    }
);

words!(
    /// Why a strategy could not be followed.
    FallbackCause {
        /// No agent's distance to the site is known.
        NoDistance = "no-distance",
        /// The site's address is not known.
        NoAddress = "no-address",
        /// No agent's address shares a bit with the site's.
        NothingShared = "nothing-shared",
        /// The site's name is an address.
        NoSuffix = "no-suffix",
        /// The site's position is not known.
        NoPosition = "no-position",
        /// No agent's position is known.
        NoAgentPosition = "no-agent-position",
        /// No map says which agents should confirm.
        NoMap = "no-map",
        /// Nobody that measured the site is there.
        NobodyMeasured = "nobody-measured",
        /// No prober could measure the site.
        Unmeasured = "unmeasured",
        /// The map is not trusted.
        UntrustedMap = "untrusted-map",
    }
);

words!(
    /// What became of a task at the agent that was chosen for it before.
    Parting {
        /// The agent's session ended without a word while it crawled.
        Lost = "lost",
        /// The agent's process began anew and did not have the crawl any more.
        Restarted = "restarted",
        /// The agent connected anew and did not have the crawl any more.
        Reconnected = "reconnected",
        /// The agent was enrolled anew on another machine.
        Replaced = "replaced",
        /// The agent said goodbye and handed nothing back.
        Left = "left",
        /// The operator removed the agent while it crawled.
        Removed = "removed",
        /// The database went back to a moment in the crawl.
        Restored = "restored",
        /// The crawl crashed, and the agent did not.
        Crashed = "crashed",
        /// The agent handed it back.
        HandedBack = "handed-back",
        /// The agent drains, and handed it back.
        Drained = "drained",
        /// It had not begun it, and is not connected.
        WaitedAway = "waited-away",
        /// It had not begun it, and was removed.
        WaitedRemoved = "waited-removed",
        /// It had not begun it, and drains.
        WaitedDrained = "waited-drained",
        /// It had not begun it, and takes no lease for a while.
        WaitedPaused = "waited-paused",
        /// It had not begun it, and its stream broke.
        WaitedDisconnected = "waited-disconnected",
        /// It had not begun it, and the batch's constraints exclude it by now.
        WaitedExcluded = "waited-excluded",
    }
);

words!(
    /// What a waiting task gains by going to another agent.
    Gain {
        /// It begins at once, and the former agent was full.
        BeginsAtOnce = "begins-at-once",
        EndsSooner = "ends-sooner",
        /// The agent came after the choice, and is nearer.
        Nearer = "nearer",
    }
);

/// Why a strategy could not be followed, with what somebody said of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    pub cause: FallbackCause,
    /// What the prober or the alarm said: shown, never compared.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub said: String,
}

impl From<FallbackCause> for Fallback {
    fn from(cause: FallbackCause) -> Self {
        Self { cause, said: String::new() }
    }
}

/// Why no distance of a site could be had, with the newest of what probers said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmeasured {
    pub cause: UnmeasuredCause,
    /// What a prober said; empty where none did.
    pub said: String,
}

impl From<Unmeasured> for Fallback {
    fn from(unmeasured: Unmeasured) -> Self {
        Self { cause: FallbackCause::Unmeasured, said: unmeasured.said }
    }
}

/// An agent that was chosen before, and what became of the task there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parted {
    /// The agent's name then.
    pub agent: String,
    /// What became of it.
    pub how: Parting,
}

/// Why an agent was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum ChoiceCause {
    /// The strategy chose it.
    Strategy {
        /// Candidates that had no room, where the chosen one had.
        #[serde(default, skip_serializing_if = "is_zero")]
        full: u32,
        /// Of how many; 0 where none was full.
        #[serde(default, skip_serializing_if = "is_zero")]
        of: u32,
    },
    /// It may be nearer than the best known.
    Explores,
    /// The site is probably in several places, so the freest of the near agents serves.
    Spread {
        /// How sure that is, from 0 to 1.
        confidence: f64,
        /// How many agents are near.
        near: u32,
    },
    /// It is the best of the former choice's other candidates.
    NextCandidate,
    /// The task waited at another agent.
    Rebalanced {
        /// That agent's name then.
        from: String,
        /// What the task gains.
        gain: Gain,
    },
    /// The crawl was under way at another agent, which was asked for it.
    TakenBack {
        /// That agent's name then.
        from: String,
        /// How long it would have gone on there, in milliseconds.
        remaining_ms: u64,
        /// How long it takes here, in milliseconds, where that was predicted.
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
    /// Its word in the store.
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

/// All that is recorded of why a task has an agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Why {
    #[serde(flatten)]
    pub cause: ChoiceCause,
    /// What became of the task at the agent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parted: Option<Parted>,
    /// Why the batch's own strategy was not followed; `None` where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_of_a_choice_is_read_as_it_was_written_and_named_by_its_word() {
        let parted = Some(Parted { agent: "a".into(), how: Parting::WaitedDisconnected });
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
                let why = Why { cause: cause.clone(), parted, fallback };
                let stored = serde_json::to_value(&why).unwrap();
                assert_eq!(stored["cause"], cause.name());
                assert_eq!(serde_json::from_value::<Why>(stored).unwrap(), why);
            }
        }
        assert_eq!(serde_json::to_string(&Why::default()).unwrap(), r#"{"cause":"strategy"}"#);
        assert_eq!(serde_json::to_string(&Parting::WaitedDisconnected).unwrap(), r#""waited-disconnected""#);
    }
}
