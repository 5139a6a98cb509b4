//! Assigns an agent to every located task.
//!
//! The pure module `strategy` makes the choice; this module only reads the input and stores the
//! result. A measured round trip takes precedence over a predicted one. Agents without an active
//! session, draining agents, and agents excluded by the batch's constraints are not candidates. A
//! task without a candidate waits or fails. If a batch's constraints start to exclude an agent, the
//! batch's tasks that the agent has not begun are withdrawn from it.

pub mod balance;
mod choice;
pub mod confirm;
mod confirmation_holds;
pub(super) mod distances;
pub(super) mod exclusions;
mod holds;
pub(super) mod plan;
pub(super) mod preempt;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use sqlx::types::ipnet::IpNet;

use crate::model::{AgentId, BatchId, SiteId, Stage, TaskId};
use crate::store::assignments::available_agents::{self, AvailableAgent};
use crate::store::assignments::site_facts;
use crate::store::assignments::{self, Assignment, Pool, UnassignScope};
use crate::store::measurements::quarantines;
use crate::store::tasks::confirmations::{self, ConfirmationRequest};
use crate::store::tasks::{unmet, wait_causes};
use crate::strategy::uncertainty;
use crate::strategy::{Candidate, Choice};

use super::leadership::Leader;
use super::locate::refined::CurrentMap;
use crate::jobs::assign::choice::{chosen_for, fallback, may_be_confirmed};
use crate::jobs::assign::confirmation_holds::{Unconfirmed, hold_unconfirmed};
use crate::jobs::assign::distances::Known;
use crate::jobs::assign::exclusions::Admission;
use crate::jobs::assign::holds::{hold_ahead, hold_broken, release_held, release_unmet};
use crate::jobs::assign::plan::Planner;

/// Maximum number of tasks assigned in one transaction, so that their rows are locked for well
/// under a second.
const TASKS_PER_PASS: i64 = 500;

#[derive(Debug)]
pub struct Assign {
    scheduler: Leader,
    /// Tasks that are held because of their site's address are released in the order of the
    /// addresses. The next pass continues after the address in this field, or starts at the first
    /// address if the field is `None`.
    next_address: Mutex<Option<IpNet>>,
    pub(super) planner: Planner,
}

impl Assign {
    pub fn new(scheduler: Leader) -> Self {
        Self { scheduler, next_address: Mutex::new(None), planner: Planner::default() }
    }

    /// Runs transactions of bounded size until no task can be assigned.
    pub async fn run_once(&self) -> anyhow::Result<()> {
        let anybody = self.say_whether_anybody_takes_work().await?;
        // The map is read before any row is locked, because the preparation of a new map takes a
        // second.
        let map = self.scheduler.maps.current(self.scheduler.begin()).await?;
        if release_held(&self.scheduler, &self.next_address, TASKS_PER_PASS).await? {
            self.planner.forget();
        }
        release_unmet(&self.scheduler, TASKS_PER_PASS).await?;
        while self.withdraw_excluded().await? {}
        // Tasks that are withdrawn are assigned again before further tasks are withdrawn.
        while self.withdraw_some().await? | (anybody && self.choose_some(map.clone()).await?) {}
        if anybody { self.planner.run(&self.scheduler, map).await } else { Ok(()) }
    }

    /// Returns whether any agent can get work, and stores the cause if none can.
    async fn say_whether_anybody_takes_work(&self) -> anyhow::Result<bool> {
        let mut tx = self.scheduler.begin().await?;
        let nobody = wait_causes::nobody(&mut tx).await.context("look who takes work")?;
        wait_causes::close(&mut tx, Stage::Choosing, nobody).await.context("say why tasks wait")?;
        tx.commit().await.context("commit why tasks wait")?;
        Ok(nobody.is_none())
    }

