//! Plans the tasks of `earliest-finish` together: which agent takes which, and in what order.
//!
//! Only what would begin within [`schedule::AHEAD`] is assigned by a plan. The rest stays located and is planned anew in the next
//! pass, with what the crawls taught that ended meanwhile: so the last sites of a batch go where they end soonest, and no queue is
//! long where a prediction was wrong. A plan that decides nothing is kept until something is signalled, or a slot is about to be
//! free. The plan itself is `strategy::schedule`, pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, ChoiceCause, Rtt, SiteId, Strategy, TaskId, Why};
use crate::store::assignments::{self, Assignment, Pool, Waiting};
use crate::store::confirmations::{Standing, Wanted};
use crate::store::facts::{self, SiteFacts};
use crate::store::loads::{self, Available, Held};
use crate::store::recalls::{self, Recalled};
use crate::store::{addresses, confirmations, quarantines};
use crate::strategy::schedule::{self, Job, Planned};
use crate::strategy::{self, Candidate, Choice, Crawl, Speed, explored};

use super::admission::Admission;
use super::assign::{Unconfirmed, draw_seed, fallback, hold_broken, hold_unconfirmed, is_to_be_confirmed};
use super::duty::OnDuty;
use super::known::Known;
use super::refined::{Current, Maps};
use super::straggle;

/// Tasks planned together: bounds a pass to a second, as the distances of a site take half a millisecond. Of a larger batch the oldest
/// are planned first.
const WINDOW: i64 = 500;
/// Agents that are listed with a choice: the one that takes the site, and who would have ended it next.
const LISTED: usize = 3;
/// Windows of one pass, at most: each takes as long as one. Of batches that fill more for agents that are busy the others' turn comes when
/// those have less to wait for.
const WINDOWS: usize = 8;
/// How long a plan is kept at most. What changes it and is not signalled waits for this: a site that was measured anew, an hour of a quota
/// that has passed, a signal that was lost.
const KEPT_AT_MOST: Duration = Duration::from_secs(60);

/// Makes plans, and keeps the newest while another would come out the same.
#[derive(Debug, Default)]
pub(super) struct Planner {
    kept: Mutex<Option<Kept>>,
}

/// A plan that moved no task.
#[derive(Debug)]
struct Kept {
    /// Signals that had come before.
    signals: u64,
    /// When its first task is to be decided.
    until: Instant,
    seen: Seen,
}

impl Kept {
    /// A plan that was begun then; `None` where it moved a task, or there was none: the next may move more.
    fn new(signals: u64, began: Instant, seen: &Seen) -> Option<Self> {
        let first = seen.first.map_or(KEPT_AT_MOST, |begins| begins.saturating_sub(schedule::AHEAD));
        let until = began + first.min(KEPT_AT_MOST);
        let kept = || Self { signals, until, seen: seen.clone() };
        (!seen.moved && !seen.batches.is_empty()).then(kept)
    }

    fn stands(&self, signals: u64, now: Instant) -> bool {
        self.signals == signals && now < self.until
    }
}

impl Planner {
    /// One pass.
    pub(super) async fn run(&self, scheduler: &OnDuty, map: Option<Arc<Current>>) -> anyhow::Result<()> {
        let (signals, now) = (scheduler.wakes.signals(), Instant::now());
        let stands = self.kept().as_ref().filter(|kept| kept.stands(signals, now)).map(|kept| kept.seen.clone());
        let seen = match stands {
            Some(seen) => seen,
            None => {
                let mut seen = Seen::default();
                for _ in 0..WINDOWS {
                    if !window(scheduler, map.clone(), &mut seen).await? {
                        break;
                    }
                }
                *self.kept() = Kept::new(signals, now, &seen);
                seen
            }
        };
        if seen.idles {
            straggle::run(scheduler, scheduler.begin().await?, map, &seen.wanted).await?;
        }
        Ok(())
    }

