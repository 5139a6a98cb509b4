//! Stores the decisions of a plan, and holds the tasks that it cannot assign.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use anyhow::Context;
use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, ChoiceCause, ChoiceReasons, TaskId};
use crate::store::assignments::{self, Assignment, WaitingTask};
use crate::store::leases::preemptions::PreemptedLease;
use crate::store::sites::addresses;
use crate::strategy::Choice;

use super::super::choice::{draw_seed, fallback};
use super::super::exclusions::Admission;
use super::decisions::DecidedTask;
use super::input::PlanInput;

/// The reason why a preempted crawl continues at another agent.
fn taken_back(preempted: &PreemptedLease, takes: Option<Duration>) -> ChoiceCause {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    ChoiceCause::TakenBack {
        from: preempted.name.clone(),
        remaining_ms: millis(preempted.here),
        takes_ms: takes.map(millis),
    }
}

impl PlanInput {
    /// Stores the decisions. Returns the agents that got a task, and whether there is a task that
    /// no agent may crawl. A decided task is held if its address permits no further crawl. An
    /// undecided task does not count toward the crawls that its address permits.
    pub(super) async fn carry_out(
        &self,
        conn: &mut PgConnection,
        admission: &mut Admission,
        cap: u32,
        decided: &[DecidedTask],
        locked: &HashSet<TaskId>,
    ) -> anyhow::Result<(BTreeSet<AgentId>, bool)> {
        let tasks: Vec<TaskId> = decided.iter().map(|decided| self.waiting[decided.job].task).collect();
        let held =
            addresses::hold_before_lease::hold(conn, &tasks, cap).await.context("hold tasks whose address is full")?;
        let (mut chosen, mut made) = (BTreeSet::new(), Vec::new());
        for DecidedTask { job, choice, takes, explores } in
            decided.iter().filter(|decided| !held.contains(&self.waiting[decided.job].task))
        {
            let task = &self.waiting[*job];
            // An earlier decision may have used up a quota.
            if !admission.admits(task.batch, choice.agent) {
                continue;
            }
            let fallback = fallback(task.unmeasured.as_ref(), choice.fallback.clone(), self.alarm.is_some());
            let exclusions = admission.exclusions(conn, task.batch).await?;
            let available = self.agents.iter().filter(|agent| admission.admits(task.batch, **agent)).count();
            let why = match self.preempted.get(&task.task) {
                Some(preempted) => ChoiceReasons { cause: taken_back(preempted, *takes), ..ChoiceReasons::default() },
                None if *explores => {
                    ChoiceReasons { cause: ChoiceCause::Explores, parted: task.parted.clone(), fallback: None }
                }
                None => ChoiceReasons { parted: task.parted.clone(), ..ChoiceReasons::default() },
            };
            admission.took(task.batch, choice.agent);
            chosen.insert(choice.agent);
            let choice = Choice { fallback, ..choice.clone() };
            let assignment = Assignment::new(task.task, draw_seed(task), choice, why);
            made.push(Assignment { takes: *takes, available, exclusions, ..assignment });
        }
        assignments::insert(conn, &made).await.context("record assignments")?;
        let nobody = |task: &&WaitingTask| !self.agents.iter().any(|agent| admission.admits(task.batch, *agent));
        let mut unmet: BTreeMap<BatchId, Vec<TaskId>> = BTreeMap::new();
        let decided: HashSet<TaskId> = tasks.into_iter().collect();
        for task in self.waiting.iter().filter(nobody) {
            if locked.contains(&task.task) && !decided.contains(&task.task) {
                unmet.entry(task.batch).or_default().push(task.task);
            }
        }
        admission.set_aside(conn, &unmet).await?;
        Ok((chosen, !unmet.is_empty()))
    }
}
