//! Converts the causes of waiting and the reasons for choices, with their details, to messages of
//! the protocol.

use std::time::Duration;

use landfall_proto::v1;

use super::{count, duration};
use crate::model::{ChoiceCause, ChoiceReasons, Fallback, FormerAgent};
use crate::strategy::explain::{ExplainedWait, WaitDetail};

impl From<&ExplainedWait> for v1::Wait {
    fn from(wait: &ExplainedWait) -> Self {
        let cause = v1::WaitCause::from(wait.cause).into();
        let mut message = Self { cause, about: wait.about.text(), ..Self::default() };
        if let WaitDetail::Constraints(_, nobody) = &wait.about {
            message.unmet = v1::UnmetCause::from(nobody.cause).into();
            message.fleet = count(nobody.excluded.fleet);
            let by = nobody.excluded.by.iter();
            let by = by.map(|(one, agents)| v1::ExcludedCount { constraint: one.to_string(), agents: count(*agents) });
            message.excluded = by.collect();
        }
        message
    }
}

impl From<&ChoiceReasons> for v1::Why {
    fn from(why: &ChoiceReasons) -> Self {
        let mut message = Self::default();
        if let Some(Fallback { cause, said }) = &why.fallback {
            message.fallback = v1::FallbackCause::from(*cause).into();
            message.fallback_said.clone_from(said);
        }
        if let Some(FormerAgent { agent, how }) = &why.parted {
            message.parted = v1::Parting::from(*how).into();
            message.parted_agent.clone_from(agent);
        }
        let cause = match &why.cause {
            ChoiceCause::Strategy { full, of } => {
                (message.full, message.of) = (*full, *of);
                v1::ChoiceCause::Strategy
            }
            ChoiceCause::Explores => v1::ChoiceCause::Explores,
            ChoiceCause::Spread { confidence, near } => {
                (message.confidence, message.near) = (*confidence, *near);
                v1::ChoiceCause::Spread
            }
            ChoiceCause::NextCandidate => v1::ChoiceCause::NextCandidate,
            ChoiceCause::Rebalanced { from, gain } => {
                message.from.clone_from(from);
                message.gain = v1::Gain::from(*gain).into();
                v1::ChoiceCause::Rebalanced
            }
            ChoiceCause::TakenBack { from, remaining_ms, takes_ms } => {
                message.from.clone_from(from);
                message.remaining = Some(duration(Duration::from_millis(*remaining_ms)));
                message.takes = takes_ms.map(|takes| duration(Duration::from_millis(takes)));
                v1::ChoiceCause::TakenBack
            }
        };
        message.cause = cause.into();
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::constraints::{Constraints, Exclusion, NoEligibleAgent};
    use crate::model::{FallbackCause, Gain, Parting, WaitCause};

    #[test]
    fn every_cause_is_the_same_after_it_was_sent_and_printed_as_it_is_recorded() {
        let parted = Some(FormerAgent { agent: "a".into(), how: Parting::Drained });
        let fallback = Some(Fallback { cause: FallbackCause::Unmeasured, said: "connect: refused".into() });
        let others = ChoiceReasons { cause: ChoiceCause::NextCandidate, parted, fallback };
        let causes = [
            ChoiceCause::Strategy { full: 1, of: 3 },
            ChoiceCause::Explores,
            ChoiceCause::Spread { confidence: 0.9, near: 4 },
            ChoiceCause::Rebalanced { from: "b".into(), gain: Gain::Nearer },
            ChoiceCause::TakenBack { from: "b".into(), remaining_ms: 83_600, takes_ms: Some(4_260) },
        ];
        let causes = causes.into_iter().map(|cause| ChoiceReasons { cause, ..ChoiceReasons::default() });
        for why in causes.chain([others, ChoiceReasons::default()]) {
            let (printed, recorded) = (serde_json::to_value(v1::Why::from(&why)), serde_json::to_value(why));
            assert_eq!(printed.unwrap(), recorded.unwrap());
        }
        let unsaid = serde_json::to_value(v1::Why::default()).unwrap();
        assert!(unsaid.is_null(), "an older scheduler does not say");
        let newer = v1::Why { cause: v1::ChoiceCause::Rebalanced.into(), gain: 99, ..v1::Why::default() };
        assert!(serde_json::to_value(newer).unwrap().is_null(), "a newer scheduler knows more gains");
        for cause in WaitCause::ALL {
            let wait = v1::Wait::from(&ExplainedWait::from(*cause));
            assert_eq!(WaitCause::try_from(wait.cause()), Ok(*cause));
        }
        let asked = Constraints { countries: vec!["JP".into()], ..Constraints::default() };
        let nobody = NoEligibleAgent::of(3, &[Exclusion::Country, Exclusion::Country]);
        let unmet =
            v1::Wait::from(&ExplainedWait { cause: WaitCause::Unmet, about: WaitDetail::Constraints(asked, nobody) });
        assert_eq!((unmet.unmet(), unmet.fleet), (v1::UnmetCause::TakeNoWork, 3));
        assert_eq!(unmet.excluded, [v1::ExcludedCount { constraint: "country".to_owned(), agents: 2 }]);
        for how in Parting::ALL {
            assert_eq!(Parting::try_from(v1::Parting::from(*how)), Ok(*how));
        }
    }
}
