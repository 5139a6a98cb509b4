//! Passes tasks that wait at one agent on to another that may have them: load levels, and agents that join.
//!
//! What moves and why is `strategy::balance`, pure; this pass reads how full agents are and what waits, and records each move as a
//! new assignment with its reason. Bounded: it looks at the ends of the longest queues only, moves at most `MOVES`, and predicts
//! distances only for agents that came after a choice. A task passes on only by the assignment that was looked at, and never to an agent
//! that its batch excludes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;

use crate::model::{AgentId, ChoiceCause, Gain, SiteId, Why};
use crate::store::assignments::{self, Assignment};
use crate::store::loads::{self, Available, Waiting};
use crate::store::{agents, quarantines};
use crate::strategy::balance::{self, Move, Queued};
use crate::strategy::{Candidate, Choice, Former, LoadLevel};

use super::admission::Admission;
use super::duty::OnDuty;
use super::known::Known;

/// Moves of one pass: what two hundred agents need at once, in a transaction well under a second.
const MOVES: usize = 200;
/// Tasks looked at of one queue: enough that an agent which shares but one in fifty of them finds one.
const LOOKED_AT: i64 = 100;
/// Queues looked at in one pass, the longest first.
const QUEUES: usize = 20;
/// Sites of one pass whose distance to a newcomer is predicted; half a millisecond each.
const PREDICTED: usize = 100;

/// The one who passes on.
#[derive(Debug)]
pub struct Balance {
    scheduler: OnDuty,
}

/// What a pass looks at.
struct Sight {
    agents: Vec<Available>,
    waiting: Vec<Waiting>,
    /// The agents as candidates, for each of the waiting.
    candidates: Vec<Arc<[Candidate]>>,
    queued: Vec<Queued>,
    admission: Admission,
}

impl Balance {
    /// Passes on for this scheduler.
    pub fn new(scheduler: OnDuty) -> Self {
        Self { scheduler }
    }

    /// One pass.
    pub async fn run_once(&self) -> anyhow::Result<()> {
        let Some(mut sight) = self.look().await? else { return Ok(()) };
        let fleet: Vec<Candidate> = sight.agents.iter().map(plain).collect();
        let moves = balance::plan(&fleet, &sight.queued, MOVES);
        if !moves.is_empty() {
            self.carry_out(&mut sight, &moves).await?;
        }
        Ok(())
    }

    /// What waits behind full agents while others have room, and who may have it; `None` when there is nothing to do.
    async fn look(&self) -> anyhow::Result<Option<Sight>> {
        let mut tx = self.scheduler.begin().await?;
        let agents = loads::available(&mut tx).await.context("read available agents")?;
        let longest = longest_queues(&agents);
        if longest.is_empty() || agents.len() < 2 {
            return Ok(None);
        }
        let waiting = loads::waiting_at(&mut tx, &longest, LOOKED_AT).await.context("read what waits")?;
        let newcomers = |task: &Waiting| -> Vec<AgentId> {
            let came = agents.iter().filter(|agent| agent.since > task.chosen_at && may_take(agent));
            let listed = |agent: AgentId| task.former.listed.iter().any(|one| one.agent == agent);
            came.map(|agent| agent.agent).filter(|agent| !listed(*agent) && *agent != task.former.agent).collect()
        };
        let newcomers: Vec<Vec<AgentId>> = waiting.iter().map(newcomers).collect();
        let unknown = waiting
            .iter()
            .zip(&newcomers)
            .filter(|(task, new)| task.former.strategy.needs_distance() && !new.is_empty());
        let sites: Vec<SiteId> = unknown.map(|(task, _)| task.site).take(PREDICTED).collect();
        let alarm = quarantines::alarm(&mut tx).await.context("read the alarm")?;
        let admission = Admission::read(&mut tx, waiting.iter().map(|task| task.batch)).await?;
        tx.commit().await.context("end looking")?;
        let known = if sites.is_empty() || alarm.is_some() {
            None
        } else {
            let map = self.scheduler.maps.current(&self.scheduler).await?;
            let mut tx = self.scheduler.begin().await?;
            Some(Known::read(&mut tx, &self.scheduler.maps, &sites, &agents, map).await?)
        };
        // Nearly all know nothing but the agents' loads: of a thousand agents and two thousand tasks that is one list and not two thousand.
        let plain: Arc<[Candidate]> = agents.iter().map(plain).collect();
        let candidates = waiting.iter().map(|task| match known.as_ref().filter(|_| sites.contains(&task.site)) {
            Some(known) => known.candidates(task.site, &agents).into(),
            None => Arc::clone(&plain),
        });
        let candidates: Vec<Arc<[Candidate]>> = candidates.collect();
        let queued = waiting.iter().zip(&newcomers).zip(&candidates).map(|((task, new), candidates)| {
            let mut takers = balance::takers(&task.former, candidates, new);
            takers.retain(|taker| admission.admits(task.batch, taker.agent));
            Queued { at: task.former.agent, takers }
        });
        let queued = queued.collect();
        Ok(Some(Sight { agents, waiting, candidates, queued, admission }))
    }