    /// Has the next pass make a plan: tasks that may be planned have changed.
    pub(super) fn forget(&self) {
        *self.kept() = None;
    }

    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the windows of a pass have shown.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// The batches whose tasks were planned.
    batches: BTreeSet<BatchId>,
    /// The agents that may have any of them.
    wanted: BTreeSet<AgentId>,
    /// Whether anything was decided.
    decided: bool,
    /// Whether a task was decided, held or taken by somebody else.
    moved: bool,
    /// When the first begins of those that were left undecided, from the plan.
    first: Option<Duration>,
    /// Whether somebody has nothing to do but what is under way elsewhere: nothing was decided, and it may have nothing of what waits.
    idles: bool,
}

/// Plans the oldest tasks of the batches that were not seen. `true` where they are a whole window and some agent may have none of them: it
/// shall not idle because of what it is not for.
async fn window(scheduler: &OnDuty, map: Option<Arc<Current>>, seen: &mut Seen) -> anyhow::Result<bool> {
    let mut tx = scheduler.begin().await?;
    let without: Vec<BatchId> = seen.batches.iter().copied().collect();
    let pool = Pool::Together { without: &without };
    let waiting = assignments::waiting(&mut tx, pool, WINDOW).await.context("read tasks to plan")?;
    if waiting.is_empty() {
        seen.idles = !seen.decided;
        return Ok(false);
    }
    let agents = loads::available(&mut tx).await.context("read available agents")?;
    if agents.is_empty() {
        return Ok(false);
    }
    let full = i64::try_from(waiting.len()).is_ok_and(|count| count == WINDOW);
    let read = waiting.len();
    seen.batches.extend(waiting.iter().map(|task| task.batch));
    let waiting = hold_broken(&mut tx, waiting).await?;
    let Unconfirmed { waiting, standing, mut wanted } = hold_unconfirmed(&mut tx, &scheduler.config, waiting).await?;
    let admission = Admission::read(&mut tx, waiting.iter().map(|task| task.batch)).await?;
    let fleet: Vec<AgentId> = agents.iter().map(|agent| agent.agent).collect();
    let sight = Sight::read(&mut tx, &scheduler.maps, &admission, (waiting, &standing), agents, map).await?;
    // No row is locked while the plan is made: that takes up to a second.
    tx.commit().await.context("commit what is held")?;
    let confirming = scheduler.config.confirming();
    let planned = tokio::task::spawn_blocking(move || {
        let decisions = sight.decided(&admission, confirming);
        (sight, admission, decisions)
    });
    let (sight, mut admission, Decisions { mut decided, mut unsure, first }) = planned.await.context("plan")?;
    let mut tx = scheduler.begin().await?;
    let tasks: Vec<TaskId> = sight.waiting.iter().map(|task| task.task).collect();
    let waiting = assignments::still_waiting(&mut tx, &tasks).await.context("lock the planned tasks")?;
    decided.retain(|decided| waiting.contains(&tasks[decided.job]));
    unsure.retain(|wanted: &Wanted| waiting.contains(&wanted.task));
    let cap = scheduler.config.politeness.crawls_at_address;
    let max_age = scheduler.config.measure.site_max_age;
    confirmations::want(&mut tx, &unsure, max_age).await.context("want unsure sites confirmed")?;
    wanted |= !unsure.is_empty();
    let (chosen, unmet) = sight.carry_out(&mut tx, &mut admission, cap, &decided, &waiting).await?;
    tx.commit().await.context("commit planned tasks")?;
    tracing::debug!(tasks = sight.waiting.len(), agents = chosen.len(), "planned tasks");
    if wanted {
        scheduler.wakes.confirm.notify_one();
    }
    scheduler.wakes.wake_agents(chosen);
    // What waits now waits for slots that are taken. Who may have nothing of it has nothing else to do.
    seen.decided |= !decided.is_empty();
    seen.moved |= seen.decided || unmet || wanted || waiting.len() < read;
    seen.first = seen.first.into_iter().chain(first).min();
    seen.wanted.extend(sight.wanted(&admission));
    let spare = fleet.iter().any(|agent| !seen.wanted.contains(agent));
    seen.idles = spare && !seen.decided;
    Ok(spare && full)
}

