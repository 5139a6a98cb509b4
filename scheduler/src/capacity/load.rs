//! Predicts the load of each agent of a fleet, the fleet's makespan, and its mean round trip.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::Duration;

use super::agent::Agent;
use super::nearest_agents::Fleet;
use super::sites::{Sites, in_parts};
use crate::gnp::predicted_ms;

/// Maximum predicted time, in seconds. Differences between longer times do not matter.
const LONGEST_S: f64 = 1000.0 * 365.0 * 86_400.0;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Expected number of sites that the agent crawls.
    pub sites: f64,
    /// The agent's share of all sites, 0 to 1.
    pub share: f64,
    /// The total duration of the agent's crawls.
    pub work: Duration,
    /// The time until the agent's crawls end if all its slots are always in use.
    pub busy: Duration,
}

/// The predictions for a fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetPrediction {
    /// The mean predicted round trip between a site and its agent, in milliseconds.
    pub mean_ms: f64,
    /// The `busy` time of the busiest agent: the earliest time by which all crawls can end.
    pub makespan: Duration,
    /// The load of each agent, in the order of the argument `agents` of
    /// [`compare`](super::compare); `None` for an agent outside the fleet.
    pub loads: Vec<Option<Load>>,
}

/// Sums over a part of the sites: the round trips in milliseconds, and for each agent of the fleet
/// its number of sites and its seconds of crawling.
pub(super) struct AgentSums {
    millis: f64,
    loads: Vec<(f64, f64)>,
}

impl Fleet<'_> {
    pub(super) fn outlook(&self, sites: &Sites, AgentSums { millis, loads }: AgentSums) -> FleetPrediction {
        let all = sites.len() as f64;
        let mut outlook =
            FleetPrediction { mean_ms: millis / all, makespan: Duration::ZERO, loads: vec![None; self.all] };
        for ((sites, seconds), (place, agent)) in loads.into_iter().zip(&self.there) {
            let busy = duration(seconds / f64::from(agent.slots.max(1)));
            outlook.makespan = outlook.makespan.max(busy);
            if let Some(load) = outlook.loads.get_mut(*place) {
                *load = Some(Load { sites, share: sites / all, work: duration(seconds), busy });
            }
        }
        outlook
    }

    fn nothing(&self) -> AgentSums {
        AgentSums { millis: 0.0, loads: vec![(0.0, 0.0); self.there.len()] }
    }

    /// The sums if every agent crawls an equal share of each site. `of_all` is the result of
    /// [`of_all_sites`].
    pub(super) fn evenly(&self, sites: &Sites, of_all: &[(f64, f64)]) -> AgentSums {
        let mut sums = self.nothing();
        let share = 1.0 / self.there.len() as f64;
        for ((place, _), load) in self.there.iter().zip(&mut sums.loads) {
            let (millis, seconds) = of_all.get(*place).copied().unwrap_or_default();
            sums.millis += share * millis;
            *load = (share * sites.len() as f64, share * seconds);
        }
        sums
    }

    /// The sums if the `most` nearest agents of each site crawl equal shares of the site.
    pub(super) fn over_nearest(&self, sites: &Sites, most: usize, threads: NonZeroUsize) -> AgentSums {
        let usual = sites.usual();
        let mut all = self.nothing();
        for part in in_parts(sites.len(), threads, |part| self.part_over_nearest(sites, usual, most, part)) {
            all.millis += part.millis;
            for (sum, (sites, seconds)) in all.loads.iter_mut().zip(part.loads) {
                sum.0 += sites;
                sum.1 += seconds;
            }
        }
        all
    }

    fn part_over_nearest(&self, sites: &Sites, usual: (u32, u64), most: usize, part: Range<usize>) -> AgentSums {
        let mut sums = self.nothing();
        for (index, near) in part.clone().zip(self.nearest(sites, &part)) {
            let work = sites.work(index, usual).counted();
            let share = 1.0 / near.iter().take(most).count().max(1) as f64;
            for (number, millis) in near.iter().take(most) {
                sums.millis += share * millis;
                if let (Some(load), Some((_, agent))) = (sums.loads.get_mut(number), self.there.get(number)) {
                    load.0 += share;
                    load.1 += share * work.takes_at_s(millis / 1e3, agent.speed);
                }
            }
        }
        sums
    }
}

/// For each agent, the sum of its distances to all sites, in milliseconds, and the time it needs to
/// crawl all sites, in seconds.
pub(super) fn of_all_sites(sites: &Sites, agents: &[Agent], threads: NonZeroUsize) -> Vec<(f64, f64)> {
    let usual = sites.usual();
    let of_part = |part: Range<usize>| {
        let mut sums = vec![(0.0, 0.0); agents.len()];
        for index in part {
            let (coordinate, work) = (sites.coordinate(index), sites.work(index, usual).counted());
            for (agent, sum) in agents.iter().zip(&mut sums) {
                let millis = predicted_ms(coordinate, &agent.coordinate);
                sum.0 += millis;
                sum.1 += work.takes_at_s(millis / 1e3, agent.speed);
            }
        }
        sums
    };
    let mut all = vec![(0.0, 0.0); agents.len()];
    for part in in_parts(sites.len(), threads, of_part) {
        for (sum, (millis, seconds)) in all.iter_mut().zip(part) {
            sum.0 += millis;
            sum.1 += seconds;
        }
    }
    all
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.min(LONGEST_S)).unwrap_or(Duration::ZERO)
}
