//! Explains why each of a site's tasks has its agent, or why it waits: the choices with their
//! reasons, and the constraints that exclude agents.

use std::collections::HashMap;
use std::time::Duration;

use landfall_proto::v1;
use tonic::Status;

use crate::Scheduler;
use crate::model::constraints::Constraints;
use crate::model::{AssignmentId, BatchId, ChoiceCause, ChoiceReasons, Fallback, FormerAgent};
use crate::store;
use crate::store::batches::constraints;
use crate::store::reports::explain::{self as records, Task, TaskChoice};
use crate::strategy::explain::{self, ExplainedWait, WaitDetail};

use super::convert::{count, duration, rtt, timestamp};
use super::named::{self, Unknown};
use super::site_details::{globe_position, position_of, site_name};

pub(super) async fn explain(scheduler: &Scheduler, request: v1::ExplainRequest) -> Result<v1::ExplainResponse, Status> {
    let v1::ExplainRequest { site, batch, assignment_id } = request;
    let name = site_name(&site)?;
    let mut conn = store::acquire(&scheduler.pool).await?;
    let site = named::site(&mut conn, &name).await?;
    let batch = if batch.is_empty() { None } else { Some(named::batch(&mut conn, &batch).await?) };
    let at = assignment_id.map(AssignmentId::new);
    let of_batch = batch.as_ref().map(|batch| batch.id);
    let tasks = records::tasks(&mut conn, &site, of_batch, at).await?;
    match (tasks.is_empty(), batch, assignment_id) {
        (true, _, Some(number)) => return Err(Unknown::Choice { site: site.name, number }.into()),
        (true, Some(batch), None) => {
            return Err(Unknown::InBatch { batch: batch.name, site: site.name }.into());
        }
        _ => {}
    }
    let choices = records::choices(&mut conn, &tasks, at).await?;
    let batches: Vec<BatchId> = tasks.iter().map(|task| task.batch).collect();
    let asked = constraints::of_batches(&mut conn, &batches).await?;
    let position = position_of(&mut conn, &site).await?;
    Ok(v1::ExplainResponse {
        site_id: site.id.get(),
        site: site.name,
        position: position.map(globe_position),
        tasks: messages(tasks, &choices, &asked),
    })
}

/// The messages for a site's tasks with their choices, newest first.
fn messages(tasks: Vec<Task>, choices: &[TaskChoice], asked: &HashMap<BatchId, Constraints>) -> Vec<v1::ExplainedTask> {
    let one = |task: Task| {
        let constraints = asked.get(&task.batch).cloned().unwrap_or_default();
        let of_task = choices.iter().filter(|choice| choice.task == task.id);
        v1::ExplainedTask {
            waits: task
                .waits
                .as_ref()
                .map(|wait| format!("no agent yet: {}", explain::waits(wait)))
                .unwrap_or_default(),
            wait: task.waits.as_ref().map(Into::into),
            choices: of_task.map(|choice| explained(choice, &constraints)).collect(),
            batch: task.batch_name,
            round: task.round,
            state: task.state.name().to_owned(),
            reason: task.reason.unwrap_or_default(),
        }
    };
    tasks.into_iter().map(one).collect()
}

fn explained(choice: &TaskChoice, constraints: &Constraints) -> v1::ExplainedChoice {
    let recorded = &choice.recorded;
    let candidates = recorded.candidates.iter().map(|one| v1::ExplainedCandidate {
        agent: one.agent.clone(),
        predicted: rtt(one.predicted),
        measured: rtt(one.measured),
        load_level: one.level,
    });
    let excluded = choice.excluded.iter().map(|(exclusion, agents)| v1::ExcludedAgents {
        constraint: exclusion.to_string(),
        why: explain::exclusion(constraints, exclusion),
        agents: agents.clone(),
    });
    v1::ExplainedChoice {
        assignment_id: choice.id.get(),
        chosen_at: Some(timestamp(choice.at)),
        newest: choice.newest,
        agent: recorded.agent.clone(),
        strategy: recorded.strategy.to_string(),
        seed: recorded.seed,
        because: explain::because(recorded),
        candidates: candidates.collect(),
        available: recorded.available,
        excluded: excluded.collect(),
        fallback: recorded.why.fallback.as_ref().map(explain::fallback).unwrap_or_default(),
        note: explain::note(&recorded.why).unwrap_or_default(),
        why: Some((&recorded.why).into()),
    }
}

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
