//! Predicts the load of each agent of a fleet, the fleet's makespan and its mean round trip, and
//! compares the fleet before a planned change with the fleet after it. Describes the agents of a
//! plan, and determines how a strategy splits a site among its nearest agents.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::Duration;

use crate::gnp::{Embedding, Nearest, Placement, predicted_ms};
use crate::model::{AgentId, Strategy};
use crate::strategy::{Crawl, Speed};

use super::sites::{CapacityError, Sites, in_parts};

#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The prediction for the fleet without the agents to be added.
    pub before: FleetPrediction,
    /// The prediction for the fleet without the agents to be removed.
    pub after: FleetPrediction,
}

/// Predicts loads and round trips for the fleet before and after the change.
pub fn compare(
    sites: &Sites,
    agents: &[Agent],
    split: SiteSplit,
    threads: NonZeroUsize,
) -> Result<Comparison, CapacityError> {
    if sites.is_empty() {
        return Err(CapacityError::NoSites);
    }
    let fleet_without = |change: AgentChange| Fleet::of(sites, agents, change);
    let before = fleet_without(AgentChange::Comes)?.ok_or(CapacityError::NoAgents(sites.epoch()))?;
    let after = fleet_without(AgentChange::Leaves)?.ok_or(CapacityError::NobodyLeft(sites.epoch()))?;
    // An agent's sums over all sites do not depend on the other agents, so they are computed only
    // once, for both fleets.
    let of_all = match split {
        SiteSplit::All => of_all_sites(sites, agents, threads),
        SiteSplit::Nearest(_) => Vec::new(),
    };
    let outlook = |fleet: &Fleet<'_>| match split {
        SiteSplit::All => fleet.outlook(sites, fleet.evenly(sites, &of_all)),
        SiteSplit::Nearest(most) => fleet.outlook(sites, fleet.over_nearest(sites, most, threads)),
    };
    let unchanged = agents.iter().all(|agent| agent.change == AgentChange::Stays);
    let before = outlook(&before);
    let after = if unchanged { before.clone() } else { outlook(&after) };
    Ok(Comparison { before, after })
}

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
    /// [`compare`](compare); `None` for an agent outside the fleet.
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
    fn over_nearest(&self, sites: &Sites, most: usize, threads: NonZeroUsize) -> AgentSums {
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
fn of_all_sites(sites: &Sites, agents: &[Agent], threads: NonZeroUsize) -> Vec<(f64, f64)> {
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

/// The agents in the fleet, either before or after the change.
pub(super) struct Fleet<'a> {
    /// Number of all agents, including those outside the fleet.
    pub(super) all: usize,
    /// The fleet's agents, with their indices among all agents.
    pub(super) there: Vec<(usize, &'a Agent)>,
    /// The fleet's agents as an embedding. The identifier of an agent is its index in the fleet.
    map: Embedding,
}

impl<'a> Fleet<'a> {
    /// The fleet without the agents whose change is `without`; `None` if no agent remains.
    pub(super) fn of(sites: &Sites, agents: &'a [Agent], without: AgentChange) -> Result<Option<Self>, CapacityError> {
        let there: Vec<(usize, &Agent)> =
            agents.iter().enumerate().filter(|(_, agent)| agent.change != without).collect();
        if there.is_empty() {
            return Ok(None);
        }
        let placed = |(number, (_, agent)): (i64, &(usize, &Agent))| {
            let placement = Placement { epoch: sites.epoch(), coordinate: agent.coordinate.clone(), fit_error: 0.0 };
            (AgentId::new(number), placement)
        };
        let placements: BTreeMap<AgentId, Placement> = (0..).zip(&there).map(placed).collect();
        let map = Embedding::from_parts(sites.epoch(), sites.dimensions(), Vec::new(), placements, 0.0)
            .map_err(|_| CapacityError::Coordinate(sites.dimensions()))?;
        // Fails if the map has more dimensions than [`Embedding::locator`] supports.
        map.locator().map_err(|_| CapacityError::Coordinate(sites.dimensions()))?;
        Ok(Some(Self { all: agents.len(), there, map }))
    }

    /// The nearest agents of each site in a part.
    pub(super) fn nearest(&self, sites: &Sites, part: &Range<usize>) -> Vec<NearestAgents> {
        // [`Fleet::of`] has checked that the map has a locator.
        let found = self.map.locator().ok().and_then(|locator| locator.nearest(sites.coordinates_of(part)).ok());
        found.unwrap_or_default().into_iter().map(NearestAgents).collect()
    }
}

/// The agents nearest to a site.
pub(super) struct NearestAgents(Nearest);

impl NearestAgents {
    /// The agents' indices in the fleet, and their round trips to the site in milliseconds, nearest
    /// first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.0.iter().filter_map(|(agent, rtt)| Some((usize::try_from(agent.get()).ok()?, rtt.as_millis_f64())))
    }
}

/// What happens to an agent in the planned change of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentChange {
    /// The agent is in the fleet before and after the change.
    Stays,
    /// The agent is added.
    Comes,
    /// The agent is removed.
    Leaves,
}

