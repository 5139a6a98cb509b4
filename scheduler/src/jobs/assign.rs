//! Assigns an agent to every located task.
//!
//! The pure module `strategy` makes the choice; this module only reads the input and stores the
//! result. A measured round trip takes precedence over a predicted one. Agents without an active
//! session, draining agents, and agents excluded by the batch's constraints are not candidates. A
//! task without a candidate waits or fails. If an agent becomes excluded, the batch's tasks that it
//! has not begun are withdrawn from the agent.

pub(super) mod admission;
pub mod balance;
pub mod confirm;
pub(super) mod known;
pub(super) mod plan;
pub(super) mod straggle;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use sqlx::types::ipnet::IpNet;

use crate::model::{
    AgentId, BatchId, ChoiceCause, ChoiceReasons, Fallback, FallbackCause, SiteId, Stage, Strategy, TaskId, seed,
};
use crate::store::assignments::facts;
use crate::store::assignments::loads::{self, AvailableAgent};
use crate::store::assignments::{self, Assignment, Pool, UnassignScope, WaitingTask};
use crate::store::measurements::quarantines;
use crate::store::sites::addresses;
use crate::store::tasks::confirmations::{self, ConfirmationRequest};
use crate::store::tasks::holds::{self, HoldFilter};
use crate::store::tasks::{unmet, waits};
use crate::strategy::learned::confidence;
use crate::strategy::site_facts::SiteFacts;
use crate::strategy::{self, Candidate, Choice};

use super::leadership::Leader;
use super::locate::refined::CurrentMap;
use crate::jobs::assign::admission::{Admission, Fate};
use crate::jobs::assign::known::Known;
use crate::jobs::assign::plan::Planner;
use crate::jobs::assign::waiting::{Unconfirmed, hold_ahead, hold_broken, hold_unconfirmed};

/// Maximum number of tasks assigned in one transaction, so that their rows are locked for well
/// under a second.
const TASKS_PER_PASS: i64 = 500;

#[derive(Debug)]
pub struct Assign {
    scheduler: Leader,
    /// Tasks that are held because of their site's address are released in the order of the
    /// addresses. The next pass continues after this address; `None` means that it starts at the
    /// first address.
    next_address: Mutex<Option<IpNet>>,
    pub(super) planner: Planner,
}

impl Assign {
    pub fn new(scheduler: Leader) -> Self {
        Self { scheduler, next_address: Mutex::new(None), planner: Planner::default() }
    }

    /// One pass: transactions of bounded size, until no task can be assigned.
    pub async fn run_once(&self) -> anyhow::Result<()> {
        let anybody = self.say_whether_anybody_takes_work().await?;
        // The map is read before any row is locked, because the preparation of a new map takes a
        // second.
        let map = self.scheduler.maps.current(self.scheduler.begin()).await?;
        self.release_held().await?;
        self.release_unmet().await?;
        while self.withdraw_excluded().await? {}
        // Tasks that are withdrawn are assigned again before further tasks are withdrawn.
        while self.withdraw_some().await? | (anybody && self.choose_some(map.clone()).await?) {}
        if anybody { self.planner.run(&self.scheduler, map).await } else { Ok(()) }
    }

    /// Returns whether any agent can get work, and stores the cause if none can.
    async fn say_whether_anybody_takes_work(&self) -> anyhow::Result<bool> {
        let mut tx = self.scheduler.begin().await?;
        let nobody = waits::nobody(&mut tx).await.context("look who takes work")?;
        waits::close(&mut tx, Stage::Choosing, nobody).await.context("say why tasks wait")?;
        tx.commit().await.context("commit why tasks wait")?;
        Ok(nobody.is_none())
    }

    /// Releases held tasks whose pause has ended or whose address permits another crawl.
    async fn release_held(&self) -> anyhow::Result<()> {
        let cap = self.scheduler.config.politeness.crawls_at_address;
        let next = || self.next_address.lock().unwrap_or_else(PoisonError::into_inner);
        let from = *next();
        let mut tx = self.scheduler.begin().await?;
        let due = holds::release(&mut tx, HoldFilter::Due, TASKS_PER_PASS).await.context("release held tasks")?.len();
        let admitted = addresses::admit(&mut tx, cap, from, TASKS_PER_PASS).await;
        let (admitted, place) = admitted.context("admit tasks to addresses")?;
        tx.commit().await.context("commit the tasks that go on")?;
        *next() = place;
        if due > 0 || admitted > 0 {
            self.planner.forget();
            tracing::debug!(due, admitted, "held tasks continue");
        }
        Ok(())
    }

