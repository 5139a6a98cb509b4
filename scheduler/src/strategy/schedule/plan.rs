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
use std::time::Duration;

use super::cost::{Slots, affordable};
use super::exchange::SlotAssignment;
use super::order::{Job, PlacedJob, PlannedSite, in_turn};

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
}