    async fn carry_out(&self, sight: &mut Sight, moves: &[Move]) -> anyhow::Result<()> {
        let mut tx = self.scheduler.begin().await?;
        let names = agents::names(&mut tx).await.context("read the agents' names")?;
        let looked_at: Vec<&Waiting> = moves.iter().filter_map(|one| sight.waiting.get(one.queued)).collect();
        let held = loads::hold_on(&mut tx, &looked_at).await.context("lock what waits")?;
        let (mut made, mut to) = (Vec::new(), BTreeSet::new());
        for one in moves {
            let (Some(waiting), Some(candidates)) = (sight.waiting.get(one.queued), sight.candidates.get(one.queued))
            else {
                continue;
            };
            // Looked at again: a move before this one may have used up what there was of a quota.
            let admitted = candidates.iter().filter(|one| sight.admission.admits(waiting.batch, one.agent));
            let available = admitted.clone().count();
            let taker = admitted.into_iter().find(|candidate| candidate.agent == one.to);
            let Some(taker) = taker.filter(|_| held.contains(&waiting.task)) else { continue };
            let candidates_now = balance::relisted(&waiting.former, taker, candidates);
            let exclusions = sight.admission.exclusions(&mut tx, waiting.batch).await?;
            let Former { strategy, ref fallback, .. } = waiting.former;
            let choice = Choice { agent: one.to, candidates: candidates_now, strategy, fallback: fallback.clone() };
            let why = Why { cause: rebalanced(waiting, one.gain, &names), ..Why::default() };
            let assignment = Assignment::new(waiting.task, waiting.seed, choice, why);
            made.push(Assignment { available, exclusions, ..assignment });
            sight.admission.gave(waiting.batch, waiting.former.agent);
            sight.admission.took(waiting.batch, one.to);
            to.insert(one.to);
        }
        assignments::insert(&mut tx, &made).await.context("pass tasks on")?;
        tx.commit().await.context("commit the tasks passed on")?;
        tracing::debug!(moved = made.len(), agents = to.len(), "passed waiting tasks on");
        self.scheduler.wakes.wake_agents(to);
        Ok(())
    }
}

/// An agent as a candidate whose distance is not asked for.
fn plain(agent: &Available) -> Candidate {
    Candidate { load: agent.load, pace: agent.pace, ..Candidate::new(agent.agent, agent.capacity) }
}

fn level(agent: &Available) -> LoadLevel {
    LoadLevel::of(agent.load, agent.capacity)
}

/// Whether it takes newcomers' part: at most a task a slot waits there.
fn may_take(agent: &Available) -> bool {
    level(agent).get() < i64::from(agent.capacity)
}

