//! A list scheduler that knows every round trip, rate and size. Its makespan is a reference for
//! strategies. This module does no I/O.
//!
//! The list scheduler takes the sites in descending order of their crawl time at the best agent,
//! and assigns each site to the agent where its crawl ends first (Graham 1969; Ibarra and Kim
//! 1977). A crawl time is the mean of simulated crawls that do not share the agent's access link,
//! so the makespan is too short if concurrent crawls fill a link.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::batch::Batch;
use super::simulated_crawls::alone;

/// Number of simulated crawls per mean. Several crawls are needed, because packet losses are
/// random.
const PLAYS: u32 = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListSchedule {
    pub makespan: Duration,
    pub busy: Vec<Duration>,
}

pub fn list_schedule(batch: &Batch<'_>) -> ListSchedule {
    let mut rng = ChaCha8Rng::seed_from_u64(batch.seed);
    let (agents, sites) = (batch.scenario.agents.len(), batch.scenario.sites.len());
    let mut takes = |agent, site| (0..PLAYS).map(|_| alone(batch, agent, site, &mut rng)).sum::<Duration>() / PLAYS;
    let mut jobs: Vec<Vec<Duration>> =
        (0..sites).map(|site| (0..agents).map(|agent| takes(agent, site)).collect()).collect();
    jobs.sort_by_key(|takes| Reverse(takes.iter().min().copied()));
    let slots = (0..agents).flat_map(|agent| (0..batch.slots).map(move |_| agent));
    let mut free: Vec<BinaryHeap<Reverse<Duration>>> = vec![BinaryHeap::new(); agents];
    slots.for_each(|agent| free[agent].push(Reverse(Duration::ZERO)));
    let mut list_schedule = ListSchedule { makespan: Duration::ZERO, busy: vec![Duration::ZERO; agents] };
    for takes in jobs {
        let would = |(slots, takes): (&BinaryHeap<Reverse<Duration>>, &Duration)| Some(slots.peek()?.0 + *takes);
        let ends = free.iter().zip(&takes).enumerate().filter_map(|(agent, one)| Some((would(one)?, agent)));
        let Some((ends, agent)) = ends.min() else { continue };
        if let Some(mut first) = free[agent].peek_mut() {
            first.0 = ends;
        }
        list_schedule.makespan = list_schedule.makespan.max(ends);
        list_schedule.busy[agent] += takes[agent];
    }
    list_schedule
}

#[cfg(test)]
mod tests {
    use super::super::simulated_crawls::tests::{asked, batch, ms, scenario, survey};
    use super::*;

    #[test]
    fn each_site_goes_where_it_ends_first_the_longest_one_first() {
        let scenario = scenario(&[100.0, 300.0], 3, 0.0);
        let survey = survey(&scenario);
        // The sites have three, one and one pages. robots.txt takes two round trips, and each page
        // takes one, so the sites take 5, 3 and 3 round trips.
        let requests = [asked(&[14, 14, 14, 14]), asked(&[14, 14]), asked(&[14, 14])];
        let batch = batch(&scenario, &survey, &requests);
        // At the near agent, the first two sites take 500 and 300 ms, and the crawl of the third
        // site would end at 1,100 ms. So the third site is crawled by the far agent, where it takes
        // 900 ms.
        let [one, both, all] = [1, 2, 3].map(|sites| {
            let scenario =
                crate::world::scenario::Scenario { sites: scenario.sites[..sites].to_vec(), ..scenario.clone() };
            list_schedule(&Batch { scenario: &scenario, ..batch })
        });
        let about = |took: Duration, millis: u64| (ms(millis)..ms(millis + 60)).contains(&took);
        assert!(about(one.makespan, 500) && about(both.makespan, 800) && about(all.makespan, 900), "{all:?}");
        assert_eq!((both.busy[0], both.busy[1]), (both.makespan, Duration::ZERO), "the far one has nothing to do");
        assert!(about(all.busy[0], 800) && about(all.busy[1], 900), "{all:?}");
    }
}