    /// Withdraws a limited number of tasks from agents that are now excluded. Returns `true` if
    /// more tasks may have to be withdrawn.
    async fn withdraw_excluded(&self) -> anyhow::Result<bool> {
        let mut tx = self.scheduler.begin().await?;
        let batches = unmet::assigned(&mut tx).await.context("find batches with constraints")?;
        if batches.is_empty() {
            return Ok(false);
        }
        let from = Admission::read(&mut tx, batches).await?.withdrawn();
        let withdrawn = assignments::unassign(&mut tx, UnassignScope::Excluded(&from), TASKS_PER_PASS).await;
        let withdrawn = withdrawn.context("withdraw from the excluded")?;
        tx.commit().await.context("commit withdrawn assignments")?;
        if withdrawn > 0 {
            self.planner.forget();
            tracing::info!(withdrawn, "withdrew tasks from agents that constraints now exclude");
        }
        Ok(i64::try_from(withdrawn).is_ok_and(|count| count == TASKS_PER_PASS))
    }

    /// Withdraws a limited number of tasks from agents that no longer take work. Returns `true` if
    /// more tasks may have to be withdrawn.
    async fn withdraw_some(&self) -> anyhow::Result<bool> {
        let mut tx = self.scheduler.begin().await?;
        let patience = self.scheduler.config.lease.grace;
        let withdrawn = assignments::unassign(&mut tx, UnassignScope::Unavailable(patience), TASKS_PER_PASS)
            .await
            .context("withdraw assignments of lost agents")?;
        tx.commit().await.context("commit withdrawn assignments")?;
        if withdrawn > 0 {
            self.planner.forget();
            tracing::info!(withdrawn, "withdrew tasks from agents that are gone, draining or disconnected");
        }
        Ok(i64::try_from(withdrawn).is_ok_and(|count| count == TASKS_PER_PASS))
    }

    /// Assigns a limited number of tasks. Returns `true` if more tasks may be waiting.
    async fn choose_some(&self, map: Option<Arc<CurrentMap>>) -> anyhow::Result<bool> {
        let mut tx = self.scheduler.begin().await?;
        let waiting = assignments::waiting(&mut tx, Pool::EachByItself, TASKS_PER_PASS).await;
        let waiting = waiting.context("read located tasks")?;
        if waiting.is_empty() {
            return Ok(false);
        }
        let mut agents = available_agents::available(&mut tx).await.context("read available agents")?;
        if agents.is_empty() {
            return Ok(false);
        }
        let full = i64::try_from(waiting.len()).is_ok_and(|count| count == TASKS_PER_PASS);
        let waiting = hold_broken(&mut tx, waiting).await?;
        let Unconfirmed { waiting, confirmation_states, mut wanted } =
            hold_unconfirmed(&mut tx, &self.scheduler.config, waiting).await?;
        let waiting = hold_ahead(&mut tx, waiting, self.scheduler.config.politeness.crawls_at_address).await?;
        let sites: Vec<SiteId> = waiting.iter().map(|task| task.site).collect();
        let known = Known::read(&mut tx, &self.scheduler.maps, &sites, &agents, map).await?;
        let tasks: Vec<TaskId> = waiting.iter().map(|task| task.task).collect();
        let facts = site_facts::of_tasks(&mut tx, &tasks).await.context("read what is known of the sites")?;
        let mut admission = Admission::read(&mut tx, waiting.iter().map(|task| task.batch)).await?;
        let alarm = quarantines::alarm(&mut tx).await.context("read the alarm")?;
        let mut chosen = BTreeSet::new();
        let mut unmet: BTreeMap<BatchId, Vec<TaskId>> = BTreeMap::new();
        let (mut unsure, mut made) = (Vec::new(), Vec::new());
        let (confirming, max_age) = (self.scheduler.config.confirming(), self.scheduler.config.measure.site_max_age);
        for task in &waiting {
            let mut candidates = known.candidates(task.site, &agents, self.scheduler.config.draws);
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
            if may_be && uncertainty::unsure(&candidates) && waits(&candidates, choice.agent) >= confirming {
                unsure.push(ConfirmationRequest { task: task.task, site: task.site, patience: Some(confirming) });
                continue;
            }
            let alarmed = alarm.is_some() && task.strategy.needs_distance();
            let mut choice =
                Choice { fallback: fallback(task.unmeasured.as_ref(), choice.fallback, alarmed), ..choice };
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
            self.scheduler.wakes.confirm.notify_one();
        }
        tracing::debug!(tasks = waiting.len(), agents = chosen.len(), "assigned tasks");
        self.scheduler.wakes.wake_agents(chosen);
        Ok(full)
    }
}

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
