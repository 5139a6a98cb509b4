//! The scheduler's side of a simulated batch: the waiting and leased sites of each agent. This
//! module calls the strategy code of the scheduler as the scheduler's background tasks do
//! (`jobs/assign`, `jobs/assign/balance`, `store/assignments/agents_and_loads`). It does no I/O.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use anyhow::Context;
use landfall_scheduler::model::{Rtt, Strategy, seed};
use landfall_scheduler::strategy::learned_distances::CrawlObservation;
use landfall_scheduler::strategy::plan::{self, Job};
use landfall_scheduler::strategy::rebalance::{self, MovableTask};
use landfall_scheduler::strategy::{
    self, Candidate, Crawl, RecordedCandidate, RecordedChoice, Site, Speed, Work, crawl_duration,
};

use super::survey::{self, Survey, agent_id, agent_index};

/// Constants of the scheduler. An agent's pace is estimated from its newest `CRAWLS_PACED` crawls
/// and from the fleet's mean duration, which counts as much as `PRIOR_CRAWLS` further crawls.
const CRAWLS_PACED: usize = 20;
const PRIOR_CRAWLS: u32 = 2;
/// Number of an agent's newest crawls from which the scheduler estimates the agent's speed.
const CRAWLS_LEARNED: usize = 40;
/// The pace that the scheduler assumes before any crawl has ended.
const FIRST_PACE: Duration = Duration::from_secs(1);
/// The scheduler's limits for one pass of rebalancing: number of agents' queues that it reads,
/// number of tasks per queue, and number of tasks that it moves.
const QUEUES: usize = 20;
const LOOKED_AT: usize = 100;
const MOVES: usize = 200;

/// The scheduler's data about an agent.
#[derive(Debug, Clone, Default)]
pub(super) struct AgentState {
    /// Assigned sites without a lease. Leases are granted in ascending order of the sites.
    pub(super) waiting: BTreeSet<usize>,
    pub(super) leased: u32,
    /// The durations of the newest crawls.
    took: VecDeque<Duration>,
    stats: VecDeque<CrawlStats>,
    pub(super) crawls: BTreeSet<usize>,
}

#[derive(Debug)]
pub struct Fleet<'a> {
    pub(super) strategy: Strategy,
    pub(super) slots: u32,
    /// The task number of the first site. The other sites have consecutive numbers.
    first_task: u64,
    pub(super) agents: Vec<AgentState>,
    /// The candidates of each site, without the agents' current load.
    pub(super) known: Vec<Cow<'a, [Candidate]>>,
    /// The newest assignment of each site.
    chosen: BTreeMap<usize, RecordedChoice>,
    /// Sites that wait until `plan` assigns them.
    pub(super) pool: BTreeSet<usize>,
    /// The sites that are being confirmed, each with the time when its confirmation ends.
    confirming: BTreeMap<usize, Duration>,
    confirmed: BTreeSet<usize>,
    survey: &'a Survey,
    /// The planned duration of the crawl of each site.
    pub(super) expected: BTreeMap<usize, Duration>,
    pub(super) since: BTreeMap<usize, Duration>,
    /// The history of an earlier crawl of the same sites; `None` if there was no earlier crawl.
    before: Option<&'a CrawlHistory>,
    interval: Duration,
    /// The agent that crawled each site, and the statistics of the crawl.
    completed: BTreeMap<usize, (usize, CrawlStats)>,
    /// The agent that is to continue the crawl of each preempted site.
    pub(super) preempted: BTreeMap<usize, usize>,
    pub(super) partial: BTreeMap<usize, PartialCrawl>,
}

/// The history of a crawl of all sites, for a later crawl of the same sites.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CrawlHistory {
    /// The agent that crawled each site, and the statistics of the crawl.
    sites: BTreeMap<usize, (usize, CrawlStats)>,
    /// The statistics of the newest crawls of each agent.
    agents: Vec<VecDeque<CrawlStats>>,
    confirmed: BTreeSet<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrawlStats {
    /// Pages and bytes.
    pub size: (u32, u64),
    /// The round trip that the crawl observed.
    pub rtt: Rtt,
    pub took: Duration,
}

