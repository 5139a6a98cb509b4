//! Plans the tasks of `earliest-finish` together, window by window, and keeps a plan that decides
//! nothing until something changes.
//!
//! A plan assigns only tasks that would begin within `plan::AHEAD`. The other tasks stay
//! located and are planned again in the next pass, with the results of the crawls that have ended
//! by then. Because only tasks that begin soon are assigned, a wrong prediction leaves no long
//! queue at an agent, and the last sites of a batch go to the agents that finish the crawls
//! soonest. A plan that decides nothing is kept until a task, an agent or a crawl changes, or until
//! a slot is about to become free. The pure module `strategy::plan` makes the plan.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;

use crate::config::Config;
use crate::jobs::assign::confirmation::{Unconfirmed, hold_unconfirmed};
use crate::jobs::assign::exclusions_and_holds::{Admission, hold_broken};
use crate::jobs::assign::plan_decisions::{DecidedTask, PathInput, PlanDecisions, PlanInput};
use crate::jobs::assign::preempt;
use crate::jobs::leadership::Leader;
use crate::jobs::predictor::Predictor;
use crate::model::{AgentId, BatchId, TaskId};
use crate::store::assignments::{self, Pool, agents_and_loads};
use crate::store::tasks::confirmations;
use crate::store::{Locked, Tx};
use crate::strategy::plan;

/// Maximum number of windows in one pass; planning a window takes up to a second. Batches that get
/// no window are planned in a later pass, when fewer tasks of other batches wait.
const WINDOWS: usize = 8;

/// Maximum age of a plan. An older plan is replaced even without a signal, because some changes
/// send no signal (such as a new measurement of a site or a quota that became free) and a signal
/// may be lost.
const KEPT_AT_MOST: Duration = Duration::from_secs(60);

/// Maximum number of tasks in a window (tasks that are planned together). The limit keeps planning
/// within a second, because computing the distances of a site takes half a millisecond. If a batch
/// has more tasks, its oldest tasks are planned first.
const WINDOW: i64 = 500;

/// Makes plans. Keeps the newest plan while a new plan would be the same.
#[derive(Debug, Default)]
pub(super) struct Planner {
    kept: Mutex<Option<UnchangedPlan>>,
}

/// A plan that chose no agents, from a pass in which no task was held or taken by another
/// transaction.
#[derive(Debug)]
struct UnchangedPlan {
    /// Number of signals received before the plan was made.
    signals: u64,
    /// When an agent must be chosen for the plan's first task, but at most [`KEPT_AT_MOST`] after
    /// the plan was begun.
    until: Instant,
    seen: PassTotals,
}

