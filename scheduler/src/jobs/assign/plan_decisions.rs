//! Reads the input of an `earliest-finish` plan, decides which tasks begin now and at which agent,
//! and which sites are confirmed while their tasks wait, and stores these decisions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::config::Draws;
use crate::jobs::assign::confirmation::{costs_no_time, may_be_confirmed};
use crate::jobs::assign::distances::{DistanceInput, Known};
use crate::jobs::assign::exclusions_and_holds::Admission;
use crate::jobs::predictor::Predictor;
use crate::model::{AgentId, BatchId, ChoiceCause, ChoiceReasons, Fallback, Rtt, SiteId, Strategy, TaskId, seed};
use crate::store::assignments::agents_and_loads::AvailableAgent;
use crate::store::assignments::agents_and_loads::{self, AgentCrawl};
use crate::store::assignments::{self, Assignment, WaitingTask, past_crawls_and_site_facts};
use crate::store::leases::preemptions::{self, PreemptedLease};
use crate::store::measurements::quarantines_and_contradictions;
use crate::store::sites::addresses;
use crate::store::tasks::confirmations::{ConfirmationRequest, ConfirmationState};
use crate::store::{Locked, Tx};
use crate::strategy::candidate_and_site::LISTED;
use crate::strategy::candidate_and_site::SiteFacts;
use crate::strategy::crawl_duration;
use crate::strategy::plan::{self, Job, PlannedSite};
use crate::strategy::{self, Candidate, Choice, Speed, distance_strategies, explored, speeds, usual_size, with_speeds};

/// The input of a plan.
pub(super) struct PlanInput {
    pub(super) waiting: Vec<WaitingTask>,
    /// The agents that can get work. Lists of candidates keep this order.
    pub(super) agents: Vec<AgentId>,
    facts: HashMap<TaskId, SiteFacts>,
    /// Pages and bytes assumed for a site of unknown size.
    usual: Option<(u32, u64)>,
    /// Number of stored crawls of each waiting task's site.
    pub(super) crawls: Vec<usize>,
    /// Tasks whose lease was preempted.
    preempted: HashMap<TaskId, PreemptedLease>,
    /// When each agent's slots become free, in the order of the agents.
    frees: Vec<Vec<Duration>>,
    /// Whether each waiting task's site may be confirmed while the task waits.
    confirmable: Vec<bool>,
    /// Why distances are not trusted, if there is an alarm.
    alarm: Option<String>,
}

pub(super) struct PathDistances {
    known: Known,
    agents: Vec<AvailableAgent>,
    speeds: HashMap<AgentId, Speed>,
}

impl PathDistances {
    /// The agents as candidates for one waiting task.
    pub(super) fn candidates(&self, task: &WaitingTask) -> Vec<Candidate> {
        with_speeds(self.known.candidates(task.site, &self.agents, Draws::Balanced), &self.speeds)
    }
}

/// What the distances in a plan are computed from.
pub(super) struct PathInput {
    distances: DistanceInput,
    agents: Vec<AvailableAgent>,
    speeds: HashMap<AgentId, Speed>,
}

impl PathInput {
    pub(super) fn predict(self) -> PathDistances {
        PathDistances { known: self.distances.predict(), agents: self.agents, speeds: self.speeds }
    }
}