/// What a plan is made from.
struct Sight {
    waiting: Vec<Waiting>,
    facts: HashMap<TaskId, SiteFacts>,
    /// Pages and bytes of a site of unknown size.
    usual: Option<(u32, u64)>,
    /// The agents as candidates, for each of the waiting.
    candidates: Vec<Vec<Candidate>>,
    /// Crawls of each one's site that are remembered.
    crawls: Vec<usize>,
    /// Those whose lease was asked for.
    recalled: HashMap<TaskId, Recalled>,
    /// When each agent's slots are free, in the order of the candidates.
    frees: Vec<Vec<Duration>>,
    /// Whether each one's site is to be confirmed if it has to wait anyway.
    unsure: Vec<bool>,
    /// Why distances are not trusted.
    alarm: Option<String>,
}

/// A task whose agent is decided.
struct Decided {
    /// Which of the waiting.
    job: usize,
    choice: Choice,
    /// How long the crawl is predicted to take.
    takes: Option<Duration>,
    /// Whether the agent is tried because it might be nearer than the best known.
    explores: bool,
}

/// What a plan comes to now.
#[derive(Default)]
struct Decisions {
    decided: Vec<Decided>,
    /// Sites that are confirmed while they wait, as they would for longer than that takes.
    unsure: Vec<Wanted>,
    /// When the first of the others begins, from now.
    first: Option<Duration>,
}

/// Why a crawl goes on elsewhere that was asked for.
fn taken_back(recalled: &Recalled, takes: Option<Duration>) -> ChoiceCause {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    ChoiceCause::TakenBack {
        from: recalled.name.clone(),
        remaining_ms: millis(recalled.here),
        takes_ms: takes.map(millis),
    }
}

impl Sight {
    async fn read(
        conn: &mut PgConnection,
        maps: &Maps,
        admission: &Admission,
        (waiting, standing): (Vec<Waiting>, &HashMap<SiteId, Standing>),
        agents: Vec<Available>,
        map: Option<Arc<Current>>,
    ) -> anyhow::Result<Self> {
        let sites: Vec<SiteId> = waiting.iter().map(|task| task.site).collect();
        let tasks: Vec<TaskId> = waiting.iter().map(|task| task.task).collect();
        let ids: Vec<AgentId> = agents.iter().map(|agent| agent.agent).collect();
        let known = Known::read(conn, maps, &sites, &agents, map).await?;
        let facts = facts::of_tasks(conn, &tasks).await.context("read what is known of the sites")?;
        let crawls = facts::crawls(conn, &ids).await.context("read the agents' crawls")?;
        let held = loads::held(conn).await.context("read what the agents hold")?;
        let alarm = quarantines::alarm(conn).await.context("read the alarm")?;
        let recalled = recalls::of_last_leases(conn, &tasks).await.context("read which leases were asked for")?;
        let speeds = speeds(&crawls);
        let candidates = waiting.iter().map(|task| with_speeds(known.candidates(task.site, &agents), &speeds));
        let candidates: Vec<Vec<Candidate>> = candidates.collect();
        let unsure = waiting.iter().zip(&candidates).map(|(task, among)| {
            let among = admitted(admission, task.batch, among);
            let may_be = alarm.is_none() && !recalled.contains_key(&task.task) && !standing.contains_key(&task.site);
            may_be && is_to_be_confirmed(task, &known, &among)
        });
        let unsure = unsure.collect();
        let mut held_by: HashMap<AgentId, Vec<Held>> = HashMap::new();
        for one in held {
            held_by.entry(one.agent).or_default().push(one);
        }
        let frees = agents.iter().map(|agent| frees(agent, held_by.get(&agent.agent).map_or(&[], Vec::as_slice)));
        let frees = frees.collect();
        let usual = facts::usual(&crawls);
        let crawls = waiting.iter().map(|task| known.crawls(task.site)).collect();
        Ok(Self { waiting, facts, usual, candidates, crawls, recalled, frees, unsure, alarm })
    }

