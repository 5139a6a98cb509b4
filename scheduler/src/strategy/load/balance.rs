//! Rebalancing: moving tasks that wait at one agent to another eligible agent.
//!
//! The agent is chosen when a task is located; loads change later. So that no task waits while a
//! candidate has a free slot, a task that is assigned and not begun moves
//!
//! 1. to a candidate with a free slot, from an agent without one, if it ends sooner there. It
//!    begins at once, which helps unless the candidate is so slow that waiting is quicker.
//! 2. to a candidate where it ends sooner by a whole crawl; and, if more than one task per slot
//!    would then wait there, within three quarters of the time. So a fast agent has its next task
//!    when it ends one. Long queues become even in time, not in number, before any agent idles:
//!    otherwise a slow agent with tasks that only it may have ends late, and no other agent can
//!    help.
//! 3. to an agent that became available after the choice and is clearly nearer, if it ends no later
//!    there.
//!
//! The end of a task is predicted from the waiting rounds and the agent's pace. Tasks do not
//! oscillate. Rule 1 leaves the former agent without a free slot, so the way back is closed until
//! it has one. After rule 2 the way back is a whole crawl longer, so loads must change by two, or
//! paces by a third. Rule 3 makes the newcomer a candidate, and a candidate is no longer a
//! newcomer. Moves come from the end of the queue that ends last, because its beginning is about to
//! be leased, and go where they end first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{AgentId, Gain, Rtt, Strategy};

use super::last_ends;
use crate::strategy::rules::anycast;
use crate::strategy::rules::next::RecordedChoice;
use crate::strategy::{Candidate, LoadLevel};

/// Waiting tasks per slot up to which ending a whole crawl sooner suffices: the next task of each
/// slot.
const AHEAD: i64 = 1;
/// Beyond that a task must end within this share of the time: an agent's pace is known to about 15
/// %, and two paces are compared.
const MUCH_SOONER: f64 = 0.75;
/// A newcomer is clearly nearer below this share of the current agent's distance: nine in ten
/// predictions err by less than a third (docs/accuracy.md), so that the newcomer is more often
/// nearer than the map is right.
const NEARER_SHARE: f64 = 0.67;
/// The least improvement for a newcomer: a smaller one does not affect a crawl.
const NEARER_BY: Duration = Duration::from_millis(2);

/// An agent that may take a task that waits elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BalanceTarget {
    pub agent: AgentId,
    /// It became available after the choice, and is clearly nearer than the chosen agent.
    pub nearer: bool,
}

/// A task that is assigned and not begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovableTask {
    pub at: AgentId,
    /// The other eligible agents, best first.
    pub takers: Vec<BalanceTarget>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskMove {
    pub queued: usize,
    pub to: AgentId,
    pub gain: Gain,
}

/// The agents that may take a task that waits at its chosen agent: the other candidates, and
/// `newcomers` that would be candidates. `available` are all agents that take work, with their
/// distances to the site.
///
/// For `random` every agent is a candidate; for `gnp-confirmed` only those as near as the best; for
/// strategies by name alone, no other agent. Newcomers qualify by nearness, so only `gnp-top1`,
/// `gnp-top3` and `gnp-balanced` accept them.
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
        Strategy::GnpTop1 | Strategy::GnpTop3 | Strategy::GnpBalanced => {}
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

/// The candidates of a task that moves to `to`: as recorded, with a newcomer inserted in rank
/// order; then the last candidate drops out.
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

/// Which queued tasks move where, up to `most`. `available` are all agents that take work; tasks
/// that wait at other agents do not move.
pub fn plan(available: &[Candidate], queued: &[MovableTask], most: usize) -> Vec<TaskMove> {
    let mut standing: BTreeMap<AgentId, AgentQueue> = available
        .iter()
        .map(|one| (one.agent, AgentQueue { level: one.level(), capacity: one.capacity, pace: one.pace }))
        .collect();
    let mut queues: BTreeMap<AgentId, Vec<usize>> = BTreeMap::new();
    for (index, task) in queued.iter().enumerate() {
        queues.entry(task.at).or_default().push(index);
    }
    let mut moves = Vec::new();
    while moves.len() < most {
        let longest = queues.keys().filter_map(|at| Some((standing.get(at)?.ends(0), Reverse(*at)))).max();
        let Some((_, Reverse(at))) = longest else { break };
        let (Some(tasks), Some(from)) = (queues.get_mut(&at), standing.get(&at).copied()) else { break };
        let Some((place, to, gain)) = best(from, tasks, queued, &standing) else {
            // No move from this queue can become possible later: the takers only get fuller in this
            // pass.
            queues.remove(&at);
            continue;
        };
        moves.push(TaskMove { queued: tasks.remove(place), to, gain });
        for (agent, tasks) in [(at, -1), (to, 1)] {
            if let Some(standing) = standing.get_mut(&agent) {
                standing.level = standing.level.plus(tasks);
            }
        }
    }
    moves
}

/// An agent's state during planning.
#[derive(Debug, Clone, Copy)]
struct AgentQueue {
    level: LoadLevel,
    capacity: u32,
    pace: Duration,
}

impl AgentQueue {
    /// When its last task ends with `more` tasks.
    fn ends(&self, more: i64) -> Duration {
        last_ends(self.level.plus(more), self.capacity, self.pace)
    }

    /// The gain of a task that moves from here to there; `None` if it may not move.
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

/// The best move from one queue to the emptiest taker: index in the queue, target and gain.
fn best(
    from: AgentQueue,
    tasks: &[usize],
    queued: &[MovableTask],
    standing: &BTreeMap<AgentId, AgentQueue>,
) -> Option<(usize, AgentId, Gain)> {
    let mut best: Option<(Duration, usize, usize, AgentId, Gain)> = None;
    for (place, index) in tasks.iter().enumerate() {
        for (rank, taker) in queued.get(*index)?.takers.iter().enumerate() {
            let Some(there) = standing.get(&taker.agent) else { continue };
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
