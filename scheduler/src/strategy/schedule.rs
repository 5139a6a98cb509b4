//! Plans many sites together: which agent crawls which site, and in what order. All crawls should
//! end soon, and no slot should be idle before the last crawl begins.
//!
//! The problem is scheduling on unrelated machines. Sites are placed one after another, in
//! descending order of the crawl's duration at the fastest agent for the site (Graham, "Bounds on
//! multiprocessing timing anomalies", 1969). A slot's *end* is the time at which its last crawl
//! ends. Each site goes to the agent where it adds least to the sum of the fourth powers of all
//! slots' ends.
//!
//! A simpler method places each site where its crawl ends earliest (Ibarra and Kim, "Heuristic
//! algorithms for scheduling independent tasks on nonidentical processors", 1977). The simpler
//! method would give a site to a distant idle agent even if a near agent that becomes free a little
//! later needed only half the time. The sum of fourth powers is a compromise between the sum of the
//! slots' ends and their maximum (Awerbuch et al., "Load balancing in the L_p norm", 1995).
//!
//! After all sites are placed, a local search (`exchange`) moves and swaps sites until the sum of
//! fourth powers no longer falls.
//!
//! A plan is final only for sites whose crawls begin soon. All other sites are planned again when
//! more crawls have ended, with the speeds learned from these crawls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use cost::{affordable, fourth_power};
use exchange::SlotAssignment;

mod cost;
pub(super) mod crawl_duration;
mod exchange;
pub mod preemption;

/// A plan is final for the sites whose crawls begin within this time. The time is longer than a
/// message to an agent takes, so that no slot is idle while the message is on its way. The time is
/// short compared with a crawl.
pub const AHEAD: Duration = Duration::from_secs(1);
/// If a crawl exceeds its predicted time, its remaining time is assumed to be this share of the
/// time that it has taken so far. The longer a crawl has taken, the larger its site probably is,
/// because most sites are small and a few are very large.
pub(super) const OVERDUE_SHARE: f64 = 0.3;

/// Time until each slot of an agent is free. `under_way` contains the remaining time of each
/// running crawl, and `waiting` the time of each waiting task. Each waiting task, in order, gets
/// the slot that becomes free first.
pub fn frees(slots: usize, under_way: &[Duration], waiting: &[Duration]) -> Vec<Duration> {
    let mut free: BinaryHeap<Reverse<Duration>> = under_way.iter().copied().map(Reverse).collect();
    // If there are more crawls than slots, no slot becomes free when the first of the crawls ends.
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

/// The remaining time of a crawl that has run for `under_way` and was predicted to take `takes`.
pub fn remaining(takes: Duration, under_way: Duration) -> Duration {
    takes.saturating_sub(under_way).max(under_way.mul_f64(OVERDUE_SHARE))
}

/// A site to be crawled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// How long the crawl takes at each agent, in the order of the agents; `None` if the agent may
    /// not crawl the site.
    pub takes: Vec<Option<Duration>>,
    /// Whether the site's size is known. If not, `takes` assumes a typical size.
    pub sized: bool,
    /// How long the site has waited.
    pub waited: Duration,
}