/// An agent with a coordinate.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    pub name: String,
    pub city: String,
    pub carrier: String,
    /// One component per dimension, then the height; all in milliseconds.
    pub coordinate: Vec<f64>,
    /// Number of sites that the agent crawls concurrently, at least 1.
    pub slots: u32,
    pub speed: Speed,
    pub change: AgentChange,
}

/// The coordinate of an agent placed at a site: the site's coordinate with the median height of the
/// agents. The site's own height is the delay of the site's own access path, which an agent beside
/// the site does not share.
pub fn beside(site: &[f64], agents: &[Agent]) -> Vec<f64> {
    let mut heights: Vec<f64> = agents
        .iter()
        .filter(|agent| agent.change != AgentChange::Comes)
        .filter_map(|agent| agent.coordinate.last().copied())
        .collect();
    heights.sort_unstable_by(f64::total_cmp);
    let height = heights.get(heights.len() / 2).copied().unwrap_or_default();
    let position = site.split_last().map_or(&[][..], |(_, position)| position);
    position.iter().copied().chain([height]).collect()
}

/// The default number of slots of a planned agent: the median over all agents.
pub fn usual_slots(agents: &[Agent]) -> u32 {
    let mut slots: Vec<u32> = agents.iter().map(|agent| agent.slots).collect();
    slots.sort_unstable();
    slots.get(slots.len() / 2).copied().unwrap_or(1)
}

/// The default speed of a planned agent, learned from the crawls of all existing agents together.
/// The argument has one item per agent.
pub fn usual_speed(crawls: impl IntoIterator<Item = Vec<Crawl>>) -> Speed {
    let all: Vec<Crawl> = crawls.into_iter().flatten().collect();
    Speed::default().learned(&all)
}

/// The largest K of `gnp-topK` that a plan supports.
pub(super) const TOP: usize = 3;

/// How a strategy splits a site among agents, on average over its draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiteSplit {
    /// Evenly over all agents.
    All,
    /// Evenly over this many nearest agents, 1 to 3, or over all agents if there are fewer.
    Nearest(usize),
}

impl TryFrom<Strategy> for SiteSplit {
    type Error = CapacityError;

    fn try_from(strategy: Strategy) -> Result<Self, CapacityError> {
        match strategy {
            Strategy::Random => Ok(Self::All),
            Strategy::GnpTop(k) if k.get() <= TOP => Ok(Self::Nearest(k.get())),
            Strategy::Hash
            | Strategy::Kademlia
            | Strategy::Domain
            | Strategy::Geographic
            | Strategy::Prefix
            | Strategy::GnpTop(_)
            | Strategy::GnpBalanced
            | Strategy::GnpConfirmed
            | Strategy::EarliestFinish => Err(CapacityError::Unforeseen { strategy, most: TOP }),
        }
    }
}
