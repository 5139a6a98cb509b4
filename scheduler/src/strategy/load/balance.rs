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

use super::level::{LoadLevel, last_ends};
use crate::strategy::candidate::Candidate;
use crate::strategy::rules::anycast;
use crate::strategy::rules::next_candidate::RecordedChoice;

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
        Strategy::GnpConfirmed => return others(&listed[..anycast::near(&listed).unwrap_or(0).min(listed.len())]),
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
mod tests;
