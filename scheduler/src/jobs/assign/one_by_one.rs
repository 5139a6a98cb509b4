//! Chooses an agent for each located task by itself, or sends its site to confirmation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use crate::jobs::assign::choice::{chosen_for, fallback};
use crate::jobs::assign::confirmation_holds::{Unconfirmed, costs_no_time, hold_unconfirmed, may_be_confirmed};
use crate::jobs::assign::distances::Known;
use crate::jobs::assign::exclusions::Admission;
use crate::jobs::assign::holds::{hold_ahead, hold_broken};
use crate::jobs::leadership::Leader;
use crate::jobs::locate::refined::CurrentMap;
use crate::model::{AgentId, BatchId, SiteId, TaskId};
use crate::store::assignments::available_agents::{self, AvailableAgent};
use crate::store::assignments::{self, Assignment, Pool, site_facts};
use crate::store::measurements::quarantines;
use crate::store::tasks::confirmations::{self, ConfirmationRequest};
use crate::strategy::{Candidate, Choice, uncertainty};

/// How long a task would wait at an agent.
fn waits(candidates: &[Candidate], agent: AgentId) -> Duration {
    candidates.iter().find(|one| one.agent == agent).map_or(Duration::ZERO, Candidate::waits)
}

/// Records the agents' loads in the choice's candidates. With `Draws::Static`, the choice was made
/// from candidates without loads.
fn record_loads(choice: &mut Choice, agents: &[AvailableAgent]) {
    for one in &mut choice.candidates {
        one.load = agents.iter().find(|agent| agent.agent == one.agent).map_or(one.load, |agent| agent.load);
    }
}

fn now_has_one_more(agents: &mut [AvailableAgent], chosen: AgentId) {
    if let Some(agent) = agents.iter_mut().find(|agent| agent.agent == chosen) {
        agent.load = agent.load.saturating_add(1);
    }
}

/// Assigns a limited number of tasks. Returns `true` if more tasks may be waiting.
pub(super) async fn choose_some(scheduler: &Leader, map: Option<Arc<CurrentMap>>, limit: i64) -> anyhow::Result<bool> {
    let mut tx = scheduler.begin().await?;
    let waiting = assignments::waiting(&mut tx, Pool::EachByItself, limit).await;
    let waiting = waiting.context("read located tasks")?;
    if waiting.is_empty() {
        return Ok(false);
    }
    let mut agents = available_agents::available(&mut tx).await.context("read available agents")?;
    if agents.is_empty() {
        return Ok(false);
    }
    let full = i64::try_from(waiting.len()).is_ok_and(|count| count == limit);
    let waiting = hold_broken(&mut tx, waiting).await?;
    let Unconfirmed { waiting, confirmation_states, mut wanted } =
        hold_unconfirmed(&mut tx, &scheduler.config, waiting).await?;
    let waiting = hold_ahead(&mut tx, waiting, scheduler.config.politeness.crawls_at_address).await?;
    let sites: Vec<SiteId> = waiting.iter().map(|task| task.site).collect();
    let known = Known::read(&mut tx, &scheduler.maps, &sites, &agents, map).await?;
    let tasks: Vec<TaskId> = waiting.iter().map(|task| task.task).collect();
    let facts = site_facts::of_tasks(&mut tx, &tasks).await.context("read what is known of the sites")?;
    let mut admission = Admission::read(&mut tx, waiting.iter().map(|task| task.batch)).await?;
    let alarm = quarantines::alarm(&mut tx).await.context("read the alarm")?;
    let mut chosen = BTreeSet::new();
    let mut unmet: BTreeMap<BatchId, Vec<TaskId>> = BTreeMap::new();
    let (mut unsure, mut made) = (Vec::new(), Vec::new());
    let (confirming, max_age) = (scheduler.config.confirming(), scheduler.config.measure.site_max_age);
    for task in &waiting {
        let mut candidates = known.candidates(task.site, &agents, scheduler.config.draws);
        candidates.retain(|candidate| admission.admits(task.batch, candidate.agent));
        if candidates.is_empty() {
            unmet.entry(task.batch).or_default().push(task.task);
        }
        let facts = facts.get(&task.task).cloned().unwrap_or_default();
        let Some((choice, seed, why)) = chosen_for(task, &facts, &known, &candidates, alarm.as_deref()) else {
            continue;
        };
        let asked = confirmation_states.contains_key(&task.site);
        let may_be = alarm.is_none() && task.former.is_none() && !asked && may_be_confirmed(task, &known);
        if may_be && uncertainty::unsure(&candidates) && costs_no_time(waits(&candidates, choice.agent), confirming) {
            unsure.push(ConfirmationRequest { task: task.task, site: task.site, patience: Some(confirming) });
            continue;
        }
        let alarmed = alarm.is_some() && task.strategy.needs_distance();
        let mut choice = Choice { fallback: fallback(task.unmeasured.as_ref(), choice.fallback, alarmed), ..choice };
        record_loads(&mut choice, &agents);
        let exclusions = admission.exclusions(&mut tx, task.batch).await?;
        admission.took(task.batch, choice.agent);
        now_has_one_more(&mut agents, choice.agent);
        chosen.insert(choice.agent);
        let available = candidates.len();
        made.push(Assignment { available, exclusions, ..Assignment::new(task.task, seed, choice, why) });
    }
    assignments::insert(&mut tx, &made).await.context("record assignments")?;
    admission.set_aside(&mut tx, &unmet).await?;
    confirmations::want(&mut tx, &unsure, max_age).await.context("want unsure sites confirmed")?;
    wanted |= !unsure.is_empty();
    tx.commit().await.context("commit assignments")?;
    if wanted {
        scheduler.wakes.confirm.notify_one();
    }
    tracing::debug!(tasks = waiting.len(), agents = chosen.len(), "assigned tasks");
    scheduler.wakes.wake_agents(chosen);
    Ok(full)
}