impl<'a> Fleet<'a> {
    /// Chooses an agent for each site in turn.
    pub fn assign(
        survey: &'a Survey,
        strategy: Strategy,
        (agents, sites): (usize, usize),
        slots: u32,
        (interval, before): (Duration, Option<&'a CrawlHistory>),
        first_task: u64,
    ) -> anyhow::Result<Self> {
        let mut fleet = Self {
            strategy,
            slots,
            first_task,
            known: (0..sites).map(|site| known(survey, site, before)).collect(),
            agents: vec![AgentState::default(); agents],
            chosen: BTreeMap::new(),
            pool: BTreeSet::new(),
            confirming: BTreeMap::new(),
            // Confirmations of an earlier crawl stay valid.
            confirmed: before.map(|before| before.confirmed.clone()).unwrap_or_default(),
            survey,
            expected: BTreeMap::new(),
            since: BTreeMap::new(),
            before,
            interval,
            completed: BTreeMap::new(),
            preempted: BTreeMap::new(),
            partial: BTreeMap::new(),
        };
        if let Some(before) = before {
            fleet.agents.iter_mut().zip(&before.agents).for_each(|(state, stats)| state.stats.clone_from(stats));
        }
        for site in 0..sites {
            fleet.choose(site, Duration::ZERO).context("there is no candidate")?;
        }
        fleet.plan(Duration::ZERO);
        Ok(fleet)
    }

    /// Assigns a site, adds it to `pool`, or starts its confirmation. Returns the agent if the site
    /// was assigned. The outer `None` means that no agent could be chosen.
    fn choose(&mut self, site: usize, now: Duration) -> Option<Option<usize>> {
        if self.strategy == Strategy::EarliestFinish {
            self.pool.insert(site);
            return Some(None);
        }
        let candidates = self.candidates(site);
        let draw = seed::spread(self.first_task.wrapping_add(u64::try_from(site).unwrap_or(u64::MAX)));
        let choice = strategy::choose(self.strategy, &Site::default(), &candidates, draw)?;
        let listed = choice.candidates.iter().map(listed).collect();
        let agent = agent_index(choice.agent)?;
        let taker = candidates.iter().find(|one| one.agent == choice.agent)?;
        if self.is_worth_confirming(site, taker.waits()) {
            self.confirm(site, now);
            return Some(None);
        }
        self.agents[agent].waiting.insert(site);
        let (by, strategy, fallback) = (choice.agent, choice.strategy, choice.fallback);
        self.chosen.insert(site, RecordedChoice { agent: by, strategy, fallback, listed });
        Some(Some(agent))
    }

    /// Whether a site should be confirmed during its waiting time `waits`.
    fn is_worth_confirming(&self, site: usize, waits: Duration) -> bool {
        let asks = self.strategy.confirms_the_unsure() && !self.confirmed.contains(&site);
        asks && waits >= survey::CONFIRMING && self.survey.confirmed(site).is_some()
    }

    fn confirm(&mut self, site: usize, now: Duration) {
        if let Some((known, takes)) = self.survey.confirmed(site) {
            self.confirming.insert(site, now + takes);
            self.confirmed.insert(site);
            if self.before.is_none() {
                self.known[site] = Cow::Borrowed(known);
            }
        }
    }

    /// Assigns the sites whose confirmation has ended, and returns their agents.
    pub fn choose_confirmed(&mut self, now: Duration) -> BTreeSet<usize> {
        let completed: Vec<usize> =
            self.confirming.iter().filter(|(_, at)| **at <= now).map(|(site, _)| *site).collect();
        self.confirming.retain(|_, at| *at > now);
        completed.into_iter().filter_map(|site| self.choose(site, now).flatten()).collect()
    }

    /// Plans the waiting sites as the scheduler does (`jobs/assign/plan_decisions`), and assigns the
    /// sites whose crawls are planned to begin soon. Returns the agents of the assigned sites.
    pub fn plan(&mut self, now: Duration) -> BTreeSet<usize> {
        let sites: Vec<usize> = self.pool.iter().copied().collect();
        let speeds: Vec<Speed> = self.agents.iter().map(|state| self.speed(state)).collect();
        let job = |site: &usize| {
            let (work, sized) = self.work_of(*site);
            let partial = self.partial.get(site);
            let work = partial.map_or(work, |partial| work.left(partial.pages, sized));
            let candidates = &self.known[*site];
            let farthest = candidates.iter().filter_map(Candidate::distance).max();
            let takes = candidates.iter().zip(&speeds);
            let mut takes: Vec<Option<Duration>> =
                takes.map(|(one, speed)| Some(work.takes(one.distance().or(farthest)?, *speed))).collect();
            // The agent that returned the site gets it again only if there is no other candidate.
            if let Some(partial) = partial.filter(|_| candidates.len() > 1) {
                takes[partial.from] = None;
            }
            Job { takes, sized, waited: now }
        };
        let jobs: Vec<Job> = sites.iter().map(job).collect();
        let frees: Vec<Vec<Duration>> = self.agents.iter().map(|state| self.frees(state, now)).collect();
        let mut got = BTreeSet::new();
        for planned in plan::plan(&jobs, &frees) {
            let Some(&site) = sites.get(planned.job) else { continue };
            if planned.begins > plan::AHEAD {
                if self.is_worth_confirming(site, planned.begins) {
                    self.pool.remove(&site);
                    self.confirm(site, now);
                }
                continue;
            }
            self.pool.remove(&site);
            self.expected.insert(site, planned.ends.saturating_sub(planned.begins));
            let (agent, strategy) = (agent_id(planned.agent), Strategy::EarliestFinish);
            self.chosen.insert(site, RecordedChoice { agent, strategy, fallback: None, listed: Vec::new() });
            self.agents[planned.agent].waiting.insert(site);
            got.insert(planned.agent);
        }
        got
    }

    /// The expected work of a site, and whether its size is known.
    pub(super) fn work_of(&self, site: usize) -> (Work, bool) {
        let former = self.before.and_then(|before| before.sites.get(&site));
        (self.work(former.map(|(_, stats)| stats.size).or_else(|| self.usual())), former.is_some())
    }

    fn work(&self, size: Option<(u32, u64)>) -> Work {
        let (pages, bytes) = size.unwrap_or((Work::default().pages, Work::default().bytes));
        Work { pages, bytes, interval: self.interval }
    }

    /// The mean size of recent crawls, in pages and bytes.
    fn usual(&self) -> Option<(u32, u64)> {
        let stats: Vec<&CrawlStats> = self.agents.iter().flat_map(|state| &state.stats).collect();
        let count = u32::try_from(stats.len()).ok().filter(|count| *count > 0)?;
        let pages = stats.iter().map(|stats| stats.size.0).sum::<u32>() / count;
        Some((pages, stats.iter().map(|stats| stats.size.1).sum::<u64>() / u64::from(count)))
    }

    pub(super) fn speed(&self, state: &AgentState) -> Speed {
        let crawl = |stats: &CrawlStats| Crawl {
            work: self.work(Some(stats.size)),
            rtt: stats.rtt,
            took: stats.took,
            weight: 1.0,
        };
        Speed::default().learned(&state.stats.iter().map(crawl).collect::<Vec<_>>())
    }

    fn frees(&self, state: &AgentState, now: Duration) -> Vec<Duration> {
        let expected = |site: &usize| self.expected.get(site).copied().unwrap_or_default();
        let under_way = |site: &usize| {
            let since = self.since.get(site).copied().unwrap_or(now);
            crawl_duration::remaining(expected(site), now.saturating_sub(since))
        };
        let under_way: Vec<Duration> = state.crawls.iter().map(under_way).collect();
        let waiting: Vec<Duration> = state.waiting.iter().map(expected).collect();
        crawl_duration::frees(usize::try_from(self.slots).unwrap_or(usize::MAX), &under_way, &waiting)
    }

    /// Grants leases for an agent's waiting sites while the agent has free slots, and returns these
    /// sites.
    pub fn grant(&mut self, agent: usize, now: Duration) -> Vec<usize> {
        let state = &mut self.agents[agent];
        let mut granted = Vec::new();
        while state.leased < self.slots
            && let Some(site) = state.waiting.pop_first()
        {
            state.leased += 1;
            state.crawls.insert(site);
            self.since.insert(site, now);
            granted.push(site);
        }
        granted
    }

    pub fn complete(&mut self, agent: usize, site: usize, stats: CrawlStats) {
        let state = &mut self.agents[agent];
        state.leased = state.leased.saturating_sub(1);
        state.crawls.remove(&site);
        self.completed.insert(site, (agent, stats));
        // If two agents crawled a site, the statistics describe neither agent.
        if self.partial.contains_key(&site) {
            return;
        }
        state.stats.push_back(stats);
        if state.stats.len() > CRAWLS_LEARNED {
            state.stats.pop_front();
        }
        state.took.push_back(stats.took);
        if state.took.len() > CRAWLS_PACED {
            state.took.pop_front();
        }
    }

    pub fn into_history(self) -> CrawlHistory {
        let agents = self.agents.into_iter().map(|state| state.stats).collect();
        CrawlHistory { sites: self.completed, agents, confirmed: self.confirmed }
    }

    /// Moves waiting sites between agents, as the scheduler does twice a second, and returns the
    /// agents that received sites.
    pub fn rebalance(&mut self) -> BTreeSet<usize> {
        let fleet = self.plain();
        let mut longest: Vec<&Candidate> = fleet
            .iter()
            .zip(&self.agents)
            .filter(|(one, state)| !state.waiting.is_empty() && one.level().get() > 0)
            .map(|(one, _)| one)
            .collect();
        longest.sort_by_key(|one| std::cmp::Reverse((one.level(), one.agent)));
        let sites: Vec<usize> = longest
            .iter()
            .take(QUEUES)
            .filter_map(|one| self.agents.get(agent_index(one.agent)?))
            // The sites are taken from the end of each agent's queue.
            .flat_map(|state| state.waiting.iter().rev().take(LOOKED_AT).copied())
            .collect();
        let queued = |site: &usize| {
            let former = &self.chosen[site];
            MovableTask { at: former.agent, takers: rebalance::takers(former, &fleet, &[]) }
        };
        let queued: Vec<MovableTask> = sites.iter().map(queued).collect();
        let mut got = BTreeSet::new();
        for one in rebalance::plan(&fleet, &queued, MOVES) {
            let Some(&site) = sites.get(one.queued) else { continue };
            let (Some(from), Some(to)) = (agent_index(self.chosen[&site].agent), agent_index(one.to)) else { continue };
            let Some(taker) = fleet.get(to) else { continue };
            let Some(former) = self.chosen.get_mut(&site) else { continue };
            former.listed = rebalance::relisted(former, taker, &fleet).iter().map(listed).collect();
            former.agent = one.to;
            self.agents[from].waiting.remove(&site);
            self.agents[to].waiting.insert(site);
            got.insert(to);
        }
        got
    }

    pub fn waits(&self) -> bool {
        !self.pool.is_empty()
            || !self.confirming.is_empty()
            || self.agents.iter().any(|state| !state.waiting.is_empty())
    }

    /// The candidates of a site, with their current load.
    fn candidates(&self, site: usize) -> Vec<Candidate> {
        let now = self.plain();
        let known = self.known[site].iter().zip(&now);
        known
            .map(|(known, now)| Candidate { load: now.load, capacity: now.capacity, pace: now.pace, ..*known })
            .collect()
    }

    /// All agents as candidates, without round trips.
    fn plain(&self) -> Vec<Candidate> {
        let all: Vec<&Duration> = self.agents.iter().flat_map(|state| &state.took).collect();
        let crawls = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let fleet = if crawls == 0 { FIRST_PACE } else { all.into_iter().sum::<Duration>() / crawls };
        let one = |(index, state): (usize, &AgentState)| {
            let crawls = u32::try_from(state.took.len()).unwrap_or(u32::MAX);
            Candidate {
                load: u32::try_from(state.waiting.len()).unwrap_or(u32::MAX).saturating_add(state.leased),
                pace: (state.took.iter().sum::<Duration>() + fleet * PRIOR_CRAWLS) / (crawls + PRIOR_CRAWLS),
                ..Candidate::new(agent_id(index), self.slots)
            }
        };
        self.agents.iter().enumerate().map(one).collect()
    }
}

/// The candidates of a site, corrected by an earlier crawl of the site if there was one.
fn known<'a>(survey: &'a Survey, site: usize, before: Option<&CrawlHistory>) -> Cow<'a, [Candidate]> {
    match before.and_then(|before| Some((before, before.sites.get(&site)?))) {
        Some((before, (agent, stats))) => {
            let crawl = CrawlObservation { agent: agent_id(*agent), rtt: stats.rtt, weight: 1.0 };
            Cow::Owned(survey.predicted(site, before.confirmed.contains(&site), &[crawl]))
        }
        None => Cow::Borrowed(survey.candidates(site)),
    }
}

