//! The choice of an agent for one task: its seed, its cause and, if the strategy could not be
//! followed, the cause of the fallback.

use crate::model::{ChoiceCause, ChoiceReasons, Fallback, Strategy, Unmeasured, seed};
use crate::store::assignments::WaitingTask;
use crate::strategy::site_facts::SiteFacts;
use crate::strategy::{self, Candidate, Choice};

use super::distances::Known;

/// The cause of a fallback. If the site is unmeasured, the reason is more specific than the cause
/// that the strategy gave, and replaces it. During an alarm, the alarm is the cause.
pub(super) fn fallback(unmeasured: Option<&Unmeasured>, given: Option<Fallback>, alarmed: bool) -> Option<Fallback> {
    let reason = unmeasured.filter(|_| !alarmed).cloned();
    given.map(|given| reason.map_or(given, Into::into))
}

/// The choice for one task, its seed, and its cause.
pub(super) fn chosen_for(
    task: &WaitingTask,
    facts: &SiteFacts,
    known: &Known,
    candidates: &[Candidate],
    alarm: Option<&str>,
) -> Option<(Choice, u64, ChoiceReasons)> {
    let seed = draw_seed(task);
    if let Some(alarm) = alarm.filter(|_| task.strategy.needs_distance()) {
        return Some((strategy::choose_during_alarm(alarm, candidates, seed)?, seed, ChoiceReasons::default()));
    }
    let parted = task.parted.clone();
    if let Some(former) = task.former.as_ref().filter(|_| parted.is_some())
        && let Some(choice) = strategy::choose_next(former, candidates)
    {
        return Some((choice, seed, ChoiceReasons { cause: ChoiceCause::NextCandidate, parted, fallback: None }));
    }
    if let Some((choice, cause)) = spread(known, task, candidates, seed) {
        return Some((choice, seed, ChoiceReasons { cause, parted, fallback: None }));
    }
    let choice = strategy::choose(task.strategy, &facts.site(None), candidates, seed)?;
    if let Some(choice) = exploration(task.strategy, &choice, candidates, known.crawls(task.site), seed) {
        return Some((choice, seed, ChoiceReasons { cause: ChoiceCause::Explores, parted, fallback: None }));
    }
    let cause = passed_over(&choice);
    Some((choice, seed, ChoiceReasons { cause, parted, fallback: None }))
}

/// Replaces the agent of `choice` by an agent that may be nearer to the site. The crawl of the new
/// agent is a trial: it measures this agent's distance. `None` if the strategy makes no trials, or
/// if no agent should be tried now.
fn exploration(
    strategy: Strategy,
    choice: &Choice,
    candidates: &[Candidate],
    crawls: usize,
    seed: u64,
) -> Option<Choice> {
    if !strategy.explores() || choice.fallback.is_some() {
        return None;
    }
    let chosen = candidates.iter().find(|one| one.agent == choice.agent)?;
    let tried = strategy::explored(chosen, candidates, crawls, seed)?;
    let mut listed = choice.candidates.clone();
    if listed.iter().all(|one| one.agent != tried.agent) {
        listed.push(*tried);
    }
    Some(Choice { agent: tried.agent, candidates: listed, ..choice.clone() })
}

/// The cause of a choice that the batch's strategy made. If the chosen agent has a free slot, the
/// cause includes the number of candidates without a free slot.
fn passed_over(choice: &Choice) -> ChoiceCause {
    let has_room = |agent| choice.candidates.iter().any(|one| one.agent == agent && one.level().has_room());
    let full = count(choice.candidates.iter().filter(|one| !one.level().has_room()).count());
    match full > 0 && has_room(choice.agent) {
        true => ChoiceCause::Strategy { full, of: count(choice.candidates.len()) },
        false => ChoiceCause::default(),
    }
}

/// The choice and its cause for a site that probably has several locations; `None` if the strategy
/// ignores distance or no distance is known.
fn spread(known: &Known, task: &WaitingTask, candidates: &[Candidate], seed: u64) -> Option<(Choice, ChoiceCause)> {
    let suspicion = known.suspicions.get(&task.site).filter(|_| task.strategy.needs_distance())?;
    let choice = strategy::choose_among_near(task.strategy, candidates, seed)?;
    let near = count(choice.candidates.len());
    Some((choice, ChoiceCause::Spread { confidence: suspicion.confidence, near }))
}

fn count(agents: usize) -> u32 {
    u32::try_from(agents).unwrap_or(u32::MAX)
}

/// The seed of the random choice for a task. The seed depends only on the task and on the number of
/// the task's earlier choices, so a choice can be repeated exactly. The seeds of tasks with
/// consecutive identifiers are unrelated.
pub(super) fn draw_seed(task: &WaitingTask) -> u64 {
    seed::spread(task.task.get().cast_unsigned() ^ task.choices.cast_unsigned().rotate_left(48))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FallbackCause, UnmeasuredCause};

    #[test]
    fn only_a_present_alarm_outweighs_why_a_site_is_unmeasured() {
        let of = |cause, said: &str| Fallback { cause, said: said.to_owned() };
        let (alarm, unmeasured) =
            (of(FallbackCause::UntrustedMap, "alarm"), of(FallbackCause::Unmeasured, "no answer"));
        let why = Unmeasured { cause: UnmeasuredCause::ALL[0], said: "no answer".to_owned() };
        assert_eq!(fallback(Some(&why), Some(alarm.clone()), true), Some(alarm.clone()));
        assert_eq!(fallback(Some(&why), Some(alarm.clone()), false), Some(unmeasured), "the alarm is over");
        assert_eq!(fallback(None, Some(alarm.clone()), false), Some(alarm));
        assert_eq!(fallback(Some(&why), None, false), None, "nothing was fallen back from");
    }
}