/// The agents at which something waits that has no slot, the fullest first.
fn longest_queues(agents: &[Available]) -> Vec<AgentId> {
    let mut queues: Vec<&Available> =
        agents.iter().filter(|agent| agent.waiting > 0 && level(agent).get() > 0).collect();
    queues.sort_by_key(|agent| std::cmp::Reverse((level(agent), agent.agent)));
    queues.iter().map(|agent| agent.agent).take(QUEUES).collect()
}

/// Why a task moves.
fn rebalanced(waiting: &Waiting, gain: Gain, names: &BTreeMap<AgentId, String>) -> ChoiceCause {
    let from = names.get(&waiting.former.agent).map_or("another agent", String::as_str);
    ChoiceCause::Rebalanced { from: from.to_owned(), gain }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::model::{BatchId, Parted, Parting, SessionId, TaskId};
    use crate::store::{drains, fixtures, leases};
    use crate::tasks::assign::Assign;
    use crate::tasks::trial::Trial;

    /// Three agents of two slots 10, 20 and 30 ms from every site, and a batch of located tasks.
    struct Scene {
        trial: Trial,
        agents: Vec<(AgentId, SessionId)>,
        batch: BatchId,
    }

    impl Scene {
        async fn new(pool: PgPool) -> Self {
            let trial = Trial::new(pool).await;
            let agents = trial.connect(3).await;
            let batch = trial.batch("b", "gnp-top3").await;
            Self { trial, agents, batch }
        }

        /// A located task, measured by all of the scene's agents.
        async fn located(&self, host: &str) -> TaskId {
            let mut conn = self.trial.conn().await;
            let site = fixtures::site(&mut conn, host).await;
            let distances: Vec<_> =
                (1..).zip(&self.agents).map(|(place, (agent, _))| (*agent, Some(place * 10))).collect();
            self.trial.measured(site, &distances).await;
            fixtures::task(&mut conn, self.batch, site, "located").await
        }

        async fn assign(&self) {
            Assign::new(self.trial.plan()).run_once().await.expect("a pass");
        }

        async fn balance(&self) {
            Balance::new(self.trial.plan()).run_once().await.expect("a pass");
        }

        /// Leases granted to the agent in this place.
        async fn grant(&self, place: usize) -> usize {
            let (agent, session) = self.agents[place];
            let mut conn = self.trial.conn().await;
            leases::grant(&mut conn, agent, session).await.expect("grant").len()
        }

        /// The place of the agent that has a task now, and why.
        async fn at(&self, task: TaskId) -> (usize, Why) {
            let (agent, why): (i64, Option<String>) = sqlx::query_as(
                "select c.agent_id, c.detail::text from tasks t join assignments c on c.id = t.assignment_id where t.id = $1",
            )
            .bind(task.get())
            .fetch_one(&self.trial.scheduler.pool)
            .await
            .expect("read");
            let why = why.map_or_else(Why::default, |why| serde_json::from_str(&why).expect("a cause"));
            (self.agents.iter().position(|(id, _)| id.get() == agent).expect("one of them"), why)
        }

        async fn loads(&self) -> Vec<u32> {
            let mut conn = self.trial.conn().await;
            loads::available(&mut conn).await.expect("look").iter().map(|agent| agent.load).collect()
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_full_candidate_is_passed_over_and_beyond_that_queues_are_even(pool: PgPool) {
        let scene = Scene::new(pool).await;
        for number in 0..6 {
            scene.located(&format!("s{number}.cn")).await;
        }
        scene.assign().await;
        assert_eq!(scene.loads().await, [2, 2, 2], "six slots for six tasks");
        let more: Vec<TaskId> =
            [scene.located("x.cn").await, scene.located("y.cn").await, scene.located("z.cn").await].into();
        scene.assign().await;
        assert_eq!(scene.loads().await, [3, 3, 3]);
        assert_eq!(scene.at(more[0]).await.1, Why::default(), "none had room, so that none was passed over");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_waits_at_a_full_agent_goes_to_a_candidate_that_idles(pool: PgPool) {
        let scene = Scene::new(pool).await;
        let mut tasks = Vec::new();
        for number in 0..9 {
            tasks.push(scene.located(&format!("s{number}.cn")).await);
        }
        scene.assign().await;
        for place in 0..3 {
            assert_eq!(scene.grant(place).await, 2);
        }
        scene.balance().await;
        assert_eq!(scene.loads().await, [3, 3, 3], "nobody idles and no queue is longer");
        // The second agent ends what it has, and the task that waits there is granted.
        let done = "update tasks set state = 'done' where agent_id = (select id from agents where name = 'a1') and state = 'leased'";
        for _ in 0..2 {
            scene.trial.execute(done).await;
            scene
                .trial
                .execute("update leases set state = 'completed' from tasks t where t.id = task_id and t.state = 'done'")
                .await;
            scene.grant(1).await;
        }
        assert_eq!(scene.loads().await, [3, 0, 3]);
        scene.balance().await;
        assert_eq!(scene.loads().await, [2, 2, 2]);
        assert_eq!(scene.grant(1).await, 2);
        let mut passed_on = BTreeSet::new();
        for task in &tasks {
            if let ChoiceCause::Rebalanced { from, gain } = scene.at(*task).await.1.cause {
                assert!(passed_on.insert(from) && gain == Gain::BeginsAtOnce);
            }
        }
        assert_eq!(passed_on, BTreeSet::from(["a0".to_owned(), "a2".to_owned()]));
        scene.balance().await;
        assert_eq!(scene.loads().await, [2, 2, 2], "and nothing goes back");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn who_joins_gets_what_waits_and_it_is_a_candidate_for(pool: PgPool) {
        let mut scene = Scene::new(pool).await;
        for number in 0..12 {
            scene.located(&format!("s{number}.cn")).await;
        }
        scene.assign().await;
        for place in 0..3 {
            scene.grant(place).await;
        }
        let joined = fixtures::agent(&mut *scene.trial.conn().await, "a3").await;
        scene.agents.push((joined, scene.trial.session(joined).await));
        scene.balance().await;
        assert_eq!(scene.loads().await, [4, 4, 4, 0], "nobody knows where it is");
        let sites: Vec<(i64,)> =
            sqlx::query_as("select id from sites").fetch_all(&scene.trial.scheduler.pool).await.expect("read");
        for (site,) in sites {
            scene.trial.measured(SiteId::new(site), &[(joined, Some(5))]).await;
        }
        scene.balance().await;
        // Two begin at once; one more is laid ready, since it is clearly nearer and no more wait there.
        let loads = scene.loads().await;
        assert_eq!(loads, [3, 3, 3, 3]);
        assert_eq!(scene.grant(3).await, 2);
        let listed = scene.trial.count(
            "select count(*) from tasks t join assignments c on c.id = t.assignment_id join agents a on a.id = t.agent_id
             where a.name = 'a3' and c.candidates[1] = a.id and cardinality(c.candidates) = 3 and c.measured_us[1] = 5000",
        );
        assert_eq!(listed.await, 3, "the first of three candidates");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_a_leaving_agent_has_goes_to_its_next_candidate(pool: PgPool) {
        let scene = Scene::new(pool).await;
        let mut tasks = Vec::new();
        for number in 0..6 {
            tasks.push(scene.located(&format!("s{number}.cn")).await);
        }
        scene.assign().await;
        assert_eq!(scene.grant(0).await, 2);
        assert_eq!(scene.loads().await, [2, 2, 2]);
        let held: Vec<(i64, i64)> = sqlx::query_as("select task_id, token from leases")
            .fetch_all(&scene.trial.scheduler.pool)
            .await
            .expect("read");
        let mut conn = scene.trial.conn().await;
        drains::drain(&mut conn, "a0").await.expect("drain");
        for (task, token) in held {
            let (task, token) = (TaskId::new(task), crate::model::LeaseToken::new(token));
            let back = leases::release(&mut conn, scene.agents[0].0, task, token, None, fixtures::MAX_CRASHES).await;
            assert!(back.expect("hand back"));
        }
        scene.assign().await;
        // Of the two others none has room: the nearer is the next.
        assert_eq!(scene.loads().await, [4, 2]);
        let next_after = |agent: &str, how| {
            let parted = Some(Parted { agent: agent.to_owned(), how });
            Why { cause: ChoiceCause::NextCandidate, parted, fallback: None }
        };
        let mut next = 0;
        for task in tasks {
            let (place, why) = scene.at(task).await;
            assert_ne!(place, 0);
            next += usize::from((place, why) == (1, next_after("a0", Parting::Drained)));
        }
        assert_eq!(next, 2);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_became_of_the_agent_chosen_before_is_told_by_what_is_stored(pool: PgPool) {
        let mut scene = Scene::new(pool).await;
        let lose = "update sessions set state = 'expired', end_cause = 'expired', ended_at = now() where state = 'active' and agent_id = $1";
        let pause = "update sessions set paused = 'the disk is full' where state = 'active' and agent_id = $1";
        // Whether it began the crawl and handed it back, what happened to it then, and what is said of that.
        let cases = [
            (true, false, lose, Parting::Lost),
            (true, true, pause, Parting::HandedBack),
            (true, true, "update agents set draining_since = now() where id = $1", Parting::Drained),
            (
                true,
                false,
                "update sessions set state = 'closed', end_cause = 'left' where state = 'active' and agent_id = $1",
                Parting::Left,
            ),
            (false, false, lose, Parting::WaitedAway),
            (false, false, pause, Parting::WaitedPaused),
            (
                false,
                false,
                "update sessions set hung_up_at = now() - interval '1 hour' where state = 'active' and agent_id = $1",
                Parting::WaitedHungUp,
            ),
            (false, false, "update agents set draining_since = now() where id = $1", Parting::WaitedDrained),
            (
                false,
                false,
                "update agents set removed_at = now(), draining_since = now() where id = $1",
                Parting::WaitedRemoved,
            ),
        ];
        for (number, (begins, hands_back, happens, how)) in cases.into_iter().enumerate() {
            let task = scene.located(&format!("s{number}.cn")).await;
            scene.assign().await;
            let (place, _) = scene.at(task).await;
            let (agent, _) = scene.agents[place];
            if begins {
                assert_eq!(scene.grant(place).await, 1);
            }
            let mut conn = scene.trial.conn().await;
            if hands_back {
                let token = crate::model::LeaseToken::new(1);
                let back = leases::release(&mut conn, agent, task, token, None, fixtures::MAX_CRASHES).await;
                assert!(back.expect("hand back"));
            }
            sqlx::query(happens).bind(agent.get()).execute(&mut *conn).await.expect("it happens");
            leases::release_of_ended_sessions(&mut conn, fixtures::MAX_CRASHES).await.expect("release");
            scene.assign().await;
            let (next, why) = scene.at(task).await;
            assert_ne!(next, place, "{how:?}");
            let agent_before = format!("a{place}");
            let parted = Some(Parted { agent: agent_before.clone(), how });
            assert_eq!(why, Why { cause: ChoiceCause::NextCandidate, parted, fallback: None });
            let logged: String = sqlx::query_scalar(
                "select cause from events where task_id = $1 and what = 'assigned' order by id desc limit 1",
            )
            .bind(task.get())
            .fetch_one(&mut *conn)
            .await
            .expect("read");
            assert_eq!(logged, format!("next-candidate: {agent_before} {}", how.name()), "so does the log");
            let progress = crate::store::batches::progress(&mut conn, scene.batch).await.expect("look");
            assert_eq!(progress.waiting_for, None, "it has an agent again");
            // Everything as before, for the next.
            sqlx::query("update tasks set state = 'cancelled' where id = $1")
                .bind(task.get())
                .execute(&mut *conn)
                .await
                .expect("cancel");
            let back = "update agents set draining_since = null, removed_at = null where id = $1";
            sqlx::query(back).bind(agent.get()).execute(&mut *conn).await.expect("bring it back");
            drop(conn);
            scene.agents[place].1 = scene.trial.session(agent).await;
        }
    }
}
