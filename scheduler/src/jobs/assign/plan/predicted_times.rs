//! Predicts how long each agent would take for the site of a waiting task.

use std::time::Duration;

use crate::model::{AgentId, Rtt};
use crate::strategy::Candidate;
use crate::strategy::schedule::Job;

use super::super::exclusions::Admission;
use super::input::PlanInput;

impl PlanInput {
    /// The time that each agent would need for one waiting task. The time is `None` for all agents
    /// if no distance of the site is known or trusted, and for each agent that the batch excludes.
    pub(super) fn job(
        &self,
        index: usize,
        candidates: &[Candidate],
        tried: Option<AgentId>,
        admission: &Admission,
    ) -> Job {
        let batch = self.waiting[index].batch;
        let facts = self.facts.get(&self.waiting[index].task);
        let work = facts.and_then(|facts| facts.site(self.usual).work).unwrap_or_default().counted();
        let farthest: Option<Rtt> =
            candidates.iter().filter_map(Candidate::distance).max().filter(|_| self.alarm.is_none());
        let preempted = self.preempted.get(&self.waiting[index].task);
        let takes = |one: &Candidate| {
            let distance = one.distance().or(farthest).filter(|_| farthest.is_some())?;
            let may = tried.is_none_or(|tried| tried == one.agent) && admission.admits(batch, one.agent);
            may.then(|| work.takes(distance, one.speed))
        };
        let sized = facts.is_some_and(|facts| facts.size.is_some());
        let mut takes: Vec<Option<Duration>> = candidates.iter().map(takes).collect();
        // A preempted task does not go back to its former agent, unless no other agent can crawl
        // it.
        let back = preempted.and_then(|preempted| candidates.iter().position(|one| one.agent == preempted.from));
        if let Some(back) = back
            && takes.iter().enumerate().any(|(agent, takes)| agent != back && takes.is_some())
        {
            takes[back] = None;
        }
        Job { takes, sized, waited: self.waiting[index].waited }
    }
}
