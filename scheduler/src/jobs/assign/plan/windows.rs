//! Plans one window of tasks: reads it, decides without locks, and stores the decisions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use crate::jobs::assign::confirmation_holds::{Unconfirmed, hold_unconfirmed};
use crate::jobs::assign::exclusions::Admission;
use crate::jobs::assign::holds::hold_broken;
use crate::jobs::assign::plan::decisions::PlanDecisions;
use crate::jobs::assign::plan::input::PlanInput;
use crate::jobs::leadership::Leader;
use crate::jobs::locate::refined::CurrentMap;
use crate::model::{AgentId, BatchId, TaskId};
use crate::store::assignments::{self, Pool, available_agents};
use crate::store::tasks::confirmations::{self, ConfirmationRequest};

/// Maximum number of tasks in a window (tasks that are planned together). The limit keeps planning
/// within a second, because computing the distances of a site takes half a millisecond. If a batch
/// has more tasks, its oldest tasks are planned first.
pub(super) const WINDOW: i64 = 500;

/// The results of all windows of a pass so far.
#[derive(Debug, Clone, Default)]
pub(super) struct PassTotals {
    /// The batches whose tasks were planned.
    pub(super) batches: BTreeSet<BatchId>,
    /// The agents admitted to at least one planned task.
    pub(super) wanted: BTreeSet<AgentId>,
    /// Whether an agent was chosen for at least one task (the task is then *decided*).
    pub(super) decided: bool,
    /// Whether a task was decided, held, or taken by another transaction.
    pub(super) moved: bool,
    /// When the first undecided task begins, counted from the time of the plan.
    pub(super) first: Option<Duration>,
    /// Whether no task was decided and some agent is admitted to none of the waiting tasks. An
    /// agent that may crawl none of the waiting tasks can only take over running crawls.
    pub(super) idles: bool,
}

/// Plans the oldest tasks of the batches that are not in `seen.batches`. Returns `true` if these
/// tasks fill a whole window and some agent is admitted to no task planned so far. If the result is
/// `true`, the caller plans up to [`WINDOW`] tasks of other batches, which may include tasks for
/// this agent.
pub(super) async fn window(
    scheduler: &Leader,
    map: Option<Arc<CurrentMap>>,
    seen: &mut PassTotals,
) -> anyhow::Result<bool> {
    let mut tx = scheduler.begin().await?;
    let without: Vec<BatchId> = seen.batches.iter().copied().collect();
    let pool = Pool::Together { without: &without };
    let waiting = assignments::waiting(&mut tx, pool, WINDOW).await.context("read tasks to plan")?;
    if waiting.is_empty() {
        seen.idles = !seen.decided;
        return Ok(false);
    }
    let agents = available_agents::available(&mut tx).await.context("read available agents")?;
    if agents.is_empty() {
        return Ok(false);
    }
    let full = i64::try_from(waiting.len()).is_ok_and(|count| count == WINDOW);
    let read = waiting.len();
    seen.batches.extend(waiting.iter().map(|task| task.batch));
    let waiting = hold_broken(&mut tx, waiting).await?;
    let Unconfirmed { waiting, confirmation_states, mut wanted } =
        hold_unconfirmed(&mut tx, &scheduler.config, waiting).await?;
    let admission = Admission::read(&mut tx, waiting.iter().map(|task| task.batch)).await?;
    let (input, ways) = PlanInput::read(&mut tx, &scheduler.maps, (waiting, &confirmation_states), agents, map).await?;
    // No row stays locked while the plan is made, which takes up to a second.
    tx.commit().await.context("commit what is held")?;
    let confirming = scheduler.config.confirming();
    let planned = tokio::task::spawn_blocking(move || {
        let decisions = input.decided(&admission, confirming, |task| ways.candidates(task));
        (input, admission, decisions)
    });
    let (input, mut admission, PlanDecisions { mut decided, mut unsure, first }) = planned.await.context("plan")?;
    let mut tx = scheduler.begin().await?;
    let tasks: Vec<TaskId> = input.waiting.iter().map(|task| task.task).collect();
    let waiting = assignments::still_waiting(&mut tx, &tasks).await.context("lock the planned tasks")?;
    decided.retain(|decided| waiting.contains(&tasks[decided.job]));
    unsure.retain(|wanted: &ConfirmationRequest| waiting.contains(&wanted.task));
    let cap = scheduler.config.politeness.crawls_at_address;
    let max_age = scheduler.config.measure.site_max_age;
    confirmations::want(&mut tx, &unsure, max_age).await.context("want unsure sites confirmed")?;
    wanted |= !unsure.is_empty();
    let (chosen, unmet) = input.carry_out(&mut tx, &mut admission, cap, &decided, &waiting).await?;
    tx.commit().await.context("commit planned tasks")?;
    tracing::debug!(tasks = input.waiting.len(), agents = chosen.len(), "planned tasks");
    if wanted {
        scheduler.wakes.confirm.notify_one();
    }
    scheduler.wakes.wake_agents(chosen);
    // The undecided tasks wait until slots become free. An agent that is admitted to none of these
    // tasks may be idle.
    seen.decided |= !decided.is_empty();
    seen.moved |= seen.decided || unmet || wanted || waiting.len() < read;
    seen.first = seen.first.into_iter().chain(first).min();
    seen.wanted.extend(input.wanted(&admission));
    let spare = input.agents.iter().any(|agent| !seen.wanted.contains(agent));
    seen.idles = spare && !seen.decided;
    Ok(spare && full)
}
