//! Chooses an agent for every located task.
//!
//! The choice itself is `strategy`, pure; this pass only gathers what it needs to know and records what it said. A
//! measured round trip beats a predicted one. Agents without an active session, or that drain, are no candidates.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context;

use crate::model::{SiteId, Strategy, TaskId};
use crate::seed;
use crate::store::assignments::{self, Waiting};
use crate::store::{alarms, loads, parkings, quarantines};
use crate::strategy::{self, Candidate, Choice};

use super::duty::OnDuty;
use super::fleet::{PASSING, explain_nobody};
use super::known::Known;
use super::refined::Current;

/// Tasks chosen for in one transaction: bounds how long their rows stay locked, to well under a second.
const TASKS_PER_PASS: i64 = 500;

/// The chooser.
#[derive(Debug)]
pub struct Assign {
    scheduler: OnDuty,
}

impl Assign {
    /// Chooses for this scheduler.
    pub fn new(scheduler: OnDuty) -> Self {
        Self { scheduler }
    }

    /// One pass: as many transactions as there are bounded batches waiting.
    ///
    /// # Errors
    /// When the database fails; what was not committed is chosen in the next pass.
    pub async fn run_once(&self) -> anyhow::Result<()> {
        // Before any row is locked: the first choice on a new map makes it, which takes a second.
        let map = self.scheduler.maps.current(&self.scheduler).await?;
        self.call_parked().await?;
        // What is withdrawn is chosen for at once, however much more there is to withdraw.
        while self.withdraw_some().await? | self.choose_some(map.clone()).await? {}
        Ok(())
    }

    /// Calls the parked tasks whose turn has come.
    async fn call_parked(&self) -> anyhow::Result<()> {
        let cap = self.scheduler.config.politeness.crawls_at_address;
        let mut tx = self.scheduler.begin().await?;
        let called = parkings::call(&mut tx, cap, TASKS_PER_PASS).await.context("call parked tasks")?;
        tx.commit().await.context("commit the tasks called")?;
        if called > 0 {
            tracing::debug!(called, "the turn of parked tasks has come");
        }
        Ok(())
    }

    /// Takes back one bounded batch of what waits at agents that are gone; `true` when there may be more.
    async fn withdraw_some(&self) -> anyhow::Result<bool> {
        let mut tx = self.scheduler.begin().await?;
        let patience = self.scheduler.config.lease.grace;
        let withdrawn = assignments::withdraw_from_unavailable(&mut tx, patience, TASKS_PER_PASS)
            .await
            .context("withdraw assignments of lost agents")?;
        tx.commit().await.context("commit withdrawn assignments")?;
        if withdrawn > 0 {
            tracing::info!(withdrawn, "tasks of agents that are gone, drain or hung up are chosen for anew");
        }
        Ok(i64::try_from(withdrawn).is_ok_and(|count| count == TASKS_PER_PASS))
    }

