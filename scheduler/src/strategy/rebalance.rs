//! Rebalancing: moves tasks that wait at one agent to another eligible agent.
//!
//! The agent is chosen when a task is located, but loads change later. A task that is assigned but
//! not leased moves in three cases:
//!
//! 1. to a candidate with a free slot, if the task ends sooner at the candidate;
//! 2. to a candidate where the task ends sooner by at least a crawl's duration (the longer pace of
//!    the two agents). If more than one task per slot would wait at the candidate after the move,
//!    the time to the task's end must also fall to at most three quarters;
//! 3. to an agent that became available after the choice (a *newcomer*) and is clearly nearer, if
//!    the task ends no later at the newcomer, and at most one task per slot waits at the newcomer
//!    after the move.
//!
//! Because of rule 2, a fast agent has its next task ready when a crawl ends. Rule 2 also levels
//! long queues before any agent is idle. If queues were levelled only when an agent is idle, the
//! tasks that remain at a slow agent could be tasks that no idle agent may crawl. The end of a task
//! is predicted from the tasks before it and the agent's pace.
//!
//! Tasks do not move back and forth. After a move by rule 1, the former agent has no free slot, so
//! the task cannot move back until this agent has a free slot. After a move by rule 2, the task
//! would end a crawl's duration later at the former agent. The task moves back only after loads
//! change by two tasks, or paces by a third. After a move by rule 3, the newcomer is stored as a
//! candidate, so it is no longer a newcomer for this task.
//!
//! Tasks are taken from the queue that ends last. Each task moves to the agent where it ends first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{AgentId, Gain, Rtt, Strategy};

use super::candidate_and_site::Candidate;
use super::distance_strategies;
use super::first_and_next_choice::RecordedChoice;
use super::load_and_pace::{LoadLevel, last_ends};

/// If at most this many tasks per slot wait at the new agent after a move, the task moves if it
/// ends sooner by at least the longer pace of the two agents.
const AHEAD: i64 = 1;
/// If more than [`AHEAD`] tasks per slot wait at the new agent, a task moves only if the time to
/// its end falls to at most this share. The share is well below 1, because an agent's pace has an
/// error of about 15 %, and two paces are compared.
const MUCH_SOONER: f64 = 0.75;
/// A newcomer is clearly nearer only if its distance is at most this share of the current agent's
/// distance, because nine in ten predictions err by less than a third
/// (docs/evaluation/accuracy.md).
const NEARER_SHARE: f64 = 0.67;
/// A newcomer is clearly nearer only if its distance is shorter by at least this time, because a
/// smaller difference has no effect on a crawl.
const NEARER_BY: Duration = Duration::from_millis(2);

/// An agent that may get a task that waits at another agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BalanceTarget {
    pub agent: AgentId,
    /// Whether the agent is a newcomer (an agent that became available after the choice) and is
    /// clearly nearer than the chosen agent.
    pub nearer: bool,
}

/// A task that is assigned but not leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovableTask {
    pub at: AgentId,
    /// The agents that may get the task, best first.
    pub takers: Vec<BalanceTarget>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskMove {
    /// The index of the task.
    pub queued: usize,
    pub to: AgentId,
    pub gain: Gain,
}

