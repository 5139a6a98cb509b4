//! Many sites at once: which agent takes which, and in what order, so that the last of them ends soon.
//!
//! List scheduling on unrelated machines: the site whose crawl is longest at best comes first, and each goes where it ends first, given what
//! went there before (Ibarra and Kim, "Heuristic algorithms for scheduling independent tasks on nonidentical processors", 1977;
//! longest first: Graham, "Bounds on multiprocessing timing anomalies", 1969). Only what would begin soon is decided by it: the rest is
//! planned anew when crawls have ended, with what they taught.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// What begins this soon is decided; later ones wait for a newer plan. Longer than it takes to tell an agent, so that no slot idles for
/// want of a decision, and short beside a crawl.
pub const AHEAD: Duration = Duration::from_secs(1);
/// A crawl that takes longer than predicted goes on for this share of the time it has taken: sizes are skewed, and the longer one has
/// taken, the larger it is.
const OVERDUE_SHARE: f64 = 0.3;

/// When each slot of an agent is free, from now: crawls under way have one each, and what waits there takes its turns.
pub fn frees(slots: usize, under_way: &[Duration], waiting: &[Duration]) -> Vec<Duration> {
    let mut free: BinaryHeap<Reverse<Duration>> = under_way.iter().copied().map(Reverse).collect();
    // More crawls than slots: what is under way beyond them frees none.
    while free.len() > slots {
        free.pop();
    }
    while free.len() < slots {
        free.push(Reverse(Duration::ZERO));
    }
    for takes in waiting {
        if let Some(mut first) = free.peek_mut() {
            first.0 = first.0.saturating_add(*takes);
        }
    }
    free.into_iter().map(|Reverse(free)| free).collect()
}

/// How long a crawl goes on that was predicted to take `takes`.
pub fn remaining(takes: Duration, under_way: Duration) -> Duration {
    takes.saturating_sub(under_way).max(under_way.mul_f64(OVERDUE_SHARE))
}

/// A site to be crawled: how long each agent would take, in the order of the agents; `None` for one that may not have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The times.
    pub takes: Vec<Option<Duration>>,
}

/// One site's place in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// Which site, by index.
    pub job: usize,
    /// Which agent, by index.
    pub agent: usize,
    /// When a slot is free for it, from now.
    pub begins: Duration,
    /// When it ends, from now.
    pub ends: Duration,
}

/// Plans all jobs. `frees` says of each agent when each of its slots is free, from now; an agent without slots takes nothing. A job that
/// nobody may have is left out. In the order in which they were placed: the longest first.
pub fn plan(jobs: &[Job], frees: &[Vec<Duration>]) -> Vec<Planned> {
    let mut slots: Vec<BinaryHeap<Reverse<Duration>>> =
        frees.iter().map(|slots| slots.iter().copied().map(Reverse).collect()).collect();
    let mut order: Vec<(Reverse<Duration>, usize)> = jobs
        .iter()
        .enumerate()
        .filter_map(|(index, job)| Some((Reverse(job.takes.iter().flatten().min().copied()?), index)))
        .collect();
    order.sort_unstable();
    order.into_iter().filter_map(|(_, job)| place(job, &jobs[job], &mut slots)).collect()
}

/// Puts one job where it ends first; of equals where it takes least time, then with the first of them.
fn place(job: usize, what: &Job, slots: &mut [BinaryHeap<Reverse<Duration>>]) -> Option<Planned> {
    let would = |(agent, slots): (usize, &BinaryHeap<Reverse<Duration>>)| {
        let takes = what.takes.get(agent).copied().flatten()?;
        let begins = slots.peek()?.0;
        Some((begins.saturating_add(takes), takes, agent, begins))
    };
    let (ends, _, agent, begins) = slots.iter().enumerate().filter_map(would).min()?;
    if let Some(mut first) = slots[agent].peek_mut() {
        first.0 = ends;
    }
    Some(Planned { job, agent, begins, ends })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn job(millis: &[u64]) -> Job {
        Job { takes: millis.iter().map(|one| (*one > 0).then(|| ms(*one))).collect() }
    }

    #[test]
    fn the_longest_goes_first_and_each_where_it_ends_first() {
        let jobs = [job(&[10, 20]), job(&[40, 100]), job(&[30, 35])];
        let planned = plan(&jobs, &[vec![ms(0)], vec![ms(0)]]);
        let order: Vec<(usize, usize, Duration)> = planned.iter().map(|one| (one.job, one.agent, one.ends)).collect();
        assert_eq!(order, [(1, 0, ms(40)), (2, 1, ms(35)), (0, 0, ms(50))]);
    }

    #[test]
    fn who_may_not_have_a_site_gets_none_and_one_without_slots_neither() {
        let jobs = [job(&[0, 50]), job(&[0, 0]), job(&[20, 20])];
        let planned = plan(&jobs, &[vec![], vec![ms(5), ms(0)]]);
        let order: Vec<(usize, usize, Duration)> = planned.iter().map(|one| (one.job, one.agent, one.begins)).collect();
        assert_eq!(order, [(0, 1, ms(0)), (2, 1, ms(5))]);
    }

    #[test]
    fn slots_are_free_when_what_they_have_and_what_waits_has_ended() {
        assert_eq!(frees(2, &[], &[]), [ms(0), ms(0)]);
        let mut free = frees(3, &[ms(50), ms(20)], &[ms(30), ms(5)]);
        free.sort();
        // The free slot takes the first that waits, the one that is free after 20 ms the second.
        assert_eq!(free, [ms(25), ms(30), ms(50)]);
        assert_eq!(frees(1, &[ms(50), ms(20)], &[]), [ms(50)]);
        assert!(frees(0, &[], &[ms(5)]).is_empty());
        assert_eq!(remaining(ms(100), ms(40)), ms(60));
        assert_eq!(remaining(ms(100), ms(200)), ms(60));
    }

    proptest! {
        #[test]
        fn no_slot_has_two_at_a_time_and_no_single_one_would_end_sooner_elsewhere(
            jobs in prop::collection::vec(prop::collection::vec(0_u64..100, 3), 0..30),
            frees in prop::collection::vec(prop::collection::vec(0_u64..200, 0..4), 3),
        ) {
            let jobs: Vec<Job> = jobs.iter().map(|takes| job(takes)).collect();
            let frees: Vec<Vec<Duration>> = frees.iter().map(|slots| slots.iter().copied().map(ms).collect()).collect();
            let planned = plan(&jobs, &frees);
            let possible = |job: &&Job| job.takes.iter().zip(&frees).any(|(takes, slots)| takes.is_some() && !slots.is_empty());
            prop_assert_eq!(planned.len(), jobs.iter().filter(possible).count());
            for (agent, slots) in frees.iter().enumerate() {
                let here: Vec<&Planned> = planned.iter().filter(|one| one.agent == agent).collect();
                for one in &here {
                    prop_assert_eq!(Some(one.ends - one.begins), jobs[one.job].takes[agent]);
                    let during = here.iter().filter(|other| other.begins <= one.begins && one.begins < other.ends).count();
                    let taken = slots.iter().filter(|free| **free > one.begins).count();
                    prop_assert!(during + taken <= slots.len());
                }
            }
        }
    }
}