impl UnchangedPlan {
    /// Keeps the plan that was begun at `began`. Returns `None` if no task was planned, or if
    /// `seen.moved` is set, because the next plan may then decide further tasks.
    fn new(signals: u64, began: Instant, seen: &PassTotals) -> Option<Self> {
        let first = seen.first.map_or(KEPT_AT_MOST, |begins| begins.saturating_sub(plan::AHEAD));
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
    pub(super) async fn run(&self, scheduler: &Leader, predictor: &Predictor) -> anyhow::Result<()> {
        // Counts signals of tasks, agents and ended crawls. Signals of measurements are not
        // counted, because they come all the time and free no slot.
        let (signals, now) = (scheduler.wakes.assign.came() + scheduler.wakes.crawls.came(), Instant::now());
        let stands = self.kept().as_ref().filter(|kept| kept.stands(signals, now)).map(|kept| kept.seen.clone());
        let seen = match stands {
            Some(seen) => seen,
            None => {
                let mut seen = PassTotals::default();
                for _ in 0..WINDOWS {
                    if !window(scheduler, predictor, &mut seen).await? {
                        break;
                    }
                }
                *self.kept() = UnchangedPlan::new(signals, now, &seen);
                seen
            }
        };
        if seen.idles {
            preempt::run(scheduler, predictor, &seen.wanted).await?;
        }
        Ok(())
    }

    /// Makes the next pass plan again, because tasks that may be planned have changed.
    pub(super) fn forget(&self) {
        *self.kept() = None;
    }

    fn kept(&self) -> MutexGuard<'_, Option<UnchangedPlan>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The results of all windows of a pass so far.
#[derive(Debug, Clone, Default)]
struct PassTotals {
    /// The batches whose tasks were planned.
    batches: BTreeSet<BatchId>,
    /// The agents admitted to at least one planned task.
    wanted: BTreeSet<AgentId>,
    /// Whether an agent was chosen for at least one task (the task is then *decided*).
    decided: bool,
    /// Whether a task was decided, held, or taken by another transaction.
    moved: bool,
    /// When the first undecided task begins, counted from the time of the plan.
    first: Option<Duration>,
    /// Whether no task was decided and some agent is admitted to none of the waiting tasks. An
    /// agent that may crawl none of the waiting tasks can only take over running crawls.
    idles: bool,
}

/// What a window is planned from.
struct Window {
    /// The batches of the tasks that were read.
    batches: BTreeSet<BatchId>,
    /// Number of tasks that were read.
    read: usize,
    /// Whether a confirmation was requested.
    wanted: bool,
    admission: Admission,
    input: PlanInput,
    paths: PathInput,
}

impl Window {
    /// Reads the oldest tasks of the batches that are not in `without`, and holds those that are
    /// not planned now. `None` if no task or no agent is there.
    async fn read(
        tx: &mut Tx<'_>,
        config: &Config,
        predictor: &Predictor,
        without: &[BatchId],
    ) -> anyhow::Result<Option<Self>> {
        let (waiting, locked) = assignments::waiting(tx, Pool::Together { without }, WINDOW).await?;
        if waiting.is_empty() {
            return Ok(None);
        }
        let agents = agents_and_loads::available(tx).await?;
        if agents.is_empty() {
            return Ok(None);
        }
        let (read, batches) = (waiting.len(), waiting.iter().map(|task| task.batch).collect());
        let waiting = hold_broken(tx, waiting, &locked).await?;
        let Unconfirmed { waiting, confirmation_states, wanted } =
            hold_unconfirmed(tx, config, waiting, &locked).await?;
        let admission = Admission::read(tx, waiting.iter().map(|task| task.batch)).await?;
        let (input, paths) = PlanInput::read(tx, predictor, (waiting, &confirmation_states), agents).await?;
        Ok(Some(Self { batches, read, wanted, admission, input, paths }))
    }
}

/// What became of the decisions of a plan.
struct CarriedOut {
    /// Counts the tasks assigned now.
    admission: Admission,
    /// The agents that got a task.
    chosen: BTreeSet<AgentId>,
    /// Whether there is a task that no agent may crawl.
    unmet: bool,
    /// Whether a decided task still waited.
    decided: bool,
    /// Whether a confirmation was requested.
    unsure: bool,
    /// Number of tasks that still waited.
    waiting: usize,
}

/// Stores the decisions about those tasks that still wait.
async fn carry_out(
    tx: &mut Tx<'_>,
    config: &Config,
    input: &PlanInput,
    admission: &Admission,
    decisions: &PlanDecisions,
) -> anyhow::Result<CarriedOut> {
    let mut admission = admission.clone();
    let tasks: Vec<TaskId> = input.waiting.iter().map(|task| task.task).collect();
    let waiting = assignments::still_waiting(tx, &tasks).await?;
    let decided = decisions.decided.iter().filter_map(|decided| Some((*waiting.get(&tasks[decided.job])?, decided)));
    let decided: Vec<(Locked<TaskId>, &DecidedTask)> = decided.collect();
    let unsure: Vec<_> = decisions.unsure.iter().filter_map(|unsure| unsure.locked(&waiting)).collect();
    confirmations::want(tx, &unsure, config.measure.site_max_age).await?;
    let cap = config.politeness.crawls_at_address;
    let (chosen, unmet) = input.carry_out(tx, &mut admission, cap, &decided, &waiting).await?;
    let (decided, unsure, waiting) = (!decided.is_empty(), !unsure.is_empty(), waiting.len());
    Ok(CarriedOut { admission, chosen, unmet, decided, unsure, waiting })
}

/// Plans the oldest tasks of the batches that are not in `seen.batches`. Returns `true` if these
/// tasks fill a whole window and some agent is admitted to no task planned so far. If the result is
/// `true`, the caller plans up to [`WINDOW`] tasks of other batches, which may include tasks for
/// this agent.
async fn window(scheduler: &Leader, predictor: &Predictor, seen: &mut PassTotals) -> anyhow::Result<bool> {
    let without: Vec<BatchId> = seen.batches.iter().copied().collect();
    let (without, config) = (&without, &scheduler.config);
    let read = scheduler.tx("read tasks to plan", |tx| Window::read(tx, config, predictor, without).boxed());
    let Some(Window { batches, read, wanted, admission, input, paths }) = read.await? else {
        seen.idles = !seen.decided;
        return Ok(false);
    };
    // No row stays locked while the plan is made, which takes up to a second.
    let full = i64::try_from(read).is_ok_and(|count| count == WINDOW);
    seen.batches.extend(batches);
    let confirming = config.confirming();
    let plan = move || {
        let (mut input, ways) = (input, paths.predict());
        input.count_crawls(&ways);
        let decisions = input.decided(&admission, confirming, |task| ways.candidates(task));
        (input, admission, decisions)
    };
    let (input, admission, decisions) = scheduler.compute(plan).await?;
    let carried_out = {
        let (input, admission, decisions) = (&input, &admission, &decisions);
        let store = scheduler.tx("plan tasks", |tx| carry_out(tx, config, input, admission, decisions).boxed());
        store.await?
    };
    let CarriedOut { admission, chosen, unmet, decided, unsure, waiting } = carried_out;
    let wanted = wanted || unsure;
    tracing::debug!(tasks = input.waiting.len(), agents = chosen.len(), "planned tasks");
    if wanted {
        scheduler.wakes.confirm.notify_one();
    }
    scheduler.wakes.wake_agents(chosen);
    // The undecided tasks wait until slots become free. An agent that is admitted to none of these
    // tasks may be idle.
    seen.decided |= decided;
    seen.moved |= seen.decided || unmet || wanted || waiting < read;
    seen.first = seen.first.into_iter().chain(decisions.first).min();
    seen.wanted.extend(input.wanted(&admission));
    let spare = input.agents.iter().any(|agent| !seen.wanted.contains(agent));
    seen.idles = spare && !seen.decided;
    Ok(spare && full)
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use crate::jobs::assign::Assign;
    use crate::jobs::fixtures::Trial;
    use crate::model::constraints::ConstraintsRequest;
    use crate::model::{SiteId, Strategy, WaitCause};
    use crate::store::fixtures;
    use crate::store::schedulers::Role;

    use super::*;

    /// Located tasks of one batch.
    async fn located(trial: &Trial, count: usize) -> Vec<(TaskId, SiteId)> {
        let batch = trial.batch("b", &Strategy::EarliestFinish.to_string()).await;
        let mut tasks = Vec::new();
        for index in 0..count {
            tasks.push(trial.task_of(batch, &format!("{index}.cn"), "located").await);
        }
        tasks
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_begins_soon_is_assigned_and_the_rest_is_planned_again_when_a_slot_is_free(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        let tasks = located(&trial, 6).await;
        for (_, site) in &tasks {
            trial.measured_by_all(*site, &[10, 200]).await;
        }
        let assign = Assign::new(trial.on(Role::Plan));
        assign.run_once().await.expect("a pass");
        // Each agent has two slots.
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
    async fn a_plan_that_decides_nothing_is_kept_until_a_task_an_agent_or_a_crawl_changes(pool: PgPool) {
        let trial = Trial::new(pool, 1).await;
        let tasks = located(&trial, 5).await;
        for (_, site) in &tasks {
            trial.measured_by_all(*site, &[10]).await;
        }
        let assign = Assign::new(trial.on(Role::Plan));
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
        trial.scheduler.wakes.measure.notify_one();
        trial.scheduler.wakes.wake_agents([trial.agents[0].0]);
        assign.run_once().await.expect("a pass");
        assert_eq!(kept(), Some(until), "and no other plan was made");
        trial.scheduler.wakes.crawls.notify_one();
        assign.run_once().await.expect("a pass");
        assert!(kept().expect("nothing is free yet") > until, "another plan was made");
        trial.execute("update tasks set state = 'cancelled' where state = 'assigned'").await;
        assign.run_once().await.expect("a pass");
        assert_eq!(trial.count("select count(*) from tasks where state = 'assigned'").await, 2);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_fills_a_window_for_one_agent_leaves_the_others_their_work(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        let (only, free) = (trial.batch("only", "earliest-finish").await, trial.batch("free", "earliest-finish").await);
        let mut conn = trial.conn().await;
        trial.tag(0, &["fast"]).await;
        let asked = ConstraintsRequest { tags: vec!["fast".into()], ..ConstraintsRequest::default() };
        fixtures::constrain(&mut conn, only, &asked.checked().expect("constraints")).await;
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
        trial.assign().await;
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
    async fn what_waits_says_so_while_nobody_is_there_and_not_after(pool: PgPool) {
        let trial = Trial::new(pool, 1).await;
        let tasks = located(&trial, 4).await;
        for (_, site) in &tasks {
            trial.measured_by_all(*site, &[10]).await;
        }
        let assign = Assign::new(trial.on(Role::Plan));
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
        trial.session(trial.agents[0].0).await;
        trial.execute("update agents set draining_since = now()").await;
        said(WaitCause::NoneAcceptsWork).await;
        trial.execute("update agents set draining_since = null").await;
        said(WaitCause::Planned).await;
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_nearer_agent_takes_more_where_distance_counts(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        trial.execute("update agents set capacity = 10").await;
        let tasks = located(&trial, 8).await;
        trial.execute(r#"update batches set policy = policy || '{"request_interval_ms": 0}'"#).await;
        for (_, site) in &tasks {
            trial.measured_by_all(*site, &[200, 10]).await;
        }
        trial.assign().await;
        let near = trial
            .count("select count(*) from tasks where state = 'assigned' and agent_id = (select max(id) from agents)");
        assert_eq!(near.await, 8, "it has room for all, and a tenth of the distance");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn without_any_distance_an_agent_is_drawn_and_it_says_why(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        located(&trial, 3).await;
        trial.assign().await;
        let drawn = "select count(*) from assignments where strategy = 'random' and fallback = 'no-distance'";
        assert_eq!(trial.count(drawn).await, 3);
        assert_eq!(trial.count("select count(*) from tasks where state = 'assigned'").await, 3);
    }

    #[test]
    fn a_plan_stands_until_its_first_task_is_due_and_never_for_long() {
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        let seen = |first: Option<Duration>, moved| PassTotals {
            batches: [BatchId::new(1)].into(),
            first,
            moved,
            ..PassTotals::default()
        };
        let kept = |first| UnchangedPlan::new(7, began, &seen(first, false)).expect("kept");
        for (first, lasts) in
            [(Some(10 * second), 9 * second), (None, KEPT_AT_MOST), (Some(9999 * second), KEPT_AT_MOST)]
        {
            assert!(kept(first).stands(7, began + lasts - second / 10), "{first:?}");
            assert!(!kept(first).stands(7, began + lasts), "{first:?}");
            assert!(!kept(first).stands(8, began), "something was signalled");
        }
        assert!(!kept(Some(second / 2)).stands(7, began), "it is due now");
        assert!(UnchangedPlan::new(7, began, &seen(None, true)).is_none());
        assert!(UnchangedPlan::new(7, began, &PassTotals::default()).is_none(), "what comes is planned at once");
    }
}