/// Returns the agents that may get a task from its chosen agent: the other candidates, and
/// newcomers that are nearer than the farthest candidate. `available` are all agents that accept
/// work, with their distances to the site.
///
/// For `random`, every available agent is a candidate. For `gnp-confirmed`, only agents about as
/// near as the best are candidates. For `hash` and `domain`, no other agent is a candidate. Only
/// `gnp-topK` and `gnp-balanced` accept newcomers.
pub fn takers(former: &RecordedChoice, available: &[Candidate], newcomers: &[AgentId]) -> Vec<BalanceTarget> {
    let others = |listed: &[Candidate]| -> Vec<BalanceTarget> {
        let others = listed.iter().map(|one| one.agent).filter(|agent| *agent != former.agent);
        others.map(|agent| BalanceTarget { agent, nearer: false }).collect()
    };
    let listed = former.candidates(available);
    match former.strategy {
        Strategy::Random => return others(available),
        Strategy::Hash | Strategy::Domain => return Vec::new(),
        Strategy::Kademlia | Strategy::Geographic | Strategy::Prefix | Strategy::EarliestFinish => {
            return others(&listed);
        }
        Strategy::GnpConfirmed => {
            return others(&listed[..distance_strategies::near(&listed).unwrap_or(0).min(listed.len())]);
        }
        Strategy::GnpTop(_) | Strategy::GnpBalanced => {}
    }
    let mut takers = others(&listed);
    let Some(worst) = listed.iter().map(Candidate::distance).max().flatten() else { return takers };
    let at = listed.iter().find(|one| one.agent == former.agent).and_then(Candidate::distance);
    for newcomer in available.iter().filter(|one| newcomers.contains(&one.agent)) {
        let Some(distance) = newcomer.distance().filter(|distance| *distance < worst) else { continue };
        if listed.iter().all(|one| one.agent != newcomer.agent) {
            takers.push(BalanceTarget {
                agent: newcomer.agent,
                nearer: at.is_some_and(|at| clearly_nearer(distance, at)),
            });
        }
    }
    takers
}

fn clearly_nearer(distance: Rtt, than: Rtt) -> bool {
    let (distance, than) = (distance.as_duration(), than.as_duration());
    distance <= than.mul_f64(NEARER_SHARE) && distance + NEARER_BY <= than
}

/// The candidates of a task that moves to `to`: the stored candidates, or for `random` only `to`. A
/// newcomer is inserted by its distance, and the last candidate is dropped.
pub fn relisted(former: &RecordedChoice, to: &Candidate, available: &[Candidate]) -> Vec<Candidate> {
    let mut listed = former.candidates(available);
    if former.strategy == Strategy::Random {
        return vec![*to];
    }
    if listed.iter().all(|one| one.agent != to.agent) {
        let most = listed.len();
        let place = listed.iter().take_while(|one| one.distance() <= to.distance()).count();
        listed.insert(place, *to);
        listed.truncate(most.max(place + 1));
    }
    listed
}

/// Plans at most `most` moves of queued tasks. `available` are all agents that accept work. Tasks
/// of agents that are not in `available` do not move.
pub fn plan(available: &[Candidate], queued: &[MovableTask], most: usize) -> Vec<TaskMove> {
    let mut states: BTreeMap<AgentId, AgentQueue> = available
        .iter()
        .map(|one| (one.agent, AgentQueue { level: one.level(), capacity: one.capacity, pace: one.pace }))
        .collect();
    let mut queues: BTreeMap<AgentId, Vec<usize>> = BTreeMap::new();
    for (index, task) in queued.iter().enumerate() {
        queues.entry(task.at).or_default().push(index);
    }
    let mut moves = Vec::new();
    while moves.len() < most {
        let longest = queues.keys().filter_map(|at| Some((states.get(at)?.ends(0), Reverse(*at)))).max();
        let Some((_, Reverse(at))) = longest else { break };
        let (Some(tasks), Some(from)) = (queues.get_mut(&at), states.get(&at).copied()) else { break };
        let Some((place, to, gain)) = best(from, tasks, queued, &states) else {
            // No task of this queue may move now. Later moves of this plan may shorten other
            // agents' queues, but only the next plan tries this queue again.
            queues.remove(&at);
            continue;
        };
        moves.push(TaskMove { queued: tasks.remove(place), to, gain });
        for (agent, tasks) in [(at, -1), (to, 1)] {
            if let Some(state) = states.get_mut(&agent) {
                state.level = state.level.plus(tasks);
            }
        }
    }
    moves
}

#[derive(Debug, Clone, Copy)]
struct AgentQueue {
    level: LoadLevel,
    capacity: u32,
    pace: Duration,
}

impl AgentQueue {
    /// Time until the agent's last task ends, after `more` tasks are added.
    fn ends(&self, more: i64) -> Duration {
        last_ends(self.level.plus(more), self.capacity, self.pace)
    }