impl PlanInput {
    pub(super) async fn read(
        tx: &mut Tx<'_>,
        predictor: &Predictor,
        (waiting, confirmation_states): (Vec<WaitingTask>, &HashMap<SiteId, ConfirmationState>),
        agents: Vec<AvailableAgent>,
    ) -> anyhow::Result<(Self, PathInput)> {
        let sites: Vec<SiteId> = waiting.iter().map(|task| task.site).collect();
        let tasks: Vec<TaskId> = waiting.iter().map(|task| task.task).collect();
        let ids: Vec<AgentId> = agents.iter().map(|agent| agent.agent).collect();
        let distances = DistanceInput::read(tx, predictor, &sites, &agents).await?;
        let facts = past_crawls_and_site_facts::of_tasks(tx, &tasks).await?;
        let crawls = past_crawls_and_site_facts::crawls(tx, &ids).await?;
        let held = agents_and_loads::held(tx).await?;
        let alarm = quarantines_and_contradictions::alarm(tx).await?;
        let preempted = preemptions::of_last_leases(tx, &tasks).await?;
        let confirmable = waiting.iter().map(|task| {
            let asked = preempted.contains_key(&task.task) || confirmation_states.contains_key(&task.site);
            alarm.is_none() && !asked && may_be_confirmed(task, &distances.suspicions)
        });
        let confirmable = confirmable.collect();
        let mut held_by: HashMap<AgentId, Vec<AgentCrawl>> = HashMap::new();
        for one in held {
            held_by.entry(one.agent).or_default().push(one);
        }
        let frees = agents.iter().map(|agent| frees(agent, held_by.get(&agent.agent).map_or(&[], Vec::as_slice)));
        let frees = frees.collect();
        let (usual, speeds) = (usual_size(&crawls), speeds(&crawls));
        let input =
            Self { waiting, agents: ids, facts, usual, crawls: Vec::new(), preempted, frees, confirmable, alarm };
        Ok((input, PathInput { distances, agents, speeds }))
    }

    /// Takes over from the predicted distances how often each site was crawled.
    pub(super) fn count_crawls(&mut self, ways: &PathDistances) {
        self.crawls = self.waiting.iter().map(|task| ways.known.crawls(task.site)).collect();
    }

    /// The agents admitted to at least one waiting task.
    pub(super) fn wanted(&self, admission: &Admission) -> BTreeSet<AgentId> {
        let batches: BTreeSet<BatchId> = self.waiting.iter().map(|task| task.batch).collect();
        let there = self.agents.iter().copied();
        there.filter(|agent| batches.iter().any(|batch| admission.admits(*batch, *agent))).collect()
    }
}