fn listed(candidate: &Candidate) -> RecordedCandidate {
    RecordedCandidate { agent: candidate.agent, predicted: candidate.predicted, measured: candidate.measured }
}

/// The progress of a preempted crawl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartialCrawl {
    pub(super) from: usize,
    /// Number of fetched pages.
    pub(super) pages: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::figures::float;

    const NO_SIZES: (Duration, Option<&CrawlHistory>) = (Duration::ZERO, None);

    fn stats(took: Duration) -> CrawlStats {
        CrawlStats { size: (10, 1000), rtt: Rtt::try_from_millis_f64(10.0).unwrap(), took }
    }

    /// A survey in which agent `i` is 10 (i + 1) ms away from every site.
    fn survey(agents: usize, sites: usize) -> Survey {
        let one = |agent: usize| Candidate {
            measured: Rtt::try_from_millis_f64(10.0 * float(agent + 1)).ok(),
            ..Candidate::new(agent_id(agent), 1)
        };
        Survey::given(vec![(0..agents).map(one).collect(); sites])
    }

    fn waiting(fleet: &Fleet<'_>) -> Vec<usize> {
        fleet.agents.iter().map(|state| state.waiting.len()).collect()
    }

    #[test]
    fn the_strategy_assigns_sites_and_they_are_granted_in_order() {
        let survey = survey(4, 6);
        let mut fleet = Fleet::assign(&survey, Strategy::GNP_TOP1, (4, 6), 2, NO_SIZES, 1).unwrap();
        assert_eq!(waiting(&fleet), [6, 0, 0, 0]);
        assert_eq!(fleet.grant(0, Duration::ZERO), [0, 1]);
        assert_eq!(fleet.grant(0, Duration::ZERO), Vec::<usize>::new());
        fleet.complete(0, 0, stats(Duration::from_secs(3)));
        assert_eq!(fleet.grant(0, Duration::ZERO), [2]);
        assert_eq!(fleet.rebalance(), BTreeSet::new(), "there is one candidate");
        let fleet = Fleet::assign(&survey, Strategy::GNP_TOP3, (4, 6), 1, NO_SIZES, 1).unwrap();
        assert_eq!(waiting(&fleet), [2, 2, 2, 0], "one with room first, then where it ends first");
    }

    #[test]
    fn waiting_sites_move_to_an_idle_candidate() {
        let survey = survey(3, 6);
        let mut fleet = Fleet::assign(&survey, Strategy::GNP_TOP3, (3, 6), 1, NO_SIZES, 1).unwrap();
        for agent in 0..3 {
            assert_eq!(fleet.grant(agent, Duration::ZERO).len(), 1);
        }
        for _ in 0..2 {
            fleet.complete(1, 1, stats(Duration::from_millis(900)));
            fleet.grant(1, Duration::ZERO);
        }
        assert_eq!(waiting(&fleet), [1, 0, 1]);
        fleet.complete(2, 2, stats(Duration::from_millis(900)));
        fleet.grant(2, Duration::ZERO);
        assert_eq!(fleet.rebalance(), BTreeSet::from([1]));
        assert_eq!(fleet.grant(1, Duration::ZERO).len(), 1);
        assert!(!fleet.waits());
    }

    #[test]
    fn an_agents_pace_includes_two_crawls_of_the_fleets_mean() {
        let survey = survey(2, 4);
        let mut fleet = Fleet::assign(&survey, Strategy::Random, (2, 4), 4, NO_SIZES, 1).unwrap();
        assert_eq!(fleet.plain()[1].pace, FIRST_PACE);
        (0..2).for_each(|_| fleet.complete(0, 0, stats(Duration::from_secs(4))));
        fleet.complete(1, 1, stats(Duration::from_secs(10)));
        let paces: Vec<u128> = fleet.plain().iter().map(|one| one.pace.as_millis()).collect();
        assert_eq!(paces, [5_000, 7_333]);
    }

    #[test]
    fn a_straggler_is_preempted_once_if_a_slot_is_idle_and_does_not_return_at_once() {
        let one = |millis| Rtt::try_from_millis_f64(millis).ok();
        let known = [400.0, 10.0]
            .iter()
            .zip(0..)
            .map(|(ms, i)| Candidate { measured: one(*ms), ..Candidate::new(agent_id(i), 1) });
        let survey = Survey::given(vec![known.collect(); 2]);
        let mut fleet = Fleet::assign(&survey, Strategy::EarliestFinish, (2, 2), 1, NO_SIZES, 1).unwrap();
        let slow = |_| Some((100, Duration::from_secs(40)));
        let now = Duration::from_secs(60);
        // The plan is replaced: one site is at the far agent, and the other site at the near agent.
        fleet.pool.clear();
        for (agent, site) in [(0, 0), (1, 1)] {
            fleet.agents[agent].waiting = BTreeSet::from([site]);
            fleet.expected.insert(site, Duration::from_secs(8));
            assert_eq!(fleet.grant(agent, Duration::ZERO), [site]);
        }
        assert_eq!(fleet.stragglers(slow, now), Vec::<usize>::new(), "no slot idles");
        fleet.complete(1, 1, stats(Duration::from_millis(100)));
        assert_eq!(fleet.stragglers(slow, Duration::from_secs(9)), Vec::<usize>::new(), "not long enough under way");
        assert_eq!(fleet.stragglers(slow, now), [0]);
        assert_eq!(fleet.stragglers(slow, now), Vec::<usize>::new(), "asked for once");
        fleet.hand_back(0, 0, 100);
        assert_eq!(fleet.plan(now), BTreeSet::from([1]));
        assert_eq!(fleet.grant(1, now), [0]);
    }
}