    /// Releases tasks held as unmet if an agent may now crawl them. Stores why the other tasks held
    /// as unmet still wait.
    async fn release_unmet(&self) -> anyhow::Result<()> {
        let mut tx = self.scheduler.begin().await?;
        let batches = unmet::batches(&mut tx).await.context("find batches with unmet tasks")?;
        if batches.is_empty() {
            return Ok(());
        }
        let agents = loads::available(&mut tx).await.context("read available agents")?;
        let admission = Admission::read(&mut tx, batches.iter().copied()).await?;
        let mut any = false;
        for batch in batches {
            let there = agents.iter().map(|available| available.agent);
            let room = admission.room(batch, there, TASKS_PER_PASS.unsigned_abs());
            if room > 0 {
                let released = unmet::release(&mut tx, batch, None, room.cast_signed()).await;
                let released = released.context("release unmet tasks")?;
                tracing::debug!(batch.id = %batch, released, "agents meet the constraints of unmet tasks");
                any |= released > 0;
                continue;
            }
            match admission.fate(batch).filter(|_| !agents.is_empty()) {
                Some(Fate::Fail(reason)) => {
                    unmet::release(&mut tx, batch, Some(&reason), TASKS_PER_PASS).await.context("fail unmet tasks")?;
                }
                Some(Fate::Wait(why)) => {
                    unmet::explain(&mut tx, batch, &why).await.context("say why unmet tasks wait")?;
                }
                None => {}
            }
        }
        tx.commit().await.context("commit released tasks")?;
        if any {
            self.scheduler.wakes.confirm.notify_one();
        }
        Ok(())
    }

    /// Withdraws a limited number of tasks from agents that are now excluded. Returns `true` if
    /// more such tasks may remain.
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
    /// more such tasks may remain.
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

    /// Assigns a limited number of tasks. Returns `true` if more tasks may wait.
    async fn choose_some(&self, map: Option<Arc<CurrentMap>>) -> anyhow::Result<bool> {
        let mut tx = self.scheduler.begin().await?;
        let waiting = assignments::waiting(&mut tx, Pool::EachByItself, TASKS_PER_PASS).await;
        let waiting = waiting.context("read located tasks")?;
        if waiting.is_empty() {
            return Ok(false);
        }
        let mut agents = loads::available(&mut tx).await.context("read available agents")?;
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
        let facts = facts::of_tasks(&mut tx, &tasks).await.context("read what is known of the sites")?;
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
            let Some((choice, seed, why)) = chosen_for(task, &facts, &known, &candidates, alarm.is_some()) else {
                continue;
            };
            let asked = confirmation_states.contains_key(&task.site);
            let may_be = alarm.is_none() && task.former.is_none() && !asked && may_be_confirmed(task, &known);
            if may_be && confidence::unsure(&candidates) && waits(&candidates, choice.agent) >= confirming {
                unsure.push(ConfirmationRequest { task: task.task, site: task.site, patience: Some(confirming) });
                continue;
            }
            let alarmed = alarm.as_deref().filter(|_| task.strategy.needs_distance());
            let mut choice = Choice { fallback: fallback(task, choice.fallback, alarmed), ..choice };
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

/// Whether a task may wait while uncertain distances of its site are confirmed. A site that
/// probably has several locations is not confirmed, because each agent may measure another
/// location.
pub(super) fn may_be_confirmed(task: &WaitingTask, known: &Known) -> bool {
    task.strategy.confirms_the_unsure() && !known.suspicions.contains_key(&task.site)
}

/// The time for which a task would wait at an agent.
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

/// The cause of a fallback. Two causes are more specific than `generic` and replace it: an alarm,
/// and the reason why the site is unmeasured.
pub(super) fn fallback(task: &WaitingTask, generic: Option<Fallback>, alarm: Option<&str>) -> Option<Fallback> {
    match alarm {
        Some(said) => Some(Fallback { cause: FallbackCause::UntrustedMap, said: said.to_owned() }),
        None => generic.map(|generic| task.unmeasured.clone().map_or(generic, Into::into)),
    }
}

/// The choice for one task, its seed, and its cause. During an alarm, distances are not trusted.
fn chosen_for(
    task: &WaitingTask,
    facts: &SiteFacts,
    known: &Known,
    candidates: &[Candidate],
    alarm: bool,
) -> Option<(Choice, u64, ChoiceReasons)> {
    let seed = draw_seed(task);
    if alarm && task.strategy.needs_distance() {
        return Some((
            strategy::choose(Strategy::Random, &facts.site(None), candidates, seed)?,
            seed,
            ChoiceReasons::default(),
        ));
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

/// The seed of the random choice for a task. It depends only on the task and on the number of its
/// earlier choices, so a choice can be repeated exactly. The seeds of tasks with consecutive
/// identifiers are unrelated.
pub(super) fn draw_seed(task: &WaitingTask) -> u64 {
    seed::spread(task.task.get().cast_unsigned() ^ task.choices.cast_unsigned().rotate_left(48))
}
