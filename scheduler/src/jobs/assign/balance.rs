//! Rebalances waiting tasks: moves them from one agent to another admitted agent, to level loads
//! and to use agents that have joined.
//!
//! The pure module `strategy::rebalance` decides the moves. A pass reads the agents' loads and
//! queues, and stores each move as a new assignment with its cause. A pass reads only the ends of
//! the longest queues and makes at most `MOVES` moves. For a queued task, a pass predicts distances
//! only to agents that joined after the task's agent was chosen. A task is moved only if its
//! assignment has not changed since it was read, and never to an agent that the task's batch
//! excludes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::Mutex;

use crate::config::Draws;
use crate::model::{AgentId, ChoiceCause, ChoiceReasons, Gain, SiteId};
use crate::store::Tx;
use crate::store::agents::{self, AgentPlace};
use crate::store::assignments::agents_and_loads::{self, AvailableAgent};
use crate::store::assignments::waiting_tasks::{self, QueuedTask};
use crate::store::assignments::{self, Assignment};
use crate::store::measurements::quarantines_and_contradictions;
use crate::strategy::rebalance::{self, MovableTask, TaskMove};
use crate::strategy::{Candidate, Choice, LoadLevel, RecordedChoice};

use super::distances::DistanceInput;
use crate::jobs::assign::exclusions_and_holds::Admission;
use crate::jobs::leadership::Leader;

/// Maximum number of moves in one pass. A transaction with this many moves takes well under a
/// second.
const MOVES: usize = 200;
/// Number of tasks read from one queue. Among a hundred tasks, even an agent that may crawl only
/// one task in fifty probably finds one.
const LOOKED_AT: i64 = 100;
/// Maximum number of queues read in one pass, the longest first.
const QUEUES: usize = 20;
/// Maximum number of sites whose distance to a newly joined agent is predicted in one pass. Each
/// prediction takes half a millisecond.
const PREDICTED: usize = 100;

/// What the moves of a pass are made from.
struct BalanceInput {
    waiting: Vec<QueuedTask>,
    /// For each waiting task, the agents as candidates.
    candidates: Vec<Arc<[Candidate]>>,
    admission: Admission,
}

/// After a pass that found no move, the next pass waits for a signal, but no longer than this time.
/// The wait is limited because some changes, such as the end of a site's pause, send no signal.
const REPEATED_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Balance {
    scheduler: Leader,
    /// When the last pass began, if it found no move.
    balanced_at: Mutex<Option<Instant>>,
}

impl Balance {
    pub fn new(scheduler: Leader) -> Self {
        Self { scheduler, balanced_at: Mutex::default() }
    }

    pub async fn run_once(&self) -> anyhow::Result<()> {
        let scheduler = &self.scheduler;
        let (mut balanced_at, began) = (self.balanced_at.lock().await, Instant::now());
        let stays = |at: Instant| began - at < scheduler.wakes.quiet_for().min(REPEATED_AFTER);
        if scheduler.config.draws == Draws::Static || balanced_at.is_some_and(stays) {
            return Ok(());
        }
        *balanced_at = None;
        let moves = match look(scheduler).await? {
            None => Vec::new(),
            Some(look) => {
                let (input, moves) = scheduler.compute(move || look.plan()).await?;
                if !moves.is_empty() {
                    carry_out(scheduler, &input, &moves).await?;
                }
                moves
            }
        };
        *balanced_at = moves.is_empty().then_some(began);
        Ok(())
    }
}

/// What a pass reads.
struct Look {
    agents: Vec<AvailableAgent>,
    waiting: Vec<QueuedTask>,
    /// For each waiting task, the agents that joined after the task's agent was chosen.
    newcomers: Vec<Vec<AgentId>>,
    admission: Admission,
    /// The sites whose distance to a newcomer is needed.
    sites: Vec<SiteId>,
    /// Where these sites are; `None` if there are none.
    distances: Option<DistanceInput>,
}

/// Reads the tasks that wait at full agents while other agents have room, and the agents that may
/// get these tasks; `None` if there is nothing to do.
async fn look(scheduler: &Leader) -> anyhow::Result<Option<Look>> {
    let read = scheduler.tx("read what waits at agents", |tx| Look::read(tx).boxed());
    let Some(mut look) = read.await? else { return Ok(None) };
    if !look.sites.is_empty() {
        let predictor = &scheduler.maps.predictor(scheduler).await?;
        let (sites, agents) = (&look.sites, &look.agents);
        let read =
            scheduler.tx("read distances of newcomers", |tx| DistanceInput::read(tx, predictor, sites, agents).boxed());
        look.distances = Some(read.await?);
    }
    Ok(Some(look))
}

