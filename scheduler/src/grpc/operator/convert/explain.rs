//! Converts explanations of choices to messages.

use std::collections::HashMap;

use landfall_proto::v1;

use crate::model::BatchId;
use crate::model::constraints::Constraints;
use crate::store::reports::explain::{Task, TaskChoice};
use crate::strategy::explain;

use super::{rtt, timestamp};

/// The messages for a site's tasks with their choices, newest first.
pub(in crate::grpc) fn tasks(
    tasks: Vec<Task>,
    choices: &[TaskChoice],
    asked: &HashMap<BatchId, Constraints>,
) -> Vec<v1::ExplainedTask> {
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