    /// Records what is decided; returns the agents that got something, and whether nobody gets some task. What is decided and finds its
    /// address full is held; what waits for a slot has no place at its address yet.
    async fn carry_out(
        &self,
        conn: &mut PgConnection,
        admission: &mut Admission,
        cap: u32,
        decided: &[Decided],
        locked: &HashSet<TaskId>,
    ) -> anyhow::Result<(BTreeSet<AgentId>, bool)> {
        let tasks: Vec<TaskId> = decided.iter().map(|decided| self.waiting[decided.job].task).collect();
        let held = addresses::ahead::hold(conn, &tasks, cap).await.context("hold tasks whose address is full")?;
        let (mut chosen, mut made) = (BTreeSet::new(), Vec::new());
        for Decided { job, choice, takes, explores } in
            decided.iter().filter(|decided| !held.contains(&self.waiting[decided.job].task))
        {
            let task = &self.waiting[*job];
            // A quota may have been used up by what was decided before.
            if !admission.admits(task.batch, choice.agent) {
                continue;
            }
            let fallback = fallback(task, choice.fallback.clone(), self.alarm.as_deref());
            let exclusions = admission.exclusions(conn, task.batch).await?;
            let admitted =
                |all: &Vec<Candidate>| all.iter().filter(|one| admission.admits(task.batch, one.agent)).count();
            let available = self.candidates.first().map_or(0, admitted);
            let why = match self.recalled.get(&task.task) {
                Some(recalled) => Why { cause: taken_back(recalled, *takes), ..Why::default() },
                None if *explores => Why { cause: ChoiceCause::Explores, parted: task.parted.clone(), fallback: None },
                None => Why { parted: task.parted.clone(), ..Why::default() },
            };
            admission.took(task.batch, choice.agent);
            chosen.insert(choice.agent);
            let choice = Choice { fallback, ..choice.clone() };
            let assignment = Assignment::new(task.task, draw_seed(task), choice, why);
            made.push(Assignment { takes: *takes, available, exclusions, ..assignment });
        }
        assignments::insert(conn, &made).await.context("record assignments")?;
        let nobody =
            |task: &&Waiting, among: &[Candidate]| !among.iter().any(|one| admission.admits(task.batch, one.agent));
        let mut unmet: BTreeMap<BatchId, Vec<TaskId>> = BTreeMap::new();
        let decided: HashSet<TaskId> = tasks.into_iter().collect();
        for (task, _) in self.waiting.iter().zip(&self.candidates).filter(|(task, among)| nobody(task, among)) {
            if locked.contains(&task.task) && !decided.contains(&task.task) {
                unmet.entry(task.batch).or_default().push(task.task);
            }
        }
        admission.set_aside(conn, &unmet).await?;
        Ok((chosen, !unmet.is_empty()))
    }

    /// What the plan decides now: what would begin soon, and what no distance is known of.
    fn decided(&self, admission: &Admission, confirming: Duration) -> Decisions {
        let jobs: Vec<Job> = (0..self.waiting.len()).map(|index| self.job(index, admission)).collect();
        let Decisions { mut decided, mut unsure, mut first } = Decisions::default();
        for (index, (task, job)) in self.waiting.iter().zip(&jobs).enumerate() {
            if job.takes.iter().all(Option::is_none)
                && let Some(choice) = self.draw(task, &admitted(admission, task.batch, &self.candidates[index]))
            {
                decided.push(Decided { job: index, choice, takes: None, explores: false });
            }
        }
        for planned in schedule::plan(&jobs, &self.frees) {
            if planned.begins <= schedule::AHEAD
                && let Some(choice) = self.choice(&planned, &jobs[planned.job])
            {
                let takes = Some(planned.ends.saturating_sub(planned.begins));
                let explores = self.tried(planned.job, admission) == Some(choice.agent);
                decided.push(Decided { job: planned.job, choice, takes, explores });
                continue;
            }
            first = first.into_iter().chain([planned.begins]).min();
            if self.unsure[planned.job] && planned.begins >= confirming {
                let Waiting { task, site, .. } = self.waiting[planned.job];
                unsure.push(Wanted { task, site, patience: Some(confirming) });
            }
        }
        Decisions { decided, unsure, first }
    }