impl Look {
    async fn read(tx: &mut Tx<'_>) -> anyhow::Result<Option<Self>> {
        let agents = agents_and_loads::available(tx).await?;
        let longest = longest_queues(&agents);
        if longest.is_empty() || agents.len() < 2 {
            return Ok(None);
        }
        let waiting = waiting_tasks::waiting_at(tx, &longest, LOOKED_AT).await?;
        let newcomers = |task: &QueuedTask| -> Vec<AgentId> {
            let came = agents.iter().filter(|agent| agent.since > task.chosen_at && may_take(agent));
            let listed = |agent: AgentId| task.former.listed.iter().any(|one| one.agent == agent);
            came.map(|agent| agent.agent).filter(|agent| !listed(*agent) && *agent != task.former.agent).collect()
        };
        let newcomers: Vec<Vec<AgentId>> = waiting.iter().map(newcomers).collect();
        let unknown = waiting
            .iter()
            .zip(&newcomers)
            .filter(|(task, new)| task.former.strategy.needs_distance() && !new.is_empty());
        let mut sites: Vec<SiteId> = unknown.map(|(task, _)| task.site).take(PREDICTED).collect();
        if quarantines_and_contradictions::alarm(tx).await?.is_some() {
            sites.clear();
        }
        let admission = Admission::read(tx, waiting.iter().map(|task| task.batch)).await?;
        Ok(Some(Self { agents, waiting, newcomers, admission, sites, distances: None }))
    }

    fn plan(self) -> (BalanceInput, Vec<TaskMove>) {
        let Self { agents, waiting, newcomers, admission, sites, distances } = self;
        let known = distances.map(DistanceInput::predict);
        // Most tasks need only the agents' loads, so they share one list of candidates. With a
        // separate list for each task, two thousand tasks would need two thousand lists, each with
        // up to a thousand agents.
        let plain: Arc<[Candidate]> = agents.iter().map(plain).collect();
        let candidates = waiting.iter().map(|task| match known.as_ref().filter(|_| sites.contains(&task.site)) {
            Some(known) => known.candidates(task.site, &agents, Draws::Balanced).into(),
            None => Arc::clone(&plain),
        });
        let candidates: Vec<Arc<[Candidate]>> = candidates.collect();
        let queued = waiting.iter().zip(&newcomers).zip(&candidates).map(|((task, new), candidates)| {
            let mut takers = rebalance::takers(&task.former, candidates, new);
            takers.retain(|taker| admission.admits(task.batch, taker.agent));
            MovableTask { at: task.former.agent, takers }
        });
        let queued: Vec<MovableTask> = queued.collect();
        let moves = rebalance::plan(&plain, &queued, MOVES);
        (BalanceInput { waiting, candidates, admission }, moves)
    }
}

async fn carry_out(scheduler: &Leader, input: &BalanceInput, moves: &[TaskMove]) -> anyhow::Result<()> {
    let to = scheduler.tx("move waiting tasks", |tx| store_moves(tx, input, moves).boxed()).await?;
    tracing::debug!(moves = moves.len(), agents = to.len(), "moved waiting tasks to other agents");
    scheduler.wakes.wake_agents(to);
    Ok(())
}

/// Moves those tasks whose assignment has not changed. Returns the agents that got a task.
async fn store_moves(tx: &mut Tx<'_>, input: &BalanceInput, moves: &[TaskMove]) -> anyhow::Result<BTreeSet<AgentId>> {
    let known = agents::places(tx).await?;
    let looked_at: Vec<&QueuedTask> = moves.iter().filter_map(|one| input.waiting.get(one.queued)).collect();
    let held = waiting_tasks::hold_on(tx, &looked_at).await?;
    let mut admission = input.admission.clone();
    let (mut made, mut to) = (Vec::new(), BTreeSet::new());
    for one in moves {
        let (Some(waiting), Some(candidates)) = (input.waiting.get(one.queued), input.candidates.get(one.queued))
        else {
            continue;
        };
        // Admission is checked again, because an earlier move may have used up a quota.
        let admitted = candidates.iter().filter(|one| admission.admits(waiting.batch, one.agent));
        let available = admitted.clone().count();
        let taker = admitted.into_iter().find(|candidate| candidate.agent == one.to);
        let (Some(taker), Some(task)) = (taker, held.get(&waiting.task)) else { continue };
        let candidates_now = rebalance::relisted(&waiting.former, taker, candidates);
        let exclusions = admission.exclusions(tx, waiting.batch).await?;
        let RecordedChoice { strategy, ref fallback, .. } = waiting.former;
        let choice = Choice { agent: one.to, candidates: candidates_now, strategy, fallback: fallback.clone() };
        let why = ChoiceReasons { cause: rebalanced(waiting, one.gain, &known), ..ChoiceReasons::default() };
        let assignment = Assignment::new(waiting.seed, choice, why);
        made.push((*task, Assignment { available, exclusions, ..assignment }));
        admission.gave(waiting.batch, waiting.former.agent);
        admission.took(waiting.batch, one.to);
        to.insert(one.to);
    }
    assignments::insert(tx, &made).await?;
    Ok(to)
}

