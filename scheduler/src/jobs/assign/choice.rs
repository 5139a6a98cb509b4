//! Runs the job's passes, and chooses an agent for each located task by itself, or sends the task's
//! site to confirmation.
//!
//! A pass releases held tasks, withdraws tasks, chooses agents, and lets the planner plan.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt as _;
use sqlx::types::ipnet::IpNet;

use crate::config::{Config, Draws};
use crate::jobs::assign::confirmation::{Unconfirmed, costs_no_time, hold_unconfirmed, may_be_confirmed};
use crate::jobs::assign::distances::{DistanceInput, Known};
use crate::jobs::assign::exclusions_and_holds::{
    Admission, hold_ahead, hold_broken, release_held, release_unmet, withdraw_excluded, withdraw_unavailable,
};
use crate::jobs::assign::plan_windows::Planner;
use crate::jobs::leadership::Leader;
use crate::jobs::predictor::Predictor;
use crate::model::{AgentId, BatchId, ChoiceCause, ChoiceReasons, Fallback, SiteId, Stage, Strategy, TaskId, seed};
use crate::store::assignments::agents_and_loads::{self, AvailableAgent};
use crate::store::assignments::{self, Assignment, Pool, WaitingTask, past_crawls_and_site_facts};
use crate::store::measurements::quarantines_and_contradictions;
use crate::store::tasks::confirmations::{self, ConfirmationRequest, ConfirmationState};
use crate::store::tasks::unmet_and_wait_causes;
use crate::store::{Locked, Tx};
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
        let predictor = self.scheduler.maps.predictor(&self.scheduler).await?;
        if release_held(&self.scheduler, &self.next_address, TASKS_PER_PASS).await? {
            self.planner.forget();
        }
        release_unmet(&self.scheduler, TASKS_PER_PASS).await?;
        while self.note_withdrawn(withdraw_excluded(&self.scheduler, TASKS_PER_PASS).await?) {}
        // Agents whose row somebody has locked, for example by hand. Their tasks go to others.
        let mut busy = BTreeSet::new();
        // Tasks that are withdrawn are assigned again before further tasks are withdrawn.
        while self.note_withdrawn(withdraw_unavailable(&self.scheduler, TASKS_PER_PASS).await?)
            | (anybody && choose_some(&self.scheduler, &predictor, &mut busy, TASKS_PER_PASS).await?)
        {}
        if anybody { self.planner.run(&self.scheduler, &predictor).await } else { Ok(()) }
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
        let look = self.scheduler.tx("look who takes work", |tx| {
            async move {
                let nobody = unmet_and_wait_causes::nobody(tx).await?;
                unmet_and_wait_causes::close(tx, Stage::Choosing, nobody).await?;
                Ok(nobody)
            }
            .boxed()
        });
        let nobody = look.await?;
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

/// Assigns a limited number of tasks, none of them to `busy` agents. Returns `true` if more tasks may
/// be waiting. Adds the agents whose row another transaction has locked to `busy`. No row stays
/// locked while agents are chosen, which takes half a millisecond per site.
async fn choose_some(
    scheduler: &Leader,
    predictor: &Predictor,
    busy: &mut BTreeSet<AgentId>,
    limit: i64,
) -> anyhow::Result<bool> {
    let config = &scheduler.config;
    let omitted = &*busy;
    let read =
        scheduler.tx("read located tasks", |tx| ChoiceInput::read(tx, config, predictor, omitted, limit).boxed());
    let Some(input) = read.await? else { return Ok(false) };
    let (full, admission) = (input.full, input.admission.clone());
    let (wanted, tasks) = (input.wanted, input.waiting.len());
    let (draws, confirming) = (config.draws, config.confirming());
    let choices = scheduler.compute(move || input.choose(draws, confirming)).await?;
    let max_age = config.measure.site_max_age;
    let store = scheduler.tx("assign tasks", |tx| choices.store(tx, admission.clone(), max_age).boxed());
    let Stored { chosen, locked } = store.await?;
    if wanted || !choices.unsure.is_empty() {
        scheduler.wakes.confirm.notify_one();
    }
    tracing::debug!(tasks, agents = chosen.len(), "assigned tasks");
    scheduler.wakes.wake_agents(chosen);
    let others_may_take_them = !locked.is_empty();
    busy.extend(locked);
    Ok(full || others_may_take_them)
}