impl Job {
    /// The sort key of an agent's jobs, in nanoseconds, lowest first. Jobs of known size come
    /// first, the longest first, so that short jobs fill the gaps at the end. Jobs of unknown size
    /// follow, the shortest first, so that most of a batch ends early. Each second of waiting
    /// lowers the key by a second, so that every job gets its turn.
    fn turn(&self, takes: Duration) -> i128 {
        let nanos = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX / 4);
        let takes = if self.sized { -nanos(takes) } else { nanos(takes) };
        takes - nanos(self.waited)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedSite {
    /// The site's index.
    pub job: usize,
    /// The agent's index.
    pub agent: usize,
    /// Time until a slot is free for the site.
    pub begins: Duration,
    /// Time until the site's crawl ends.
    pub ends: Duration,
}

/// Plans all jobs. `frees` contains, for each agent, the time until each of its slots is free. Jobs
/// that no agent with slots may get are left out. The result is sorted by agent, then by start.
pub fn plan(jobs: &[Job], frees: &[Vec<Duration>]) -> Vec<PlannedSite> {
    let mut slots: Vec<Slots> = frees.iter().map(|frees| Slots::new(frees)).collect();
    let best = |(index, job): (usize, &Job)| Some((Reverse(job.takes.iter().flatten().min().copied()?), index));
    let mut order: Vec<(Reverse<Duration>, usize)> = jobs.iter().enumerate().filter_map(best).collect();
    order.sort_unstable();
    let order: Vec<usize> = order.into_iter().map(|(_, job)| job).collect();
    let mut places = vec![None; jobs.len()];
    for &job in &order {
        if let Some((agent, takes)) = best_place(&jobs[job].takes, &slots) {
            places[job] = slots[agent].take(takes).map(|slot| (agent, slot));
        }
    }
    let takes: Vec<&[Option<Duration>]> = jobs.iter().map(|job| job.takes.as_slice()).collect();
    let ends = slots.iter().map(|slots| slots.ends.iter().map(Duration::as_secs_f64).collect()).collect();
    let mut places = SlotAssignment::new(&takes, places, ends);
    places.better(&order);
    let mut placed: Vec<Vec<PlacedJob>> = vec![Vec::new(); frees.len()];
    for (job, place) in places.of.iter().enumerate() {
        if let Some((agent, takes)) = place.and_then(|(agent, _)| Some((agent, jobs[job].takes[agent]?))) {
            placed[agent].push(PlacedJob { job, takes });
        }
    }
    let mut planned = Vec::new();
    for (agent, (placed, frees)) in placed.into_iter().zip(frees).enumerate() {
        planned.extend(in_turn(agent, jobs, placed, frees));
    }
    planned
}

/// A job placed at an agent, and the time that the job takes at this agent.
#[derive(Debug, Clone, Copy)]
struct PlacedJob {
    job: usize,
    takes: Duration,
}

/// Finds the agent with the lowest cost of a job, and the time that the job takes at this agent.
/// Ties go to the agent with the shortest time, then to the first agent.
fn best_place(takes: &[Option<Duration>], slots: &[Slots]) -> Option<(usize, Duration)> {
    let mut least: Option<(f64, Duration, usize)> = None;
    let mut longest = Duration::MAX;
    for (agent, (takes, slots)) in takes.iter().zip(slots).enumerate() {
        let Some(takes) = takes.filter(|takes| *takes <= longest) else { continue };
        let Some(cost) = slots.cost(takes) else { continue };
        let is_less = |(least, time, _): (f64, Duration, usize)| cost.total_cmp(&least).then(takes.cmp(&time)).is_lt();
        if least.is_none_or(is_less) {
            least = Some((cost, takes, agent));
            longest = affordable(cost);
        }
    }
    least.map(|(_, takes, agent)| (agent, takes))
}

/// Plans an agent's jobs. Returns them in the order in which they begin.
fn in_turn(agent: usize, jobs: &[Job], mut placed: Vec<PlacedJob>, frees: &[Duration]) -> Vec<PlannedSite> {
    placed.sort_by_key(|one| jobs[one.job].turn(one.takes));
    let mut free: BinaryHeap<Reverse<Duration>> = frees.iter().copied().map(Reverse).collect();
    let begun = placed.into_iter().filter_map(|PlacedJob { job, takes }| {
        let mut first = free.peek_mut()?;
        let begins = first.0;
        first.0 = begins.saturating_add(takes);
        Some(PlannedSite { job, agent, begins, ends: first.0 })
    });
    begun.collect()
}

/// The times at which an agent's slots become free.
struct Slots {
    ends: Vec<Duration>,
    /// The index of the slot that is free first, the time until this slot is free in seconds, and
    /// the fourth power of this time.
    first: usize,
    first_s: f64,
    first_s4: f64,
}

impl Slots {
    fn new(frees: &[Duration]) -> Self {
        let mut slots = Self { ends: frees.to_vec(), first: 0, first_s: 0.0, first_s4: 0.0 };
        slots.look();
        slots
    }

    fn look(&mut self) {
        let first = self.ends.iter().enumerate().min_by_key(|(_, end)| **end);
        (self.first, self.first_s) = first.map_or((0, 0.0), |(slot, end)| (slot, end.as_secs_f64()));
        self.first_s4 = fourth_power(self.first_s);
    }

    /// The cost of a job. The cost of the plan is the sum of the fourth powers of the slots' ends,
    /// and a job's cost is the amount that the job adds. `None` if there are no slots.
    fn cost(&self, takes: Duration) -> Option<f64> {
        (!self.ends.is_empty()).then(|| fourth_power(self.first_s + takes.as_secs_f64()) - self.first_s4)
    }