    /// Chooses for one bounded batch; `true` when more may wait.
    async fn choose_some(&self, map: Option<Arc<Current>>) -> anyhow::Result<bool> {
        let mut tx = self.scheduler.begin().await?;
        let confirmed_within = self.scheduler.config.measure.site_max_age;
        let waiting =
            assignments::waiting(&mut tx, confirmed_within, TASKS_PER_PASS).await.context("read located tasks")?;
        if waiting.is_empty() {
            return Ok(false);
        }
        let mut agents = loads::available(&mut tx).await.context("read available agents")?;
        if agents.is_empty() {
            explain_nobody(&mut tx).await.context("explain waiting tasks")?;
            tx.commit().await.context("commit reasons")?;
            return Ok(false);
        }
        let full = i64::try_from(waiting.len()).is_ok_and(|count| count == TASKS_PER_PASS);
        let (broken, waiting): (Vec<Waiting>, Vec<Waiting>) = waiting.into_iter().partition(|task| task.broken_off);
        if !broken.is_empty() {
            let broken: Vec<TaskId> = broken.iter().map(|task| task.task).collect();
            alarms::park(&mut tx, &broken).await.context("park tasks of sites that were broken off")?;
        }
        let sites: Vec<SiteId> = waiting.iter().map(|task| task.site).collect();
        let known = Known::read(&mut tx, &sites, &agents, map).await?;
        let alarm = quarantines::alarm(&mut tx).await.context("read the alarm")?;
        let mut chosen = BTreeSet::new();
        for task in &waiting {
            let candidates = known.candidates(task.site, &agents);
            let Some((choice, seed, note)) = chosen_for(task, &known, &candidates, alarm.is_some()) else { continue };
            // What kept the site from being measured says more than that no distance is known.
            let unmeasured = task.reason.as_ref().filter(|reason| !PASSING.contains(&reason.as_str()));
            let alarmed = alarm.as_ref().filter(|_| task.strategy.needs_distance());
            let fallback = alarmed.or(choice.fallback.as_ref().map(|generic| unmeasured.unwrap_or(generic)));
            assignments::insert(&mut tx, task.task, seed, &choice, fallback.map(String::as_str))
                .await
                .context("record an assignment")?;
            if let Some(note) = note {
                assignments::annotate(&mut tx, task.task, &note).await.context("note how the strategy was followed")?;
            }
            if let Some(agent) = agents.iter_mut().find(|agent| agent.agent == choice.agent) {
                agent.load = agent.load.saturating_add(1);
            }
            chosen.insert(choice.agent);
        }
        tx.commit().await.context("commit assignments")?;
        tracing::debug!(tasks = waiting.len(), agents = chosen.len(), "assigned tasks");
        self.scheduler.wakes.wake_agents(chosen);
        Ok(full)
    }
}

/// The choice for one task, its seed, and what to note of it. While there is an alarm distances are not trusted.
fn chosen_for(
    task: &Waiting,
    known: &Known,
    candidates: &[Candidate],
    alarm: bool,
) -> Option<(Choice, u64, Option<String>)> {
    let seed = draw_seed(task);
    if alarm && task.strategy.needs_distance() {
        return Some((strategy::choose(Strategy::Random, candidates, seed)?, seed, None));
    }
    if let Some((former, name)) = &task.former
        && let Some(choice) = strategy::choose_next(former, candidates)
    {
        let note = format!("the next candidate: {name}, chosen before, did not begin it or gave it back");
        return Some((choice, seed, Some(note)));
    }
    if let Some((choice, note)) = spread(known, task, candidates, seed) {
        return Some((choice, seed, Some(note)));
    }
    let choice = strategy::choose(task.strategy, candidates, seed)?;
    let note = passed_over(&choice);
    Some((choice, seed, note))
}

/// Says so where the nearest candidates were full and the chosen one was not.
fn passed_over(choice: &Choice) -> Option<String> {
    let has_room = |agent| choice.candidates.iter().any(|one| one.agent == agent && one.level().has_room());
    let full = choice.candidates.iter().filter(|one| !one.level().has_room()).count();
    (full > 0 && has_room(choice.agent))
        .then(|| format!("{full} of {} candidates had no room", choice.candidates.len()))
}

/// The choice for a site that probably stands in several places, and what to note; `None` where the strategy does not go
/// by distance, or no distance is known.
fn spread(known: &Known, task: &Waiting, candidates: &[Candidate], seed: u64) -> Option<(Choice, String)> {
    let suspicion = known.suspicions.get(&task.site).filter(|_| task.strategy.needs_distance())?;
    let choice = strategy::choose_among_near(task.strategy, candidates, seed)?;
    let (confidence, near) = (suspicion.confidence, choice.candidates.len());
    let note = format!("in several places (confidence {confidence:.2}): the freest of {near} near agents");
    Some((choice, note))
}

/// The seed of a task's draw: the same for the same task and number of former choices, so that a choice can be
/// replayed, and unrelated between neighbouring tasks.
fn draw_seed(task: &Waiting) -> u64 {
    seed::spread(task.task.get().cast_unsigned() ^ task.choices.cast_unsigned().rotate_left(48))
}