/// What the choices for some tasks depend on.
struct ChoiceInput {
    waiting: Vec<WaitingTask>,
    agents: Vec<AvailableAgent>,
    confirmation_states: HashMap<SiteId, ConfirmationState>,
    distances: DistanceInput,
    facts: HashMap<TaskId, SiteFacts>,
    admission: Admission,
    alarm: Option<String>,
    /// Whether a confirmation was requested.
    wanted: bool,
    /// Whether more tasks may be waiting.
    full: bool,
}

impl ChoiceInput {
    /// Reads a limited number of located tasks, and holds those for which no agent is chosen now.
    /// `None` if no task or no agent is there.
    async fn read(
        tx: &mut Tx<'_>,
        config: &Config,
        predictor: &Predictor,
        omitted: &BTreeSet<AgentId>,
        limit: i64,
    ) -> anyhow::Result<Option<Self>> {
        let (waiting, locked) = assignments::waiting(tx, Pool::EachByItself, limit).await?;
        if waiting.is_empty() {
            return Ok(None);
        }
        let mut agents = agents_and_loads::available(tx).await?;
        agents.retain(|agent| !omitted.contains(&agent.agent));
        if agents.is_empty() {
            return Ok(None);
        }
        let full = i64::try_from(waiting.len()).is_ok_and(|count| count == limit);
        let waiting = hold_broken(tx, waiting, &locked).await?;
        let Unconfirmed { waiting, confirmation_states, wanted } =
            hold_unconfirmed(tx, config, waiting, &locked).await?;
        let waiting = hold_ahead(tx, waiting, &locked, config.politeness.crawls_at_address).await?;
        let sites: Vec<SiteId> = waiting.iter().map(|task| task.site).collect();
        let tasks: Vec<TaskId> = waiting.iter().map(|task| task.task).collect();
        let distances = DistanceInput::read(tx, predictor, &sites, &agents).await?;
        let facts = past_crawls_and_site_facts::of_tasks(tx, &tasks).await?;
        let admission = Admission::read(tx, waiting.iter().map(|task| task.batch)).await?;
        let alarm = quarantines_and_contradictions::alarm(tx).await?;
        Ok(Some(Self { waiting, agents, confirmation_states, distances, facts, admission, alarm, wanted, full }))
    }

    /// Chooses an agent for each task, in the order of the tasks.
    fn choose(self, draws: Draws, confirming: Duration) -> Choices {
        let Self { waiting, mut agents, confirmation_states, distances, facts, mut admission, alarm, .. } = self;
        let known = distances.predict();
        let mut choices = Choices::default();
        for task in &waiting {
            let mut candidates = known.candidates(task.site, &agents, draws);
            candidates.retain(|candidate| admission.admits(task.batch, candidate.agent));
            if candidates.is_empty() {
                choices.unmet.push((task.batch, task.task));
            }
            let facts = facts.get(&task.task).cloned().unwrap_or_default();
            let Some((choice, seed, why)) = chosen_for(task, &facts, &known, &candidates, alarm.as_deref()) else {
                continue;
            };
            let asked = confirmation_states.contains_key(&task.site);
            let may_be =
                alarm.is_none() && task.former.is_none() && !asked && may_be_confirmed(task, &known.suspicions);
            if may_be
                && distance_strategies::unsure(&candidates)
                && costs_no_time(waits(&candidates, choice.agent), confirming)
            {
                let WaitingTask { task, site, .. } = *task;
                choices.unsure.push(ConfirmationRequest { task, site, patience: Some(confirming) });
                continue;
            }
            let alarmed = alarm.is_some() && task.strategy.needs_distance();
            let mut choice =
                Choice { fallback: Fallback::stored(task.unmeasured.as_ref(), choice.fallback, alarmed), ..choice };
            record_loads(&mut choice, &agents);
            admission.took(task.batch, choice.agent);
            now_has_one_more(&mut agents, choice.agent);
            let available = candidates.len();
            let assignment = Assignment { available, ..Assignment::new(seed, choice, why) };
            choices.made.push((task.batch, task.task, assignment));
        }
        choices
    }
}