/// The agent as a candidate whose distance is unknown.
fn plain(agent: &AvailableAgent) -> Candidate {
    Candidate { load: agent.load, pace: agent.pace, ..Candidate::new(agent.agent, agent.capacity) }
}

fn level(agent: &AvailableAgent) -> LoadLevel {
    LoadLevel::of(agent.load, agent.capacity)
}

/// Whether a newly joined agent may get tasks from other agents' queues: fewer tasks must wait for
/// the agent than it has slots.
fn may_take(agent: &AvailableAgent) -> bool {
    level(agent).get() < i64::from(agent.capacity)
}

/// The agents at which tasks wait for a slot, the longest queue first.
fn longest_queues(agents: &[AvailableAgent]) -> Vec<AgentId> {
    let mut queues: Vec<&AvailableAgent> =
        agents.iter().filter(|agent| agent.waiting > 0 && level(agent).get() > 0).collect();
    queues.sort_by_key(|agent| std::cmp::Reverse((level(agent), agent.agent)));
    queues.iter().map(|agent| agent.agent).take(QUEUES).collect()
}

fn rebalanced(waiting: &QueuedTask, gain: Gain, known: &BTreeMap<AgentId, AgentPlace>) -> ChoiceCause {
    let from = known.get(&waiting.former.agent).map_or("another agent", |agent| &agent.name);
    ChoiceCause::Rebalanced { from: from.to_owned(), gain }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::config::Config;
    use crate::jobs::fixtures::Trial;
    use crate::model::{FormerAgent, Parting, TaskId};
    use crate::store::fixtures;
    use crate::store::schedulers::Role;

    /// Three agents with two slots each, and `count` located tasks. The agents are 10, 20 and 30 ms
    /// away from every site.
    async fn located(pool: PgPool, count: usize, draws: Draws) -> (Trial, Vec<TaskId>) {
        let trial = Trial::with(pool, 3, Config { draws, ..Config::default() }).await;
        let batch = trial.batch("b", "gnp-top3").await;
        let mut tasks = Vec::new();
        for number in 0..count {
            tasks.push(trial.located(batch, &format!("s{number}.cn")).await);
        }
        (trial, tasks)
    }

    /// The index of the task's current agent, and why this agent was chosen.
    async fn at(trial: &Trial, task: TaskId) -> (usize, ChoiceReasons) {
        let choice = "select c.agent_id, c.detail::text from tasks t join assignments c on c.id = t.assignment_id where t.id = $1";
        let (agent, why): (i64, Option<String>) = trial.row_for(choice, task.get()).await;
        let why = why.map_or_else(ChoiceReasons::default, |why| serde_json::from_str(&why).expect("a cause"));
        (trial.place(AgentId::new(agent)), why)
    }

    async fn loads(trial: &Trial) -> Vec<u32> {
        agents_and_loads::available(&mut *trial.conn().await)
            .await
            .expect("look")
            .iter()
            .map(|agent| agent.load)
            .collect()
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_full_candidate_is_passed_over_and_beyond_that_queues_are_even(pool: PgPool) {
        let (trial, _) = located(pool, 6, Draws::Balanced).await;
        trial.assign().await;
        assert_eq!(loads(&trial).await, [2, 2, 2], "six slots for six tasks");
        let batch = trial.batch("more", "gnp-top3").await;
        let more = trial.located(batch, "x.cn").await;
        trial.located(batch, "y.cn").await;
        trial.located(batch, "z.cn").await;
        trial.assign().await;
        assert_eq!(loads(&trial).await, [3, 3, 3]);
        assert_eq!(at(&trial, more).await.1, ChoiceReasons::default(), "none had room, so that none was passed over");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_waits_at_a_full_agent_goes_to_a_candidate_that_idles(pool: PgPool) {
        let (trial, tasks) = located(pool, 9, Draws::Balanced).await;
        trial.assign().await;
        for place in 0..3 {
            assert_eq!(trial.grant(place).await.len(), 2);
        }
        trial.balance().await;
        assert_eq!(loads(&trial).await, [3, 3, 3], "nobody idles and no queue is longer");
        // The second agent finishes its tasks, and gets a lease for its waiting task.
        let done = "update tasks set state = 'done' where agent_id = (select id from agents where name = 'a1') and state = 'leased'";
        for _ in 0..2 {
            trial.execute(done).await;
            trial
                .execute("update leases set state = 'completed' from tasks t where t.id = task_id and t.state = 'done'")
                .await;
            trial.grant(1).await;
        }
        assert_eq!(loads(&trial).await, [3, 0, 3]);
        trial.balance().await;
        assert_eq!(loads(&trial).await, [2, 2, 2]);
        assert_eq!(trial.grant(1).await.len(), 2);
        let mut rebalanced = BTreeSet::new();
        for task in &tasks {
            if let ChoiceCause::Rebalanced { from, gain } = at(&trial, *task).await.1.cause {
                assert!(rebalanced.insert(from) && gain == Gain::BeginsAtOnce);
            }
        }
        assert_eq!(rebalanced, BTreeSet::from(["a0".to_owned(), "a2".to_owned()]));
        trial.balance().await;
        assert_eq!(loads(&trial).await, [2, 2, 2], "and nothing goes back");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_pass_that_found_no_move_is_repeated_after_a_signal(pool: PgPool) {
        let (trial, _) = located(pool, 9, Draws::Balanced).await;
        trial.assign().await;
        for place in 0..3 {
            trial.grant(place).await;
        }
        let balance = Balance::new(trial.on(Role::Plan));
        balance.run_once().await.expect("a pass");
        fixtures::execute(&mut *trial.conn().await, "update agents set capacity = 8 where name = 'a1'").await;
        balance.run_once().await.expect("a pass");
        assert_eq!(loads(&trial).await, [3, 3, 3], "no signal came");
        trial.scheduler.wakes.assign.notify_one();
        balance.run_once().await.expect("a pass");
        assert_eq!(loads(&trial).await, [2, 5, 2]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn static_draws_ignore_loads_and_move_nothing(pool: PgPool) {
        let (trial, _) = located(pool, 0, Draws::Static).await;
        for (strategy, tasks) in [("gnp-top1", 5), ("gnp-top2", 40)] {
            let batch = trial.batch(strategy, strategy).await;
            for number in 0..tasks {
                trial.located(batch, &format!("{strategy}-{number}.cn")).await;
            }
        }
        trial.assign().await;
        let drawn = loads(&trial).await;
        assert_eq!((drawn.iter().sum::<u32>(), drawn[2]), (45, 0), "only the two nearest");
        let highest = trial.count("select max(level) from assignments, unnest(levels) as level").await;
        assert!(highest > 5, "the load levels are recorded all the same: {highest}");
        assert!(drawn[0] > 5 + 8 && drawn[1] > 8 && drawn[0] - 5 != drawn[1], "even in the mean: {drawn:?}");
        // The third agent is idle, and the queues of the first two agents differ.
        trial.balance().await;
        assert_eq!(loads(&trial).await, drawn);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn who_joins_gets_what_waits_and_it_is_a_candidate_for(pool: PgPool) {
        let (mut trial, _) = located(pool, 12, Draws::Balanced).await;
        trial.assign().await;
        for place in 0..3 {
            trial.grant(place).await;
        }
        let joined = trial.join().await;
        trial.balance().await;
        assert_eq!(loads(&trial).await, [4, 4, 4, 0], "nobody knows where it is");
        for (site,) in trial.rows::<(i64,)>("select id from sites").await {
            trial.measured(SiteId::new(site), &[(joined, Some(5))]).await;
        }
        trial.balance().await;
        // The joined agent gets three tasks, and begins two of them at once. The third task waits
        // for a slot, because this agent is clearly nearer and its queue is not longer than other
        // queues.
        let loads = loads(&trial).await;
        assert_eq!(loads, [3, 3, 3, 3]);
        assert_eq!(trial.grant(3).await.len(), 2);
        let listed = trial.count(
            "select count(*) from tasks t join assignments c on c.id = t.assignment_id join agents a on a.id = t.agent_id
             where a.name = 'a3' and c.candidates[1] = a.id and cardinality(c.candidates) = 3 and c.measured_us[1] = 5000",
        );
        assert_eq!(listed.await, 3, "the first of three candidates");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_a_leaving_agent_has_goes_to_its_next_candidate(pool: PgPool) {
        let (trial, tasks) = located(pool, 6, Draws::Balanced).await;
        trial.assign().await;
        assert_eq!(trial.grant(0).await.len(), 2);
        assert_eq!(loads(&trial).await, [2, 2, 2]);
        fixtures::drain(&mut *trial.conn().await, "a0").await;
        for (task,) in trial.rows::<(i64,)>("select task_id from leases").await {
            trial.hand_back(0, TaskId::new(task)).await;
        }
        trial.assign().await;
        // Neither of the other two agents has a free slot, so both tasks go to the nearer agent.
        assert_eq!(loads(&trial).await, [4, 2]);
        let next_after = |agent: &str, how| {
            let parted = Some(FormerAgent { agent: agent.to_owned(), how });
            ChoiceReasons { cause: ChoiceCause::NextCandidate, parted, fallback: None }
        };
        let mut next = 0;
        for task in tasks {
            let (place, why) = at(&trial, task).await;
            assert_ne!(place, 0);
            next += usize::from((place, why) == (1, next_after("a0", Parting::Drained)));
        }
        assert_eq!(next, 2);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_became_of_the_agent_chosen_before_is_told_by_what_is_stored(pool: PgPool) {
        let (mut trial, _) = located(pool, 0, Draws::Balanced).await;
        let batch = trial.batch("c", "gnp-top3").await;
        let lose = "update sessions set state = 'expired', end_cause = 'expired', ended_at = now() where state = 'active' and agent_id = $1";
        let leave = "update sessions set state = 'closed', end_cause = 'left' where state = 'active' and agent_id = $1";
        let disconnect =
            "update sessions set disconnected_at = now() - interval '1 hour' where state = 'active' and agent_id = $1";
        let pause = "update sessions set paused = 'the disk is full' where state = 'active' and agent_id = $1";
        let drain = "update agents set draining_since = now() where id = $1";
        let remove = "update agents set removed_at = now(), draining_since = now() where id = $1";
        // For each case: whether the agent began the crawl, whether it returned the lease, what
        // then happened, and the cause stored.
        for (number, (begins, hands_back, happens, how)) in [
            (true, false, lose, Parting::Lost),
            (true, true, pause, Parting::HandedBack),
            (true, true, drain, Parting::Drained),
            (true, false, leave, Parting::Left),
            (false, false, lose, Parting::WaitedAway),
            (false, false, pause, Parting::WaitedPaused),
            (false, false, disconnect, Parting::WaitedDisconnected),
            (false, false, drain, Parting::WaitedDrained),
            (false, false, remove, Parting::WaitedRemoved),
        ]
        .into_iter()
        .enumerate()
        {
            let task = trial.located(batch, &format!("s{number}.cn")).await;
            trial.assign().await;
            let (place, _) = at(&trial, task).await;
            let (agent, _) = trial.agents[place];
            if begins {
                assert_eq!(trial.grant(place).await.len(), 1);
            }
            if hands_back {
                trial.hand_back(place, task).await;
            }
            trial.execute_for(happens, agent.get()).await;
            let mut conn = trial.conn().await;
            fixtures::reap(&mut conn).await;
            trial.assign().await;
            let (next, why) = at(&trial, task).await;
            assert_ne!(next, place, "{how:?}");
            let former = format!("a{place}");
            let parted = Some(FormerAgent { agent: former.clone(), how });
            assert_eq!(why, ChoiceReasons { cause: ChoiceCause::NextCandidate, parted, fallback: None });
            let logged = "select cause from events where task_id = $1 and what = 'assigned' order by id desc limit 1";
            let logged: String = trial.read_for(logged, task.get()).await;
            assert_eq!(logged, format!("next-candidate: {former} {}", how.name()), "so does the log");
            let progress = crate::store::batches::progress(&mut conn, batch).await.expect("look");
            assert_eq!(progress.waiting_for, None, "it has an agent again");
            // Restores the state for the next case.
            trial.execute_for("update tasks set state = 'cancelled' where id = $1", task.get()).await;
            let back = "update agents set draining_since = null, removed_at = null where id = $1";
            trial.execute_for(back, agent.get()).await;
            trial.agents[place].1 = trial.session(agent).await;
        }
    }
}
