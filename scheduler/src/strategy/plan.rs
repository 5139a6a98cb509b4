//! Plans many sites together for `earliest-finish`: which agent crawls which site, and in what
//! order. All crawls should end soon, and no slot should be idle before the last crawl begins.
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
//! After all sites are placed, a local search moves a site to another slot (jump), or swaps two
//! sites, until the sum of fourth powers no longer falls (Schuurman and Vredeveld, "Performance
//! guarantees of local search for multiprocessor scheduling", 2007). This search is needed, because
//! the first plan places one site after another and never moves a site again.
//!
//! A plan is final only for sites whose crawls begin soon. All other sites are planned again when
//! more crawls have ended, with the speeds learned from these crawls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A plan is final for the sites whose crawls begin within this time. The time is longer than a
/// message to an agent takes, so that no slot is idle while the message is on its way. The time is
/// short compared with a crawl.
pub const AHEAD: Duration = Duration::from_secs(1);

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

/// A job placed at an agent, and the time that the job takes at this agent.
#[derive(Debug, Clone, Copy)]
struct PlacedJob {
    job: usize,
    takes: Duration,
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

/// The longest time of a job whose cost is at most `cost`: the fourth root of `cost`, because a job
/// costs at least the fourth power of its time. The result is slightly greater than this root,
/// because floats are not exact. Comparing a job's time with this result rejects most agents
/// without computing costs.
fn affordable(cost: f64) -> Duration {
    Duration::try_from_secs_f64(cost.max(0.0).sqrt().sqrt() * 1.000_001).unwrap_or(Duration::MAX)
}

fn fourth_power(value: f64) -> f64 {
    let square = value * value;
    square * square
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

/// Maximum number of moves and swaps tried, to limit the time of planning. For thirty agents and
/// two hundred sites, the search ends before this limit. For a thousand agents and five hundred
/// sites, the limit ends the search before it has tried all sites.
const MOST_LOOKS: usize = 150_000;
/// Minimum gain, as a share of the affected slots' cost. Smaller gains may be rounding errors.
const LEAST_GAIN: f64 = 1e-9;

/// The assignment of sites to slots.
struct SlotAssignment<'a> {
    /// For each site, the time of its crawl at each agent; `None` if the agent may not get the
    /// site.
    takes: &'a [&'a [Option<Duration>]],
    /// The agent and slot of each site; `None` if no agent may get the site.
    of: Vec<Option<(usize, usize)>>,
    /// The time at which the last crawl of each slot of each agent ends, in seconds from now.
    ends: Vec<Vec<f64>>,
    looks: usize,
}

impl<'a> SlotAssignment<'a> {
    const fn new(takes: &'a [&'a [Option<Duration>]], of: Vec<Option<(usize, usize)>>, ends: Vec<Vec<f64>>) -> Self {
        Self { takes, of, ends, looks: 0 }
    }

    /// Moves and swaps sites until no move and no swap lowers the cost. The sites are tried
    /// repeatedly, in the given order.
    fn better(&mut self, order: &[usize]) {
        let mut changed = true;
        while changed {
            changed = false;
            for (turn, &site) in order.iter().enumerate() {
                changed |= self.jump(site);
                changed |= self.swap(site, order.get(turn + 1..).unwrap_or_default());
                if self.looks > MOST_LOOKS {
                    return;
                }
            }
        }
    }

    /// The time of a site's crawl at an agent, in seconds.
    fn takes(&self, site: usize, agent: usize) -> Option<f64> {
        self.takes[site][agent].map(|takes| takes.as_secs_f64())
    }

    /// Moves a site to the slot where it costs least, if this lowers the total cost.
    fn jump(&mut self, site: usize) -> bool {
        let Some((agent, slot)) = self.of[site] else { return false };
        let Some(takes) = self.takes(site, agent) else { return false };
        let end = self.ends[agent][slot];
        let saved = fourth_power(end) - fourth_power(end - takes);
        self.looks += self.ends.len();
        let mut best = (saved - LEAST_GAIN * fourth_power(end), None);
        let mut longest = affordable(best.0);
        for (other, (takes, ends)) in self.takes[site].iter().zip(&self.ends).enumerate() {
            let Some(takes) = takes.filter(|takes| *takes <= longest) else { continue };
            // Of an agent's slots, the slot that is free first gives the lowest cost.
            let Some((first, begins)) = first_of(ends).filter(|(first, _)| (other, *first) != (agent, slot)) else {
                continue;
            };
            let takes = takes.as_secs_f64();
            let cost = fourth_power(begins + takes) - fourth_power(begins);
            if cost < best.0 {
                best = (cost, Some((other, first, takes)));
                longest = affordable(cost);
            }
        }
        let (_, Some((other, first, would))) = best else { return false };
        self.ends[agent][slot] -= takes;
        self.ends[other][first] += would;
        self.of[site] = Some((other, first));
        true
    }

    /// Swaps a site with the first of `others` for which this lowers the total cost.
    fn swap(&mut self, site: usize, others: &[usize]) -> bool {
        let Some((agent, slot)) = self.of[site] else { return false };
        let Some(takes) = self.takes(site, agent) else { return false };
        let end = self.ends[agent][slot];
        for &other in others {
            self.looks += 1;
            let Some((its_agent, its_slot)) = self.of[other].filter(|(its, _)| *its != agent) else { continue };
            let (Some(its), Some(here), Some(there)) =
                (self.takes(other, its_agent), self.takes(other, agent), self.takes(site, its_agent))
            else {
                continue;
            };
            let its_end = self.ends[its_agent][its_slot];
            let (ends, its_ends) = (end - takes + here, its_end - its + there);
            let before = fourth_power(end) + fourth_power(its_end);
            if fourth_power(ends) + fourth_power(its_ends) < before * (1.0 - LEAST_GAIN) {
                self.ends[agent][slot] = ends;
                self.ends[its_agent][its_slot] = its_ends;
                self.of[site] = Some((its_agent, its_slot));
                self.of[other] = Some((agent, slot));
                return true;
            }
        }
        false
    }
}