/// What became of decisions.
struct Stored {
    /// The agents that got a task.
    chosen: BTreeSet<AgentId>,
    /// The agents that got none, because another transaction has locked their row.
    locked: BTreeSet<AgentId>,
}

/// The decisions about some tasks.
#[derive(Debug, Default)]
struct Choices {
    made: Vec<(BatchId, TaskId, Assignment)>,
    /// Sites to confirm while their tasks wait.
    unsure: Vec<ConfirmationRequest>,
    /// Tasks that no agent may crawl.
    unmet: Vec<(BatchId, TaskId)>,
}

impl Choices {
    /// Stores the decisions about those tasks that still wait. `admission` is what it was before
    /// the decisions.
    async fn store(&self, tx: &mut Tx<'_>, mut admission: Admission, max_age: Duration) -> anyhow::Result<Stored> {
        let made = self.made.iter().map(|(_, task, _)| *task);
        let others = self.unsure.iter().map(|unsure| unsure.task).chain(self.unmet.iter().map(|(_, task)| *task));
        let tasks: Vec<TaskId> = made.chain(others).collect();
        let waiting = assignments::still_waiting(tx, &tasks).await?;
        let (mut made, mut chosen) = (Vec::new(), BTreeSet::new());
        for (batch, task, assignment) in &self.made {
            let Some(task) = waiting.get(task) else { continue };
            let exclusions = admission.exclusions(tx, *batch).await?;
            admission.took(*batch, assignment.agent);
            chosen.insert(assignment.agent);
            made.push((*task, Assignment { exclusions, ..assignment.clone() }));
        }
        let locked = assignments::insert(tx, &made).await?;
        let mut unmet: BTreeMap<BatchId, Vec<Locked<TaskId>>> = BTreeMap::new();
        for (batch, task) in &self.unmet {
            if let Some(task) = waiting.get(task) {
                unmet.entry(*batch).or_default().push(*task);
            }
        }
        admission.set_aside(tx, &unmet).await?;
        let unsure: Vec<_> = self.unsure.iter().filter_map(|unsure| unsure.locked(&waiting)).collect();
        confirmations::want(tx, &unsure, max_age).await?;
        chosen.retain(|agent| !locked.contains(agent));
        Ok(Stored { chosen, locked })
    }
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

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::jobs::fixtures::Trial;
    use crate::store::fixtures;
    use crate::store::schedulers::Role;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_cancelled_while_agents_are_chosen_gets_no_agent(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        let batch = trial.batch("b", "gnp-top3").await;
        let (cancelled, other) = (trial.located(batch, "a.cn").await, trial.located(batch, "b.cn").await);
        let leader = trial.on(Role::Plan);
        let predictor = &leader.maps.predictor(&leader).await.expect("no map");
        let (config, none) = (&leader.config, BTreeSet::new());
        let read = leader.tx("read", |tx| ChoiceInput::read(tx, config, predictor, &none, TASKS_PER_PASS).boxed());
        let input = read.await.expect("read").expect("two tasks");
        // No row is locked meanwhile, so this statement does not wait.
        trial.execute_for("update tasks set state = 'cancelled' where id = $1", cancelled.get()).await;
        let admission = input.admission.clone();
        let choices = input.choose(Draws::Balanced, Duration::ZERO);
        assert_eq!(choices.made.len(), 2);
        let max_age = config.measure.site_max_age;
        let store = leader.tx("store", |tx| choices.store(tx, admission.clone(), max_age).boxed());
        assert_eq!(store.await.expect("store").chosen.len(), 1);
        assert_eq!(trial.state(cancelled).await.0, "cancelled");
        assert_eq!(trial.state(other).await.0, "assigned");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn while_an_agents_row_is_locked_by_hand_the_others_get_all_tasks(pool: PgPool) {
        let mut hand = fixtures::begin(&pool).await;
        let trial = Trial::new(pool, 2).await;
        let batch = trial.batch("b", "random").await;
        let mut tasks = Vec::new();
        for site in 0..20 {
            tasks.push(trial.located(batch, &format!("site{site}.cn")).await);
        }
        let locked = trial.agents[0].0.get();
        fixtures::execute_for(&mut hand, "select from agents where id = $1 for update", locked).await;
        trial.assign().await;
        for task in tasks {
            assert_eq!(trial.at(task).await, Some(1));
        }
    }
}