impl PlanInput {
    /// The time that each agent would need for one waiting task. The time is `None` for all agents
    /// if no distance of the site is known or trusted, and for each agent that the batch excludes.
    fn job(&self, index: usize, candidates: &[Candidate], tried: Option<AgentId>, admission: &Admission) -> Job {
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

/// When each of an agent's slots becomes free, computed from the agent's crawls. A crawl without a
/// prediction is assumed to take as long as the agent's crawls usually do.
fn frees(agent: &AvailableAgent, held: &[AgentCrawl]) -> Vec<Duration> {
    let takes = |held: &AgentCrawl| held.takes.unwrap_or(agent.pace);
    let mut under_way: Vec<Duration> =
        held.iter().filter_map(|held| Some(crawl_duration::remaining(takes(held), held.under_way?))).collect();
    under_way.sort_unstable_by_key(|remaining| Reverse(*remaining));
    let waiting: Vec<Duration> = held.iter().filter(|held| held.under_way.is_none()).map(takes).collect();
    crawl_duration::frees(usize::try_from(agent.capacity).unwrap_or(usize::MAX), &under_way, &waiting)
}

/// A task whose agent is decided.
pub(super) struct DecidedTask {
    /// Index of the task in [`PlanInput::waiting`].
    pub(super) job: usize,
    pub(super) choice: Choice,
    /// Predicted duration of the crawl.
    pub(super) takes: Option<Duration>,
    /// Whether the agent was chosen for a trial, because it may be nearer than the nearest measured
    /// agent.
    explores: bool,
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
            is_unsure.push(self.confirmable[index] && distance_strategies::unsure(&admitted));
            jobs.push(job);
            tried.push(tries);
        }
        for planned in plan::plan(&jobs, &self.frees) {
            if planned.begins <= plan::AHEAD
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
        let tried =
            explored(nearest, candidates, *self.crawls.get(index)?, seed::of_choice(task.task, task.choices))?.agent;
        admission.admits(task.batch, tried).then_some(tried)
    }

    /// Draws a random agent, because no distance is known or trusted.
    fn draw(&self, task: &WaitingTask, among: &[Candidate]) -> Option<Choice> {
        if let Some(alarm) = &self.alarm {
            return strategy::choose_during_alarm(alarm, among, seed::of_choice(task.task, task.choices));
        }
        let facts = self.facts.get(&task.task).cloned().unwrap_or_default();
        strategy::choose(task.strategy, &facts.site(self.usual), among, seed::of_choice(task.task, task.choices))
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
        tx: &mut Tx<'_>,
        admission: &mut Admission,
        cap: u32,
        decided: &[(Locked<TaskId>, &DecidedTask)],
        locked: &HashSet<Locked<TaskId>>,
    ) -> anyhow::Result<(BTreeSet<AgentId>, bool)> {
        let tasks: Vec<_> = decided.iter().map(|(task, _)| *task).collect();
        let held = addresses::hold(tx, &tasks, cap).await?;
        let (mut chosen, mut made) = (BTreeSet::new(), Vec::new());
        for (locked, DecidedTask { job, choice, takes, explores }) in
            decided.iter().filter(|(task, _)| !held.contains(task))
        {
            let task = &self.waiting[*job];
            // An earlier decision may have used up a quota.
            if !admission.admits(task.batch, choice.agent) {
                continue;
            }
            let fallback = Fallback::stored(task.unmeasured.as_ref(), choice.fallback.clone(), self.alarm.is_some());
            let exclusions = admission.exclusions(tx, task.batch).await?;
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
            let assignment = Assignment::new(seed::of_choice(task.task, task.choices), choice, why);
            made.push((*locked, Assignment { takes: *takes, available, exclusions, ..assignment }));
        }
        assignments::insert(tx, &made).await?;
        let nobody = |task: &&WaitingTask| !self.agents.iter().any(|agent| admission.admits(task.batch, *agent));
        let mut unmet: BTreeMap<BatchId, Vec<Locked<TaskId>>> = BTreeMap::new();
        let decided: HashSet<Locked<TaskId>> = tasks.into_iter().collect();
        for task in self.waiting.iter().filter(nobody) {
            if let Some(undecided) = locked.get(&task.task).filter(|task| !decided.contains(*task)) {
                unmet.entry(task.batch).or_default().push(*undecided);
            }
        }
        admission.set_aside(tx, &unmet).await?;
        Ok((chosen, !unmet.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use crate::strategy::Spread;

    use super::*;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_that_is_for_who_might_be_nearer_says_that_it_explores(pool: PgPool) {
        let admission = Admission::read(&mut pool.acquire().await.expect("connect"), []).await.expect("read");
        let agents = [AgentId::new(1), AgentId::new(2)];
        let rtt = |millis| Rtt::try_from_millis_f64(millis).ok();
        let known = Candidate { measured: rtt(20.0), ..Candidate::new(agents[0], 1) };
        let unsure = Candidate { predicted: rtt(22.0), spread: Some(Spread::new(0.4)), ..Candidate::new(agents[1], 1) };
        let mut explored = 0;
        for task in 1..=40 {
            let input = PlanInput {
                waiting: vec![WaitingTask {
                    task: TaskId::new(task),
                    site: SiteId::new(1),
                    batch: BatchId::new(1),
                    strategy: Strategy::EarliestFinish,
                    unmeasured: None,
                    choices: 0,
                    former: None,
                    parted: None,
                    waited: Duration::ZERO,
                }],
                facts: HashMap::new(),
                usual: None,
                agents: agents.to_vec(),
                crawls: vec![2],
                preempted: HashMap::new(),
                frees: vec![vec![Duration::ZERO]; 2],
                confirmable: vec![false],
                alarm: None,
            };
            let decided = input.decided(&admission, Duration::from_secs(12), |_| vec![known, unsure]).decided;
            assert_eq!(decided[0].explores, decided[0].choice.agent == agents[1]);
            explored += usize::from(decided[0].explores);
        }
        assert!((10..=30).contains(&explored), "of 40, one in two: {explored}");
    }
}