    /// Gives a job to the slot that is free first, and returns this slot.
    fn take(&mut self, takes: Duration) -> Option<usize> {
        let slot = self.first;
        let end = self.ends.get_mut(slot)?;
        *end = end.saturating_add(takes);
        self.look();
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn job(millis: &[u64]) -> Job {
        Job { takes: millis.iter().map(|one| (*one > 0).then(|| ms(*one))).collect(), sized: true, waited: ms(0) }
    }

    fn begins(jobs: &[Job], frees: &[Vec<Duration>]) -> Vec<(usize, usize, Duration)> {
        plan(jobs, frees).iter().map(|one| (one.job, one.agent, one.begins)).collect()
    }

    #[test]
    fn the_longest_goes_first_where_sizes_are_known_and_the_nearest_where_they_are_not() {
        let jobs = [job(&[10, 20]), job(&[40, 100]), job(&[30, 35])];
        let free = [vec![ms(0)], vec![ms(0)]];
        // Job 1 goes to agent 0, because agent 1 would take 100 ms. Job 2 goes to agent 1,
        // because 35^4 is less than 70^4 - 40^4. Job 0 goes to agent 0, because 50^4 - 40^4 is less
        // than 55^4 - 35^4.
        assert_eq!(begins(&jobs, &free), [(1, 0, ms(0)), (0, 0, ms(40)), (2, 1, ms(0))]);
        let unsized_jobs = jobs.clone().map(|job| Job { sized: false, ..job });
        assert_eq!(begins(&unsized_jobs, &free), [(0, 0, ms(0)), (1, 0, ms(10)), (2, 1, ms(0))]);
        let mixed = [Job { sized: false, ..jobs[0].clone() }, jobs[1].clone(), jobs[2].clone()];
        assert_eq!(begins(&mixed, &free)[0], (1, 0, ms(0)), "what is known to be long does not wait");
    }

    #[test]
    fn what_has_waited_longer_gets_its_turn_however_many_nearer_or_longer_ones_come_after_it() {
        let first = |jobs: &[Job]| begins(jobs, &[vec![ms(0)]])[0].0;
        let far = |waited| Job { sized: false, waited: ms(waited), ..job(&[500]) };
        let near = Job { sized: false, ..job(&[20]) };
        assert_eq!([470, 490].map(|waited| first(&[near.clone(), far(waited)])), [0, 1]);
        let long = job(&[3000]);
        assert_eq!([3400, 3600].map(|waited| first(&[long.clone(), far(waited)])), [0, 1]);
    }

    #[test]
    fn one_that_idles_far_away_takes_nothing_that_a_near_one_ends_soon_enough() {
        let near_and_far = || job(&[10, 28]);
        // The far agent gets one site, because 20^4 + 28^4 is less than 30^4.
        let jobs = [near_and_far(), near_and_far(), near_and_far()];
        let agents: Vec<usize> = plan(&jobs, &[vec![ms(0)], vec![ms(0)]]).iter().map(|one| one.agent).collect();
        assert_eq!(agents, [0, 0, 1]);
        // The far agent gets no site, because 20^4 + 29^4 is more than 30^4.
        let jobs = [job(&[10, 29]), job(&[10, 29]), job(&[10, 29])];
        let agents: Vec<usize> = plan(&jobs, &[vec![ms(0)], vec![ms(0)]]).iter().map(|one| one.agent).collect();
        assert_eq!(agents, [0, 0, 0]);
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
        // The free slot gets the first waiting task. The slot that is free after 20 ms gets the
        // second waiting task.
        assert_eq!(free, [ms(25), ms(30), ms(50)]);
        assert_eq!(frees(1, &[ms(50), ms(20)], &[]), [ms(50)]);
        assert!(frees(0, &[], &[ms(5)]).is_empty());
        assert_eq!(remaining(ms(100), ms(40)), ms(60));
        assert_eq!(remaining(ms(100), ms(200)), ms(60));
    }

    proptest! {
        #[test]
        fn who_is_passed_over_would_not_have_cost_less(
            takes in prop::collection::vec(0_u64..2000, 0..12),
            frees in prop::collection::vec(prop::collection::vec(0_u64..5000, 0..3), 12),
        ) {
            let takes = job(&takes).takes;
            let slots: Vec<Slots> = frees.iter().map(|frees| Slots::new(&frees.iter().copied().map(ms).collect::<Vec<_>>())).collect();
            let costs = takes.iter().zip(&slots).enumerate();
            let costs = costs.filter_map(|(agent, (takes, slots))| Some((slots.cost((*takes)?)?, (*takes)?, agent)));
            let least = costs.min_by(|one, other| one.0.total_cmp(&other.0).then((one.1, one.2).cmp(&(other.1, other.2))));
            prop_assert_eq!(best_place(&takes, &slots), least.map(|(_, takes, agent)| (agent, takes)));
        }

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
                let here: Vec<&PlannedSite> = planned.iter().filter(|one| one.agent == agent).collect();
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
