//! Runs the job's passes, and chooses an agent for each located task by itself, or sends the task's
//! site to confirmation.
//!
//! A pass releases held tasks, withdraws tasks, chooses agents, and lets the planner plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use sqlx::types::ipnet::IpNet;

use crate::jobs::assign::confirmation::{Unconfirmed, costs_no_time, hold_unconfirmed, may_be_confirmed};
use crate::jobs::assign::distances::Known;
use crate::jobs::assign::exclusions_and_holds::{
    Admission, hold_ahead, hold_broken, release_held, release_unmet, withdraw_excluded, withdraw_unavailable,
};
use crate::jobs::assign::plan_windows::Planner;
use crate::jobs::leadership::Leader;
use crate::jobs::refined_map::CurrentMap;
use crate::model::{AgentId, BatchId, ChoiceCause, ChoiceReasons, Fallback, SiteId, Stage, Strategy, TaskId, seed};
use crate::store::assignments::agents_and_loads::{self, AvailableAgent};
use crate::store::assignments::{self, Assignment, Pool, WaitingTask, past_crawls_and_site_facts};
use crate::store::measurements::quarantines_and_contradictions;
use crate::store::tasks::confirmations::{self, ConfirmationRequest};
use crate::store::tasks::unmet_and_wait_causes;
use crate::strategy::candidate_and_site::SiteFacts;
use crate::strategy::{self, Candidate, Choice, distance_strategies};

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
        while self.note_withdrawn(withdraw_excluded(&self.scheduler, TASKS_PER_PASS).await?) {}
        // Tasks that are withdrawn are assigned again before further tasks are withdrawn.
        while self.note_withdrawn(withdraw_unavailable(&self.scheduler, TASKS_PER_PASS).await?)
            | (anybody && choose_some(&self.scheduler, map.clone(), TASKS_PER_PASS).await?)
        {}
        if anybody { self.planner.run(&self.scheduler, map).await } else { Ok(()) }
    }

    /// Makes the planner plan again if tasks were withdrawn. Returns whether more tasks may have to
    /// be withdrawn.
    fn note_withdrawn(&self, withdrawn: u64) -> bool {
        if withdrawn > 0 {
            self.planner.forget();
        }
        i64::try_from(withdrawn).is_ok_and(|count| count == TASKS_PER_PASS)
    }

    /// Returns whether any agent can get work, and stores the cause if none can.
    async fn say_whether_anybody_takes_work(&self) -> anyhow::Result<bool> {
        let mut tx = self.scheduler.begin().await?;
        let nobody = unmet_and_wait_causes::nobody(&mut tx).await.context("look who takes work")?;
        unmet_and_wait_causes::close(&mut tx, Stage::Choosing, nobody).await.context("say why tasks wait")?;
        tx.commit().await.context("commit why tasks wait")?;
        Ok(nobody.is_none())
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

/// Assigns a limited number of tasks. Returns `true` if more tasks may be waiting.
async fn choose_some(scheduler: &Leader, map: Option<Arc<CurrentMap>>, limit: i64) -> anyhow::Result<bool> {
    let mut tx = scheduler.begin().await?;
    let waiting = assignments::waiting(&mut tx, Pool::EachByItself, limit).await;
    let waiting = waiting.context("read located tasks")?;
    if waiting.is_empty() {
        return Ok(false);
    }
    let mut agents = agents_and_loads::available(&mut tx).await.context("read available agents")?;
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
    let facts =
        past_crawls_and_site_facts::of_tasks(&mut tx, &tasks).await.context("read what is known of the sites")?;
    let mut admission = Admission::read(&mut tx, waiting.iter().map(|task| task.batch)).await?;
    let alarm = quarantines_and_contradictions::alarm(&mut tx).await.context("read the alarm")?;
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
        if may_be
            && distance_strategies::unsure(&candidates)
            && costs_no_time(waits(&candidates, choice.agent), confirming)
        {
            unsure.push(ConfirmationRequest { task: task.task, site: task.site, patience: Some(confirming) });
            continue;
        }
        let alarmed = alarm.is_some() && task.strategy.needs_distance();
        let mut choice =
            Choice { fallback: Fallback::stored(task.unmeasured.as_ref(), choice.fallback, alarmed), ..choice };
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

/// The choice for one task, its seed, and its cause.
fn chosen_for(
    task: &WaitingTask,
    facts: &SiteFacts,
    known: &Known,
    candidates: &[Candidate],
    alarm: Option<&str>,
) -> Option<(Choice, u64, ChoiceReasons)> {
    let seed = seed::of_choice(task.task, task.choices);
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