    /// The agents that may have any of what waits.
    fn wanted(&self, admission: &Admission) -> BTreeSet<AgentId> {
        let batches: BTreeSet<BatchId> = self.waiting.iter().map(|task| task.batch).collect();
        let there = self.candidates.first().into_iter().flatten().map(|one| one.agent);
        there.filter(|agent| batches.iter().any(|batch| admission.admits(*batch, *agent))).collect()
    }

    /// How long each agent would take for one of the waiting; nobody's time where no distance is known or trusted, nor an agent's that its
    /// batch excludes.
    fn job(&self, index: usize, admission: &Admission) -> Job {
        let candidates = &self.candidates[index];
        let batch = self.waiting[index].batch;
        let facts = self.facts.get(&self.waiting[index].task);
        let work = facts.and_then(|facts| facts.site(self.usual).work).unwrap_or_default().counted();
        let farthest: Option<Rtt> =
            candidates.iter().filter_map(Candidate::distance).max().filter(|_| self.alarm.is_none());
        let tried = self.tried(index, admission);
        let recalled = self.recalled.get(&self.waiting[index].task);
        let takes = |one: &Candidate| {
            let distance = one.distance().or(farthest).filter(|_| farthest.is_some())?;
            let may = tried.is_none_or(|tried| tried == one.agent) && admission.admits(batch, one.agent);
            may.then(|| work.takes(distance, one.speed))
        };
        let sized = facts.is_some_and(|facts| facts.size.is_some());
        let mut takes: Vec<Option<Duration>> = candidates.iter().map(takes).collect();
        // Not straight back to whom it was taken from, unless nobody else is left.
        let back = recalled.and_then(|recalled| candidates.iter().position(|one| one.agent == recalled.from));
        if let Some(back) = back
            && takes.iter().enumerate().any(|(agent, takes)| agent != back && takes.is_some())
        {
            takes[back] = None;
        }
        Job { takes, sized, waited: self.waiting[index].waited }
    }

    /// Now and then a site is only for an agent that might be nearer than the best known; one that was asked for is to end soon.
    fn tried(&self, index: usize, admission: &Admission) -> Option<AgentId> {
        let (task, candidates) = (self.waiting.get(index)?, self.candidates.get(index)?);
        let nearest = candidates.iter().filter(|one| one.distance().is_some()).min_by_key(|one| one.distance());
        let nearest = nearest.filter(|_| !self.recalled.contains_key(&task.task))?;
        let tried = explored(nearest, candidates, *self.crawls.get(index)?, draw_seed(task))?.agent;
        admission.admits(task.batch, tried).then_some(tried)
    }

    /// Any agent, as no distance is known or trusted.
    fn draw(&self, task: &Waiting, among: &[Candidate]) -> Option<Choice> {
        let facts = self.facts.get(&task.task).cloned().unwrap_or_default();
        let strategy = if self.alarm.is_some() { Strategy::Random } else { task.strategy };
        strategy::choose(strategy, &facts.site(self.usual), among, draw_seed(task))
    }