/// The index of the slot that is free first, and the time until this slot is free, in seconds.
fn first_of(ends: &[f64]) -> Option<(usize, f64)> {
    ends.iter().copied().enumerate().min_by(|one, other| one.1.total_cmp(&other.1))
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

    fn lasting(millis: u64) -> Option<Duration> {
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    fn cost(places: &SlotAssignment<'_>) -> f64 {
        places.ends.iter().flatten().copied().map(fourth_power).sum()
    }

    #[test]
    fn sites_that_suit_each_others_agents_change_places() {
        let takes = [[lasting(100), lasting(40)], [lasting(40), lasting(100)]];
        let takes: Vec<&[Option<Duration>]> = takes.iter().map(|takes| &takes[..]).collect();
        let mut places = SlotAssignment::new(&takes, vec![Some((0, 0)), Some((1, 0))], vec![vec![0.1], vec![0.1]]);
        places.better(&[0, 1]);
        assert_eq!(places.of, [Some((1, 0)), Some((0, 0))]);
        // A site that no agent may get stays unplaced. A site that only one agent may get stays at
        // that agent.
        let takes = [[lasting(100), None], [lasting(40), lasting(100)], [None, None]];
        let takes: Vec<&[Option<Duration>]> = takes.iter().map(|takes| &takes[..]).collect();
        let mut places =
            SlotAssignment::new(&takes, vec![Some((0, 0)), Some((1, 0)), None], vec![vec![0.1], vec![0.1]]);
        places.better(&[0, 1, 2]);
        assert_eq!(places.of, [Some((0, 0)), Some((1, 0)), None]);
    }

    #[test]
    fn a_site_moves_to_a_slot_that_ends_sooner() {
        let takes = [[lasting(50), lasting(60)], [lasting(50), lasting(60)]];
        let takes: Vec<&[Option<Duration>]> = takes.iter().map(|takes| &takes[..]).collect();
        let mut places = SlotAssignment::new(&takes, vec![Some((0, 0)), Some((0, 0))], vec![vec![0.1], vec![0.0]]);
        places.better(&[0, 1]);
        assert_eq!(places.of, [Some((1, 0)), Some((0, 0))]);
        // Sites also move to another slot of the same agent.
        let mut places = SlotAssignment::new(&takes, vec![Some((0, 0)), Some((0, 0))], vec![vec![0.1, 0.0], vec![]]);
        places.better(&[0, 1]);
        assert_eq!(places.of, [Some((0, 1)), Some((0, 0))]);
    }

    proptest! {
        #[test]
        fn it_never_costs_more_and_the_ends_are_those_of_the_places(
            takes in prop::collection::vec(prop::collection::vec(0_u64..100, 3), 0..30),
            frees in prop::collection::vec(prop::collection::vec(0_u64..200, 1..4), 3),
        ) {
            let takes: Vec<Vec<Option<Duration>>> =
                takes.into_iter().map(|takes| takes.into_iter().map(lasting).collect()).collect();
            let takes: Vec<&[Option<Duration>]> = takes.iter().map(Vec::as_slice).collect();
            let free: Vec<Vec<f64>> =
                frees.iter().map(|slots| slots.iter().map(|millis| *millis as f64 / 1e3).collect()).collect();
            let ends_of = |of: &[Option<(usize, usize)>]| {
                let mut ends = free.clone();
                for (site, place) in of.iter().enumerate() {
                    if let Some((agent, slot)) = *place {
                        ends[agent][slot] += takes[site][agent].unwrap().as_secs_f64();
                    }
                }
                ends
            };
            // Each site begins in the first slot of the first agent that may get it.
            let of: Vec<Option<(usize, usize)>> =
                takes.iter().map(|takes| takes.iter().position(Option::is_some).map(|agent| (agent, 0))).collect();
            let mut places = SlotAssignment::new(&takes, of.clone(), ends_of(&of));
            let before = cost(&places);
            places.better(&(0..takes.len()).collect::<Vec<_>>());
            prop_assert!(cost(&places) <= before * (1.0 + 1e-6));
            prop_assert!(of.iter().zip(&places.of).all(|(was, is)| was.is_some() == is.is_some()));
            let told = ends_of(&places.of);
            prop_assert!(told.iter().flatten().zip(places.ends.iter().flatten()).all(|(one, other)| (one - other).abs() < 1e-6));
        }
    }
}
