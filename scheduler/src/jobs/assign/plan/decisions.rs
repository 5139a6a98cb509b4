//! Decides which tasks of a plan begin now and at which agent, and which sites are confirmed while
//! their tasks wait.

use std::time::Duration;

use crate::model::{AgentId, BatchId, Strategy};
use crate::store::assignments::WaitingTask;
use crate::store::tasks::confirmations::ConfirmationRequest;
use crate::strategy::load::LISTED;
use crate::strategy::schedule::{self, Job, PlannedSite};
use crate::strategy::{self, Candidate, Choice, explored, uncertainty};

use super::super::choice::draw_seed;
use super::super::confirmation_holds::costs_no_time;
use super::super::exclusions::Admission;
use super::input::PlanInput;

/// A task whose agent is decided.
pub(super) struct DecidedTask {
    /// Index of the task in [`PlanInput::waiting`].
    pub(super) job: usize,
    pub(super) choice: Choice,
    /// Predicted duration of the crawl.
    pub(super) takes: Option<Duration>,
    /// Whether the agent was chosen for a trial, because it may be nearer than the nearest measured
    /// agent.
    pub(super) explores: bool,
}

/// The decisions that a plan makes now.
#[derive(Default)]
pub(super) struct PlanDecisions {
    pub(super) decided: Vec<DecidedTask>,
    /// Sites to confirm while their tasks wait, because the tasks wait longer than a confirmation
    /// takes.
    pub(super) unsure: Vec<ConfirmationRequest>,
    /// When the first undecided task begins, counted from now.
    pub(super) first: Option<Duration>,
}

impl PlanInput {
    /// The decisions of the plan: tasks that would begin soon, and tasks without a known distance.
    /// Only each crawl's duration at each agent is kept, because the candidates of all sites would
    /// take a hundred megabytes of memory. The candidates of the few decided sites are read again
    /// from `among`.
    pub(super) fn decided(
        &self,
        admission: &Admission,
        confirming: Duration,
        among: impl Fn(&WaitingTask) -> Vec<Candidate>,
    ) -> PlanDecisions {
        let (mut jobs, mut tried, mut is_unsure) = (Vec::new(), Vec::new(), Vec::new());
        let PlanDecisions { mut decided, mut unsure, mut first } = PlanDecisions::default();
        for (index, task) in self.waiting.iter().enumerate() {
            let candidates = among(task);
            let tries = self.tried(index, &candidates, admission);
            let job = self.job(index, &candidates, tries, admission);
            let admitted = admitted(admission, task.batch, &candidates);
            if job.takes.iter().all(Option::is_none)
                && let Some(choice) = self.draw(task, &admitted)
            {
                decided.push(DecidedTask { job: index, choice, takes: None, explores: false });
            }
            is_unsure.push(self.confirmable[index] && uncertainty::unsure(&admitted));
            jobs.push(job);
            tried.push(tries);
        }
        for planned in schedule::plan(&jobs, &self.frees) {
            if planned.begins <= schedule::AHEAD
                && let Some(choice) = self.choice(&planned, &jobs[planned.job], &among(&self.waiting[planned.job]))
            {
                let takes = Some(planned.ends.saturating_sub(planned.begins));
                let explores = tried[planned.job] == Some(choice.agent);
                decided.push(DecidedTask { job: planned.job, choice, takes, explores });
                continue;
            }
            first = first.into_iter().chain([planned.begins]).min();
            if is_unsure[planned.job] && costs_no_time(planned.begins, confirming) {
                let WaitingTask { task, site, .. } = self.waiting[planned.job];
                unsure.push(ConfirmationRequest { task, site, patience: Some(confirming) });
            }
        }
        PlanDecisions { decided, unsure, first }
    }

    /// The agent that should crawl this site as a trial, because it may be nearer than the nearest
    /// measured agent. Only a few sites get a trial. The site of a preempted task gets no trial,
    /// because this task should end soon.
    fn tried(&self, index: usize, candidates: &[Candidate], admission: &Admission) -> Option<AgentId> {
        let task = self.waiting.get(index)?;
        let nearest = candidates.iter().filter(|one| one.distance().is_some()).min_by_key(|one| one.distance());
        let nearest = nearest.filter(|_| !self.preempted.contains_key(&task.task))?;
        let tried = explored(nearest, candidates, *self.crawls.get(index)?, draw_seed(task))?.agent;
        admission.admits(task.batch, tried).then_some(tried)
    }

    /// Draws a random agent, because no distance is known or trusted.
    fn draw(&self, task: &WaitingTask, among: &[Candidate]) -> Option<Choice> {
        if let Some(alarm) = &self.alarm {
            return strategy::choose_during_alarm(alarm, among, draw_seed(task));
        }
        let facts = self.facts.get(&task.task).cloned().unwrap_or_default();
        strategy::choose(task.strategy, &facts.site(self.usual), among, draw_seed(task))
    }

    /// The choice for an entry of the plan: the entry's agent, and the agents that would finish
    /// this crawl first if no other crawl waited.
    fn choice(&self, planned: &PlannedSite, job: &Job, candidates: &[Candidate]) -> Option<Choice> {
        let taker = *candidates.get(planned.agent)?;
        let ends = |agent: usize| {
            let free = self.frees.get(agent)?.iter().min()?;
            Some(free.saturating_add(job.takes.get(agent).copied().flatten()?))
        };
        let others = (0..candidates.len()).filter(|agent| *agent != planned.agent);
        let mut others: Vec<(Duration, usize)> = others.filter_map(|agent| Some((ends(agent)?, agent))).collect();
        others.sort_unstable();
        others.truncate(LISTED - 1);
        let listed = others.into_iter().filter_map(|(_, agent)| candidates.get(agent).copied());
        let candidates = std::iter::once(taker).chain(listed).collect();
        Some(Choice { agent: taker.agent, candidates, strategy: Strategy::EarliestFinish, fallback: None })
    }
}

/// The candidates except those that the batch excludes.
fn admitted(admission: &Admission, batch: BatchId, among: &[Candidate]) -> Vec<Candidate> {
    among.iter().filter(|one| admission.admits(batch, one.agent)).copied().collect()
}
