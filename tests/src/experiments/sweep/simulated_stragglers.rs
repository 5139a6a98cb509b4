//! Finds running crawls that another agent would finish sooner, as the scheduler does
//! (`jobs/assign/preempt`). This module does no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use landfall_scheduler::model::{AgentId, Strategy};
use landfall_scheduler::strategy::Candidate;
use landfall_scheduler::strategy::preemption::{self, UnderWay};

use super::simulated_scheduler::{Fleet, PartialCrawl};
use super::survey::{agent_id, agent_index};

/// Maximum duration of a crawl.
const AT_MOST: Duration = Duration::from_secs(3600);

impl Fleet<'_> {
    /// Preempts slow crawls, and returns their sites. Does nothing while sites wait in `pool` for
    /// an agent. `checkpoint` gives the number of pages and the crawl time at the last checkpoint
    /// of a site.
    pub fn stragglers(&mut self, checkpoint: impl Fn(usize) -> Option<(u32, Duration)>, now: Duration) -> Vec<usize> {
        if self.strategy != Strategy::EarliestFinish || !self.pool.is_empty() {
            return Vec::new();
        }
        let crawls: Vec<(usize, usize)> = self
            .agents
            .iter()
            .enumerate()
            .flat_map(|(agent, state)| state.crawls.iter().map(move |site| (agent, *site)))
            .filter(|(_, site)| !self.preempted.contains_key(site))
            .collect();
        let candidates = |(agent, site): (usize, usize)| self.under_way(agent, site, checkpoint(site), now);
        let (sites, under_way): (Vec<usize>, Vec<UnderWay>) =
            crawls.into_iter().filter_map(|crawl| Some((crawl.1, candidates(crawl)?))).unzip();
        let mut asked = Vec::new();
        for one in preemption::moves(&under_way, &self.idle()) {
            let (Some(&site), Some(to)) = (sites.get(one.crawl), agent_index(one.to)) else { continue };
            self.preempted.insert(site, to);
            asked.push(site);
        }
        asked
    }

    /// The number of free slots of each agent that are not reserved for preempted crawls.
    fn idle(&self) -> BTreeMap<AgentId, u32> {
        let under_way = |site: &usize| self.agents.iter().any(|state| state.crawls.contains(site));
        let mut idle = BTreeMap::new();
        for (agent, state) in self.agents.iter().enumerate() {
            let promised = self.preempted.iter().filter(|(site, to)| **to == agent && under_way(site)).count();
            let taken = state.waiting.len() + promised;
            let taken = state.leased.saturating_add(u32::try_from(taken).unwrap_or(u32::MAX));
            idle.insert(agent_id(agent), self.slots.saturating_sub(taken));
        }
        idle
    }

    fn under_way(
        &self,
        agent: usize,
        site: usize,
        fetched: Option<(u32, Duration)>,
        now: Duration,
    ) -> Option<UnderWay> {
        let (work, sized) = self.work_of(site);
        let mut elsewhere: Vec<Candidate> = self.known[site].to_vec();
        elsewhere.iter_mut().zip(&self.agents).for_each(|(one, state)| one.speed = self.speed(state));
        Some(UnderWay {
            took: now.saturating_sub(*self.since.get(&site)?),
            takes: *self.expected.get(&site)?,
            at_most: AT_MOST,
            most_pages: u32::MAX,
            work,
            sized,
            fetched: fetched.filter(|_| !self.partial.contains_key(&site)),
            here: *elsewhere.get(agent)?,
            elsewhere,
        })
    }

    /// Records that an agent has returned a preempted site after `pages` fetched pages. The site
    /// then waits in `pool` for another agent.
    pub fn hand_back(&mut self, agent: usize, site: usize, pages: u32) {
        let state = &mut self.agents[agent];
        state.leased = state.leased.saturating_sub(1);
        state.crawls.remove(&site);
        self.partial.insert(site, PartialCrawl { from: agent, pages });
        self.pool.insert(site);
    }
}