    /// The choice that a place in the plan is: its agent, and those that would end the crawl first by themselves.
    fn choice(&self, planned: &Planned, job: &Job) -> Option<Choice> {
        let candidates = &self.candidates[planned.job];
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

/// Those of the candidates that a batch does not exclude.
fn admitted(admission: &Admission, batch: BatchId, among: &[Candidate]) -> Vec<Candidate> {
    among.iter().filter(|one| admission.admits(batch, one.agent)).copied().collect()
}

/// How fast each agent's crawls go, by what they taught.
pub(super) fn speeds(crawls: &HashMap<AgentId, Vec<Crawl>>) -> HashMap<AgentId, Speed> {
    crawls.iter().map(|(agent, crawls)| (*agent, Speed::default().learned(crawls))).collect()
}

/// Candidates that know how fast they are.
pub(super) fn with_speeds(mut candidates: Vec<Candidate>, speeds: &HashMap<AgentId, Speed>) -> Vec<Candidate> {
    candidates.iter_mut().for_each(|one| one.speed = speeds.get(&one.agent).copied().unwrap_or_default());
    candidates
}

/// When each of an agent's slots is free, from what it holds. What nobody predicted takes as long as its crawls do.
fn frees(agent: &Available, held: &[Held]) -> Vec<Duration> {
    let takes = |held: &Held| held.takes.unwrap_or(agent.pace);
    let mut under_way: Vec<Duration> =
        held.iter().filter_map(|held| Some(schedule::remaining(takes(held), held.under_way?))).collect();
    under_way.sort_unstable_by_key(|remaining| Reverse(*remaining));
    let waiting: Vec<Duration> = held.iter().filter(|held| held.under_way.is_none()).map(takes).collect();
    schedule::frees(usize::try_from(agent.capacity).unwrap_or(usize::MAX), &under_way, &waiting)
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::super::assign::Assign;
    use super::super::trial::Trial;
    use super::*;
    use crate::constraints::ConstraintsRequest;
    use crate::model::WaitCause;
    use crate::store::{constraints, fixtures};
    use crate::strategy::Spread;

    /// Located tasks of one batch.
    async fn located(trial: &Trial, count: usize) -> Vec<(TaskId, SiteId)> {
        let batch = trial.batch("b", Strategy::EarliestFinish.name()).await;
        let mut tasks = Vec::new();
        for index in 0..count {
            let mut conn = trial.conn().await;
            let site = fixtures::site(&mut conn, &format!("{index}.cn")).await;
            tasks.push((fixtures::task(&mut conn, batch, site, "located").await, site));
        }
        tasks
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_begins_soon_is_assigned_and_the_rest_is_planned_again_when_a_slot_is_free(pool: PgPool) {
        let trial = Trial::new(pool).await;
        let agents = trial.connect(2).await;
        let tasks = located(&trial, 6).await;
        for (_, site) in &tasks {
            trial.measured(*site, &[(agents[0].0, Some(10)), (agents[1].0, Some(200))]).await;
        }
        let assign = Assign::new(trial.plan());
        assign.run_once().await.expect("a pass");
        // Two slots each.
        assert_eq!(trial.count("select count(*) from tasks where state = 'assigned'").await, 4);
        assert_eq!(trial.count("select count(distinct agent_id) from tasks where state = 'assigned'").await, 2);
        assert_eq!(trial.count("select count(*) from assignments where crawl_ms > 0 and fallback is null").await, 4);
        let waits = "select count(*) from tasks where state = 'located'";
        assert_eq!(trial.count(waits).await, 2);
        assign.run_once().await.expect("a pass");
        assert_eq!(trial.count(waits).await, 2, "nothing has changed");
        trial
            .execute(
                "update tasks set state = 'cancelled' where id = (select min(id) from tasks where state = 'assigned')",
            )
            .await;
        assign.run_once().await.expect("a pass");
        assert_eq!(trial.count(waits).await, 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_plan_that_decides_nothing_is_kept_until_something_is_signalled(pool: PgPool) {
        let trial = Trial::new(pool).await;
        let agents = trial.connect(1).await;
        let tasks = located(&trial, 5).await;
        for (_, site) in &tasks {
            trial.measured(*site, &[(agents[0].0, Some(10))]).await;
        }
        let assign = Assign::new(trial.plan());
        let kept = || assign.planner.kept().as_ref().map(|kept| kept.until);
        assign.run_once().await.expect("a pass");
        assert_eq!(trial.count("select count(*) from tasks where state = 'assigned'").await, 2);
        assert_eq!(kept(), None, "it decided something, so the next may");
        trial.execute("update assignments set crawl_ms = 30000").await;
        let before = Instant::now();
        assign.run_once().await.expect("a pass");
        let until = kept().expect("every slot is taken");
        assert!((before + Duration::from_secs(28)..=Instant::now() + Duration::from_secs(29)).contains(&until));
        assign.run_once().await.expect("a pass");
        assert_eq!(kept(), Some(until), "and no other plan was made");
        trial.execute("update tasks set state = 'cancelled' where state = 'assigned'").await;
        assign.run_once().await.expect("a pass");
        assert_eq!(trial.count("select count(*) from tasks where state = 'assigned'").await, 2);
    }

    #[test]
    fn a_plan_stands_until_its_first_task_is_due_and_never_for_long() {
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        let seen = |first: Option<Duration>, moved| Seen {
            batches: [BatchId::new(1)].into(),
            first,
            moved,
            ..Seen::default()
        };
        let kept = |first| Kept::new(7, began, &seen(first, false)).expect("kept");
        for (first, lasts) in
            [(Some(10 * second), 9 * second), (None, KEPT_AT_MOST), (Some(9999 * second), KEPT_AT_MOST)]
        {
            assert!(kept(first).stands(7, began + lasts - second / 10), "{first:?}");
            assert!(!kept(first).stands(7, began + lasts), "{first:?}");
            assert!(!kept(first).stands(8, began), "something was signalled");
        }
        assert!(!kept(Some(second / 2)).stands(7, began), "it is due now");
        assert!(Kept::new(7, began, &seen(None, true)).is_none());
        assert!(Kept::new(7, began, &Seen::default()).is_none(), "what comes is planned at once");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_fills_a_window_for_one_agent_leaves_the_others_their_work(pool: PgPool) {
        let trial = Trial::new(pool).await;
        let agents = trial.connect(2).await;
        let (only, free) = (trial.batch("only", "earliest-finish").await, trial.batch("free", "earliest-finish").await);
        let mut conn = trial.conn().await;
        constraints::set_tags(&mut conn, agents[0].0, &["fast".to_owned()]).await.expect("tag");
        let asked = ConstraintsRequest { tags: vec!["fast".into()], ..ConstraintsRequest::default() };
        constraints::settle(&mut conn, only, &asked.checked().expect("constraints")).await.expect("settle");
        for (batch, from, to) in [(only, 1, WINDOW + 20), (free, WINDOW + 21, WINDOW + 26)] {
            for located in [
                "insert into sites (name) select n || '.cn' from generate_series($2::bigint, $3) n where $1::bigint > 0",
                "insert into tasks (batch_id, site_id, state, choice) select $1, s.id, 'located', 'planned' from generate_series($2::bigint, $3) n
                 join sites s on s.name = n || '.cn' order by n",
            ] {
                sqlx::query(located).bind(batch.get()).bind(from).bind(to).execute(&mut *conn).await.expect("locate");
            }
        }
        trial
            .execute(
                "insert into site_measurements (site_id, prober_id, rtt_us, answered, lost)
                 select s.id, a.id, 10000, 5, 0 from sites s cross join agents a",
            )
            .await;
        Assign::new(trial.plan()).run_once().await.expect("a pass");
        let assigned = "select count(*) from tasks t join batches b on b.id = t.batch_id
                        where t.state = 'assigned' and b.name = 'only' and t.agent_id = (select min(id) from agents)";
        assert_eq!(trial.count(assigned).await, 2, "as many as have a slot");
        let assigned = "select count(*) from tasks t join batches b on b.id = t.batch_id
                        where t.state = 'assigned' and b.name = 'free' and t.agent_id = (select max(id) from agents)";
        assert_eq!(trial.count(assigned).await, 2);
        let waits = "select count(*) from tasks where state = 'located'";
        assert_eq!(trial.count(waits).await, WINDOW + 26 - 4);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_that_is_for_who_might_be_nearer_says_that_it_explores(pool: PgPool) {
        let admission = Admission::read(&mut pool.acquire().await.expect("connect"), []).await.expect("read");
        let agents = [AgentId::new(1), AgentId::new(2)];
        let rtt = |millis| Rtt::try_from_millis_f64(millis).ok();
        let known = Candidate { measured: rtt(20.0), ..Candidate::new(agents[0], 1) };
        let unsure = Candidate { predicted: rtt(22.0), spread: Some(Spread::new(0.4)), ..Candidate::new(agents[1], 1) };
        let mut explored = 0;
        for task in 1..=40 {
            let sight = Sight {
                waiting: vec![Waiting {
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
                candidates: vec![vec![known, unsure]],
                crawls: vec![2],
                recalled: HashMap::new(),
                frees: vec![vec![Duration::ZERO]; 2],
                unsure: vec![false],
                alarm: None,
            };
            let decided = sight.decided(&admission, Duration::from_secs(12)).decided;
            assert_eq!(decided[0].explores, decided[0].choice.agent == agents[1]);
            explored += usize::from(decided[0].explores);
        }
        assert!((10..=30).contains(&explored), "of 40, one in two: {explored}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_waits_says_so_while_nobody_is_there_and_not_after(pool: PgPool) {
        let trial = Trial::new(pool).await;
        let agents = trial.connect(1).await;
        let tasks = located(&trial, 4).await;
        for (_, site) in &tasks {
            trial.measured(*site, &[(agents[0].0, Some(10))]).await;
        }
        let assign = Assign::new(trial.plan());
        let said = async |cause: WaitCause| {
            assign.run_once().await.expect("a pass");
            let mut said = Vec::new();
            for (task, _) in &tasks {
                said.extend(trial.waits(*task).await);
            }
            assert!(!said.is_empty() && said.iter().all(|one| *one == cause), "{said:?}");
        };
        said(WaitCause::Planned).await;
        trial.execute("update sessions set state = 'expired'").await;
        said(WaitCause::NoAgent).await;
        trial.session(agents[0].0).await;
        trial.execute("update agents set draining_since = now()").await;
        said(WaitCause::NobodyTakesWork).await;
        trial.execute("update agents set draining_since = null").await;
        said(WaitCause::Planned).await;
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_nearer_agent_takes_more_where_distance_counts(pool: PgPool) {
        let trial = Trial::new(pool).await;
        let agents = trial.connect(2).await;
        trial.execute("update agents set capacity = 10").await;
        let tasks = located(&trial, 8).await;
        trial.execute(r#"update batches set policy = policy || '{"request_interval_ms": 0}'"#).await;
        for (_, site) in &tasks {
            trial.measured(*site, &[(agents[0].0, Some(200)), (agents[1].0, Some(10))]).await;
        }
        Assign::new(trial.plan()).run_once().await.expect("a pass");
        let near = trial
            .count("select count(*) from tasks where state = 'assigned' and agent_id = (select max(id) from agents)");
        assert_eq!(near.await, 8, "it has room for all, and a tenth of the distance");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn without_any_distance_an_agent_is_drawn_and_it_says_why(pool: PgPool) {
        let trial = Trial::new(pool).await;
        trial.connect(2).await;
        located(&trial, 3).await;
        Assign::new(trial.plan()).run_once().await.expect("a pass");
        let drawn = "select count(*) from assignments where strategy = 'random' and fallback = 'no-distance'";
        assert_eq!(trial.count(drawn).await, 3);
        assert_eq!(trial.count("select count(*) from tasks where state = 'assigned'").await, 3);
    }
}