    /// The gain of moving a task from this agent to `there`; `None` if the task may not move.
    fn gives(&self, there: Self, nearer: bool) -> Option<Gain> {
        if self.level.get() <= 0 {
            return None;
        }
        let (here, then) = (self.ends(0), there.ends(1));
        if there.level.has_room() {
            return (then < here).then_some(Gain::BeginsAtOnce);
        }
        let ahead = there.level.plus(1).get() <= AHEAD * i64::from(there.capacity);
        let sooner = then + self.pace.max(there.pace) <= here;
        if sooner && (ahead || then <= here.mul_f64(MUCH_SOONER)) {
            return Some(Gain::EndsSooner);
        }
        (ahead && nearer && then <= here).then_some(Gain::Nearer)
    }
}

/// Finds the best move from one queue: the index of the task in the queue, the target and the gain.
fn best(
    from: AgentQueue,
    tasks: &[usize],
    queued: &[MovableTask],
    states: &BTreeMap<AgentId, AgentQueue>,
) -> Option<(usize, AgentId, Gain)> {
    let mut best: Option<(Duration, usize, usize, AgentId, Gain)> = None;
    for (place, index) in tasks.iter().enumerate() {
        for (rank, taker) in queued.get(*index)?.takers.iter().enumerate() {
            let Some(there) = states.get(&taker.agent) else { continue };
            let Some(gain) = from.gives(*there, taker.nearer) else { continue };
            if best.as_ref().is_none_or(|best| (there.ends(1), rank, place) < (best.0, best.1, best.2)) {
                best = Some((there.ends(1), rank, place, taker.agent, gain));
            }
        }
    }
    best.map(|(_, _, place, to, gain)| (place, to, gain))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, proptest};

    use super::*;
    use crate::strategy::RecordedCandidate;
    use crate::strategy::fixture::measured;

    fn agent(agent: i64, load: u32, capacity: u32) -> Candidate {
        let pace = Duration::from_secs(1);
        Candidate { load, pace, ..Candidate::new(AgentId::new(agent), capacity) }
    }

    fn at_distance(number: i64, load: u32, millis: f64) -> Candidate {
        Candidate { load, capacity: 2, ..measured(number, millis) }
    }

    fn waits(at: i64, takers: &[i64]) -> MovableTask {
        let takers = takers.iter().map(|&agent| BalanceTarget { agent: AgentId::new(agent), nearer: false });
        MovableTask { at: AgentId::new(at), takers: takers.collect() }
    }

    fn former(strategy: Strategy, chosen: i64, listed: &[(i64, f64)]) -> RecordedChoice {
        let listed = listed.iter().map(|&(agent, millis)| RecordedCandidate {
            agent: AgentId::new(agent),
            predicted: None,
            measured: Rtt::try_from_millis_f64(millis).ok(),
        });
        RecordedChoice { agent: AgentId::new(chosen), strategy, fallback: None, listed: listed.collect() }
    }

    fn moved(moves: &[TaskMove]) -> Vec<(usize, i64, Gain)> {
        moves.iter().map(|one| (one.queued, one.to.get(), one.gain)).collect()
    }

    #[test]
    fn what_waits_goes_to_an_idle_candidate_and_not_to_an_idle_stranger() {
        let agents = [agent(1, 4, 2), agent(2, 1, 2), agent(3, 0, 2)];
        let moves = plan(&agents, &[waits(1, &[2]), waits(1, &[2])], 10);
        assert_eq!(
            moved(&moves),
            [(0, 2, Gain::BeginsAtOnce)],
            "2 has one slot, then nothing to gain; 3 is no candidate"
        );
    }

    #[test]
    fn nothing_leaves_an_agent_with_a_free_slot_and_nothing_that_is_gone_gives() {
        assert_eq!(plan(&[agent(1, 2, 2), agent(2, 0, 2)], &[waits(1, &[2])], 10), [], "it begins at once where it is");
        assert_eq!(plan(&[agent(2, 0, 2)], &[waits(1, &[2])], 10), [], "an agent that is gone is withdrawn from");
    }

    #[test]
    fn one_task_a_slot_is_laid_ready_where_a_whole_round_less_waits() {
        let queue: Vec<MovableTask> = (0..9).map(|_| waits(1, &[2])).collect();
        // Three tasks wait at agent 1, and none at agent 2. One task moves, and is agent 2's next
        // task.
        assert_eq!(moved(&plan(&[agent(1, 4, 1), agent(2, 1, 1)], &queue[..3], 10)), [(0, 2, Gain::EndsSooner)]);
        // Both queues are long. Tasks move until the times at which the queues end differ by less
        // than a quarter.
        let long = [agent(1, 101, 1), agent(2, 51, 1)];
        let queue_of_100: Vec<MovableTask> = (0..100).map(|_| waits(1, &[2])).collect();
        let moves = plan(&long, &queue_of_100, 100).len();
        assert!((8..=20).contains(&moves), "{moves} moves leave {} and {}", 101 - moves, 51 + moves);
        // Two tasks wait at agent 1, and one task waits at agent 2, so a move gains nothing.
        assert_eq!(plan(&[agent(1, 3, 1), agent(2, 2, 1)], &queue[..2], 10), []);
        assert_eq!(plan(&[agent(1, 2, 1), agent(2, 1, 1)], &queue[..1], 10), []);
    }

    #[test]
    fn what_ends_sooner_where_it_waits_stays_there() {
        let slow = |load| Candidate { pace: Duration::from_secs(4), ..agent(2, load, 1) };
        assert_eq!(plan(&[agent(1, 3, 1), slow(0)], &[waits(1, &[2])], 10), [], "in three seconds here, in four there");
        assert_eq!(moved(&plan(&[agent(1, 5, 1), slow(0)], &[waits(1, &[2])], 10)), [(0, 2, Gain::BeginsAtOnce)]);
        // The queue of the slow agent ends last, so its task moves first, although it has fewer
        // tasks.
        let agents = [agent(1, 5, 1), slow(3), agent(3, 0, 1)];
        assert_eq!(moved(&plan(&agents, &[waits(1, &[3]), waits(2, &[3])], 1)), [(1, 3, Gain::BeginsAtOnce)]);
    }

    #[test]
    fn the_queue_that_ends_last_gives_first_and_of_the_idle_the_best_takes_first() {
        let agents = [agent(1, 3, 2), agent(2, 6, 2), agent(3, 1, 2), agent(4, 0, 2)];
        let moves = plan(&agents, &[waits(1, &[3, 4]), waits(2, &[3, 4]), waits(2, &[3, 4])], 2);
        assert_eq!(moved(&moves), [(1, 3, Gain::BeginsAtOnce), (2, 4, Gain::BeginsAtOnce)]);
    }

    #[test]
    fn a_newcomer_is_a_taker_where_it_would_be_a_candidate() {
        let former = former(Strategy::GNP_TOP3, 5, &[(4, 10.0), (5, 40.0), (6, 50.0)]);
        let of = |newcomer: f64, known: &[i64]| -> Vec<(i64, bool)> {
            let available = [at_distance(4, 9, 10.0), at_distance(7, 0, newcomer)];
            let newcomers: Vec<AgentId> = known.iter().map(|&agent| AgentId::new(agent)).collect();
            takers(&former, &available, &newcomers).iter().map(|taker| (taker.agent.get(), taker.nearer)).collect()
        };
        assert_eq!(of(20.0, &[7]), [(4, false), (6, false), (7, true)]);
        assert_eq!(of(35.0, &[7]), [(4, false), (6, false), (7, false)], "nearer, not clearly");
        assert_eq!(of(60.0, &[7]), [(4, false), (6, false)], "three are nearer");
        assert_eq!(of(20.0, &[]), [(4, false), (6, false)], "it was there and was not among the three");
        let to = at_distance(7, 0, 20.0);
        let listed: Vec<i64> = relisted(&former, &to, &[to]).iter().map(|one| one.agent.get()).collect();
        assert_eq!(listed, [4, 7, 5], "the third is the fourth now");
    }

    #[test]
    fn a_newcomer_that_is_clearly_nearer_takes_what_would_wait_no_longer_there() {
        let nearer = |load| {
            let queue =
                [MovableTask { takers: vec![BalanceTarget { agent: AgentId::new(2), nearer: true }], ..waits(1, &[]) }];
            moved(&plan(&[agent(1, 3, 2), agent(2, load, 2)], &queue, 10))
        };
        assert_eq!(nearer(1), [(0, 2, Gain::BeginsAtOnce)]);
        assert_eq!(nearer(2), [(0, 2, Gain::Nearer)]);
        assert_eq!(nearer(3), []);
    }

    #[test]
    fn at_random_everybody_is_a_candidate_and_of_the_confirmed_only_the_near() {
        let available = [at_distance(1, 0, 9.0), at_distance(2, 0, 10.0), at_distance(3, 0, 90.0)];
        let of = |strategy, listed: &[(i64, f64)]| -> Vec<i64> {
            takers(&former(strategy, 1, listed), &available, &[]).iter().map(|taker| taker.agent.get()).collect()
        };
        assert_eq!(of(Strategy::Random, &[(1, 9.0)]), [2, 3]);
        assert_eq!(of(Strategy::GnpConfirmed, &[(1, 9.0), (2, 10.0), (3, 90.0)]), [2]);
        assert_eq!(of(Strategy::GNP_TOP1, &[(1, 9.0)]), Vec::<i64>::new());
    }

    proptest! {
        #[test]
        fn moving_ends_and_then_nothing_waits_while_a_candidate_idles(
            capacities in prop::collection::vec(1_u32..5, 2..7),
            tasks in prop::collection::vec((0_usize..7, prop::collection::btree_set(0_usize..7, 1..4)), 0..60),
            paces in prop::collection::vec(1_u64..5, 7..8),
            most in 1_usize..8,
        ) {
            let count = capacities.len();
            let id = |index: usize| AgentId::new(i64::try_from(index % count).unwrap());
            let mut queued: Vec<MovableTask> = tasks
                .iter()
                .map(|(at, others)| {
                    let takers = others.iter().map(|&other| BalanceTarget { agent: id(other), nearer: false });
                    MovableTask { at: id(*at), takers: takers.chain([BalanceTarget { agent: id(*at), nearer: false }]).collect() }
                })
                .collect();
            let fleet = |queued: &[MovableTask]| -> Vec<Candidate> {
                let load = |agent: AgentId| u32::try_from(queued.iter().filter(|task| task.at == agent).count()).unwrap();
                let one = |(index, &slots): (usize, &u32)| Candidate {
                    pace: Duration::from_secs(paces[index]),
                    ..agent(id(index).get(), load(id(index)), slots)
                };
                capacities.iter().enumerate().map(one).collect()
            };
            let mut passes = 0;
            loop {
                let before = fleet(&queued);
                let others: Vec<MovableTask> = queued
                    .iter()
                    .map(|task| MovableTask { takers: task.takers.iter().filter(|one| one.agent != task.at).copied().collect(), ..*task })
                    .collect();
                let moves = plan(&before, &others, most);
                prop_assert!(moves.len() <= most);
                for one in &moves {
                    prop_assert!(queued[one.queued].takers.iter().any(|taker| taker.agent == one.to), "only to a candidate");
                    queued[one.queued].at = one.to;
                }
                let ends = |one: &Candidate| last_ends(one.level(), one.capacity, one.pace);
                let worst = |fleet: &[Candidate]| fleet.iter().filter(|one| one.load > 0).map(ends).max();
                prop_assert!(worst(&fleet(&queued)) <= worst(&before), "no queue outgrows the longest");
                if moves.is_empty() {
                    break;
                }
                passes += 1;
                prop_assert!(passes <= 60 * count, "to and fro");
            }
            let fleet = fleet(&queued);
            let of = |agent: AgentId| fleet.iter().find(|one| one.agent == agent).unwrap();
            for task in &queued {
                let at = of(task.at);
                let here = last_ends(at.level(), at.capacity, at.pace);
                let better = |taker: &BalanceTarget| of(taker.agent).level().has_room() && of(taker.agent).next_ends() < here;
                prop_assert!(at.level().get() <= 0 || !task.takers.iter().any(better), "it waits and a candidate idles");
            }
        }
    }
}
