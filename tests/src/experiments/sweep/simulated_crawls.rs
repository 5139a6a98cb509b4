//! A discrete-event simulation of a batch. A simulated crawl sends its requests in the same order
//! as a real agent, and responses arrive as in [`crate::world::response_delays`]. This module does
//! no I/O. The same seed always gives the same result.
//!
//! There is one event per request, at the time when the first byte of its response reaches the
//! agent. From this time on, the body arrives in parts, one part per round trip. Each part occupies
//! the agent's access link. The next request is sent when the last part has arrived and the request
//! interval has passed. The constants `LEASE`, `OUTCOME` and `REQUEST` are delays of the real
//! programs, measured in the lab. These constants are the same for every strategy.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use landfall_scheduler::model::{Rtt, Strategy};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::batch::{Batch, BatchResult, BodyArrival};
use super::simulated_scheduler::{CrawlStats, Fleet};
use crate::evidence::figures::float;
use crate::world::response_delays;
use crate::world::scenario::Scenario;

/// Time from a grant to the first request, including the transmission of the grant, the creation of
/// the crawl's file, and the wait for permission to crawl the address.
const LEASE: Duration = Duration::from_millis(15);
/// Time from the last response to the recorded outcome, including the time to write, send and store
/// the outcome.
const OUTCOME: Duration = Duration::from_millis(4);
/// Processing time of a request at the agent and the site, including the lateness of the emulated
/// network.
const REQUEST: Duration = Duration::from_micros(600);
/// Constants of the agent. The agent computes a moving mean of the times to first byte: `NEWEST` is
/// the weight of the newest time, and at a mean of `SLOW` or more a site counts as slow.
const NEWEST: f64 = 0.2;
const SLOW: Duration = Duration::from_secs(1);
/// Interval of rebalancing in the scheduler.
const BALANCE_EVERY: Duration = Duration::from_millis(500);
/// Interval between checkpoints in the agent. A checkpoint reports the progress of a crawl to the
/// scheduler.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The first byte of a response reaches the agent.
    FirstByte {
        site: usize,
    },
    /// The scheduler records the outcome of a crawl.
    Outcome {
        site: usize,
    },
    /// The agent returns a preempted crawl.
    HandedBack {
        site: usize,
    },
    Balance,
}

/// A running crawl.
#[derive(Debug, Clone, Copy, Default)]
struct Crawl {
    agent: usize,
    request: usize,
    /// The times when the first request and the current request of the crawl were sent.
    began: Duration,
    sent: Duration,
    took: Duration,
    /// How long earlier agents crawled the site.
    before: Duration,
    preempted: bool,
    /// The number of fetched pages and the crawl time at the last checkpoint; `None` if there was
    /// no checkpoint.
    checkpoint: Option<(u32, Duration)>,
    /// The mean time to first byte, in seconds.
    mean_first_byte: f64,
}

impl Crawl {
    /// Draws the time from a request to the first byte of its response, and updates
    /// `mean_first_byte`.
    fn first_byte(
        &mut self,
        scenario: &Scenario,
        (agent, site): (usize, usize),
        (connects, thinking): (bool, Duration),
        rng: &mut ChaCha8Rng,
    ) -> Duration {
        // The handshake of a new connection takes one more round trip.
        let trips = if connects { 2 } else { 1 };
        let late = Duration::from_secs_f64(scenario.jitter_ms * rng.random_range(0.0..1.0) / 1e3);
        let first_byte = scenario.paths[agent][site].rtt() * trips + late + thinking;
        self.mean_first_byte += NEWEST * (first_byte.as_secs_f64() - self.mean_first_byte);
        first_byte
    }

    /// The interval between requests to a slow site; zero if the site is not slow.
    fn trouble(&self) -> Duration {
        if self.mean_first_byte >= SLOW.as_secs_f64() {
            Duration::from_secs_f64(2.0 * self.mean_first_byte)
        } else {
            Duration::ZERO
        }
    }
}

struct Run<'a> {
    batch: Batch<'a>,
    fleet: Fleet<'a>,
    rng: ChaCha8Rng,
    /// Future events, the earliest first. Events at the same time are in the order in which they
    /// were planned.
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    planned: u64,
    crawls: Vec<Crawl>,
    /// The time when each agent's access link becomes free again.
    links: Vec<Duration>,
    arrived: Vec<BodyArrival>,
    sent: usize,
    open: usize,
    preempted: usize,
    /// Total crawl time of each agent.
    busy: Vec<Duration>,
    /// Bytes of the fetched bodies of each site.
    fetched: Vec<usize>,
}

pub fn run(batch: Batch<'_>) -> anyhow::Result<BatchResult> {
    let (agents, sites) = (batch.scenario.agents.len(), batch.scenario.sites.len());
    let fleet = Fleet::assign(
        batch.survey,
        batch.strategy,
        (agents, sites),
        batch.slots,
        (batch.interval, batch.before),
        batch.first_task,
    )?;
    let mut run = Run {
        batch,
        fleet,
        rng: ChaCha8Rng::seed_from_u64(batch.seed),
        events: BinaryHeap::new(),
        planned: 0,
        crawls: vec![Crawl::default(); sites],
        links: vec![Duration::ZERO; agents],
        arrived: Vec::new(),
        sent: 0,
        open: sites,
        preempted: 0,
        busy: vec![Duration::ZERO; agents],
        fetched: vec![0; sites],
    };
    (0..agents).for_each(|agent| run.grant(agent, Duration::ZERO));
    let phase = BALANCE_EVERY.mul_f64(run.rng.random_range(0.0..1.0));
    run.plan(phase, Event::Balance);
    let mut makespan = Duration::ZERO;
    while let Some(Reverse((now, _, event))) = run.events.pop() {
        match event {
            Event::FirstByte { site } => run.first_byte(site, now),
            Event::Outcome { site } => {
                makespan = now;
                run.outcome(site, now);
            }
            Event::HandedBack { site } => run.handed_back(site, now),
            Event::Balance => run.balance(now),
        }
    }
    let mut per_agent = vec![0; agents];
    run.crawls.iter().for_each(|crawl| per_agent[crawl.agent] += 1);
    per_agent.sort_unstable_by(|one, other| other.cmp(one));
    let took = run.crawls.iter().map(|crawl| crawl.before + crawl.took);
    let sites = run.fetched.iter().copied().zip(took).collect();
    let Run { fleet, arrived, sent: requests, preempted, busy, .. } = run;
    let history = fleet.into_history();
    Ok(BatchResult { arrived, makespan, requests, sites, preempted, per_agent, busy, history })
}

/// How long a crawl of a site occupies a slot of an agent, if no other crawl uses the access link.
pub fn alone(batch: &Batch<'_>, agent: usize, site: usize, rng: &mut ChaCha8Rng) -> Duration {
    let (mut now, mut link, mut crawl) = (LEASE, Duration::ZERO, Crawl::default());
    let mut rested = now;
    for (index, asked) in batch.requests[site].iter().enumerate() {
        let sent = rested;
        let first_byte = crawl.first_byte(batch.scenario, (agent, site), (index == 0, asked.thinking), rng);
        now = pass(batch.scenario, (agent, site), asked.bytes, sent + first_byte, (&mut link, rng)) + REQUEST;
        let last = index + 1 == batch.requests[site].len();
        let interval = if last { batch.interval } else { batch.interval.max(crawl.trouble()) };
        rested = now.max(sent + interval);
    }
    rested + OUTCOME
}

/// The time when the last part of a body has arrived. If the access link is free, a part arrives
/// immediately, and then occupies the link until its bytes are transmitted at the link's rate.
fn pass(
    scenario: &Scenario,
    (agent, site): (usize, usize),
    bytes: usize,
    first_byte: Duration,
    (free, rng): (&mut Duration, &mut ChaCha8Rng),
) -> Duration {
    let link = scenario.paths[agent][site];
    let bytes_per_s = scenario.agent_bytes_per_s;
    let path = response_delays::Path { rtt: link.rtt(), loss: link.loss, bytes_per_s };
    let (mut round, mut last) = (first_byte, first_byte);
    for bytes in response_delays::rounds(bytes, path, rng) {
        let on_wire = Duration::from_secs_f64(float(bytes) / bytes_per_s);
        last = round.max(*free);
        *free = last + on_wire;
        round += link.rtt();
    }
    last
}

impl Run<'_> {
    fn plan(&mut self, at: Duration, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at, self.planned, event)));
    }

    /// Begins crawls in the free slots of an agent.
    fn grant(&mut self, agent: usize, now: Duration) {
        for site in self.fleet.grant(agent, now) {
            let began = now + LEASE;
            let former = self.crawls[site];
            self.crawls[site] = Crawl { agent, began, ..Crawl::default() };
            if former.preempted {
                self.resume(site, &former);
            } else {
                self.ask(site, began);
            }
        }
    }

    /// Continues a crawl that another agent began. The new agent first requests robots.txt over a
    /// new connection, and then the next page.
    fn resume(&mut self, site: usize, former: &Crawl) {
        let crawl = &mut self.crawls[site];
        crawl.request = former.request + 1;
        crawl.before = former.before + former.took;
        self.sent += 1;
        let (agent, began) = (crawl.agent, crawl.began);
        let robots = crawl.first_byte(self.batch.scenario, (agent, site), (true, Duration::ZERO), &mut self.rng);
        self.ask(site, began + (robots + REQUEST).max(self.batch.interval));
    }

    fn ask(&mut self, site: usize, now: Duration) {
        let Crawl { agent, request, .. } = self.crawls[site];
        self.crawls[site].sent = now;
        self.sent += 1;
        let (connects, thinking) = (request == 0, self.batch.requests[site][request].thinking);
        let crawl = &mut self.crawls[site];
        let first_byte = crawl.first_byte(self.batch.scenario, (agent, site), (connects, thinking), &mut self.rng);
        self.plan(now + first_byte, Event::FirstByte { site });
    }

    /// Receives a body, and plans the next event of the crawl.
    fn first_byte(&mut self, site: usize, now: Duration) {
        let Crawl { agent, request, began, sent, .. } = self.crawls[site];
        let asked = self.batch.requests[site][request];
        let link = (&mut self.links[agent], &mut self.rng);
        let arrived = pass(self.batch.scenario, (agent, site), asked.bytes, now, link);
        self.arrived.push(BodyArrival { at_s: arrived.as_secs_f64(), bytes: asked.bytes });
        self.fetched[site] += asked.bytes;
        let (next, interval) = (arrived + REQUEST, self.batch.interval);
        let crawl = &mut self.crawls[site];
        crawl.took = next.saturating_sub(began);
        if request + 1 == self.batch.requests[site].len() {
            // The slot stays occupied until the request interval after the last request has passed.
            self.plan(next.max(sent + interval) + OUTCOME, Event::Outcome { site });
            return;
        }
        let due = crawl.checkpoint.map_or(Duration::ZERO, |(_, took)| took) + CHECKPOINT_EVERY;
        if crawl.took >= due {
            crawl.checkpoint = Some((u32::try_from(request + 1).unwrap_or(u32::MAX), crawl.took));
        }
        let sends = next.max(sent + interval.max(crawl.trouble()));
        if crawl.preempted {
            self.plan(sends + OUTCOME, Event::HandedBack { site });
            return;
        }
        // The next request is planned now, because no later event can change it.
        crawl.request += 1;
        self.ask(site, sends);
    }

    /// Returns the unfinished part of a site to the fleet, which plans it for another agent.
    fn handed_back(&mut self, site: usize, now: Duration) {
        let Crawl { agent, request, took, .. } = self.crawls[site];
        self.preempted += 1;
        self.busy[agent] += took;
        self.fleet.hand_back(agent, site, u32::try_from(request + 1).unwrap_or(u32::MAX));
        self.grant(agent, now);
        self.assign_planned(now);
    }

    fn outcome(&mut self, site: usize, now: Duration) {
        let Crawl { agent, took, before, .. } = self.crawls[site];
        self.open -= 1;
        self.busy[agent] += took;
        let requests = &self.batch.requests[site];
        let pages = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        let bytes = requests.iter().map(|asked| u64::try_from(asked.bytes).unwrap_or(u64::MAX)).sum();
        let rtt = self.batch.scenario.paths[agent][site].rtt();
        if let Ok(rtt) = Rtt::try_new(rtt) {
            self.fleet.complete(agent, site, CrawlStats { size: (pages, bytes), rtt, took: before + took });
        }
        self.grant(agent, now);
        self.assign_planned(now);
    }

    /// Plans all waiting sites anew, and grants the leases of the assigned sites.
    fn assign_planned(&mut self, now: Duration) {
        for agent in self.fleet.plan(now) {
            self.grant(agent, now);
        }
    }

    fn balance(&mut self, now: Duration) {
        for agent in self.fleet.choose_confirmed(now) {
            self.grant(agent, now);
        }
        self.assign_planned(now);
        for agent in self.fleet.rebalance() {
            self.grant(agent, now);
        }
        let crawls = &self.crawls;
        for site in self.fleet.stragglers(|site| crawls[site].checkpoint, now) {
            self.crawls[site].preempted = true;
        }
        if self.open > 0 && (self.fleet.waits() || self.batch.strategy == Strategy::EarliestFinish) {
            self.plan(now + BALANCE_EVERY, Event::Balance);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use landfall_scheduler::strategy::Candidate;

    use super::*;
    use crate::experiments::sweep::survey::{Survey, agent_id};
    use crate::world::scenario::{AgentNode, Link, SiteNode};
    use crate::world::site_pages::{SiteRequest, WebRules};

    /// A scenario whose agents have access links of 2 MB/s. `rtt_ms[agent]` is the agent's round
    /// trip, the same for every site.
    pub(in super::super) fn scenario(rtt_ms: &[f64], sites: usize, loss: f64) -> Scenario {
        let named =
            |name: String| AgentNode { name, city: String::new(), carrier: String::new(), country: String::new() };
        let site = |machine| SiteNode { host: String::new(), city: String::new(), carrier: String::new(), machine };
        Scenario {
            name: "by hand".to_owned(),
            seed: 1,
            agents: (0..rtt_ms.len()).map(|agent| named(agent.to_string())).collect(),
            sites: (0..sites).map(site).collect(),
            mesh: Vec::new(),
            paths: rtt_ms.iter().map(|&rtt_ms| vec![Link { rtt_ms, loss }; sites]).collect(),
            jitter_ms: 0.0,
            agent_bytes_per_s: 2e6,
            web: WebRules::default(),
        }
    }

    pub(in super::super) fn survey(scenario: &Scenario) -> Survey {
        let one = |agent: usize| Candidate {
            measured: Rtt::try_from_millis_f64(scenario.paths[agent][0].rtt_ms).ok(),
            ..Candidate::new(agent_id(agent), 1)
        };
        Survey::given(vec![(0..scenario.agents.len()).map(one).collect(); scenario.sites.len()])
    }

    pub(in super::super) fn asked(bytes: &[usize]) -> Vec<SiteRequest> {
        bytes.iter().map(|&bytes| SiteRequest { bytes, thinking: Duration::ZERO }).collect()
    }

    /// A batch with one slot per agent and no request interval.
    pub(in super::super) fn batch<'a>(
        scenario: &'a Scenario,
        survey: &'a Survey,
        requests: &'a [Vec<SiteRequest>],
    ) -> Batch<'a> {
        let (strategy, interval) = (Strategy::EarliestFinish, Duration::ZERO);
        let (before, first_task, seed) = (None, 1, 1);
        Batch { scenario, survey, requests, strategy, slots: 1, interval, before, first_task, seed }
    }

    fn simulated(scenario: &Scenario, requests: &[Vec<SiteRequest>], slots: u32, interval: Duration) -> BatchResult {
        let survey = survey(scenario);
        run(Batch { strategy: Strategy::GNP_TOP1, slots, interval, ..batch(scenario, &survey, requests) }).unwrap()
    }

    pub(in super::super) fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn one_crawl_takes_the_round_trips_computed_by_hand() {
        let scenario = scenario(&[100.0], 1, 0.0);
        // robots.txt takes two round trips, one of them for the handshake. 14,600 bytes take one
        // round trip, because they fit into TCP's first window. 50,000 bytes take three round trips
        // (14,600, 29,200 and 6,200 bytes).
        let mut requests = asked(&[14, 14_600, 50_000]);
        requests[1].thinking = ms(600);
        let result = simulated(&scenario, &[requests], 1, Duration::ZERO);
        let took = ms(200) + REQUEST + ms(100 + 600) + REQUEST + ms(300) + REQUEST;
        assert_eq!(result.sites, [(64_614, took)]);
        assert_eq!(result.makespan, LEASE + took + OUTCOME);
        let at: Vec<Duration> = result.arrived.iter().map(|body| Duration::from_secs_f64(body.at_s)).collect();
        assert_eq!(at, [LEASE + ms(200), LEASE + ms(900) + REQUEST, LEASE + ms(1200) + 2 * REQUEST]);
        assert_eq!(result.requests, 3);
    }

    #[test]
    fn a_crawl_slower_than_predicted_is_preempted_and_continued_by_another_agent() {
        let truth = scenario(&[900.0, 10.0], 1, 0.0);
        // The prediction is wrong: the far agent seems nearer.
        let foreseen = survey(&scenario(&[100.0, 150.0], 1, 0.0));
        let requests = [asked(&[1000; 300])];
        let result = run(batch(&truth, &foreseen, &requests)).unwrap();
        // After a minute, the first checkpoint shows that the crawl is slow. The near agent
        // requests robots.txt again, and needs three seconds for the remaining pages.
        assert_eq!((result.preempted, result.requests, result.arrived.len()), (1, 301, 300));
        assert_eq!((result.sites[0].0, &result.per_agent[..]), (300_000, &[1, 0][..]));
        assert!(result.makespan > ms(60_000) && result.makespan < ms(66_000), "{result:?}");
        assert!(
            result.busy[0] > ms(60_000) && result.busy[1] > ms(2000) && result.busy[1] < ms(4000),
            "{:?}",
            result.busy
        );
        assert_eq!(result.sites[0].1, result.busy[0] + result.busy[1]);
    }

    #[test]
    fn an_interval_delays_requests_and_keeps_the_slot_after_the_last_one() {
        let scenario = scenario(&[100.0], 2, 0.0);
        let requests = vec![asked(&[14, 1000, 1000]), asked(&[14])];
        let result = simulated(&scenario, &requests, 1, ms(1000));
        // Requests are sent after 0, 1 and 2 s. After 3 s, the slot is free, and the second crawl
        // begins.
        let second = LEASE + ms(3000) + OUTCOME + LEASE;
        assert_eq!(result.makespan, second + ms(1000) + OUTCOME);
        assert_eq!(result.sites[0].1, ms(2100) + REQUEST, "the rest is no part of the crawl");
    }

    #[test]
    fn a_slow_site_gets_half_as_many_requests() {
        let scenario = scenario(&[2000.0], 1, 0.0);
        let result = simulated(&scenario, &[asked(&[14, 1000, 1000])], 1, Duration::ZERO);
        // The first bytes of the first two responses arrive 4 s and 2 s after their requests. The
        // mean starts at 0, and becomes 0.8 s and then 1.04 s. The interval of a slow site is twice
        // the mean, so the third request is sent 2.08 s after the second.
        let took = ms(4000) + REQUEST + ms(2080) + ms(2000) + REQUEST;
        assert_eq!(result.sites[0].1, took);
    }

    #[test]
    fn crawls_of_one_agent_share_its_access_link() {
        let scenario = scenario(&[10.0], 2, 0.0);
        let requests = vec![asked(&[10_000]), asked(&[10_000])];
        let together = simulated(&scenario, &requests, 2, Duration::ZERO);
        // 10,000 bytes occupy the link for 5 ms, so the second body arrives 5 ms after the first.
        let at: Vec<f64> = together.arrived.iter().map(|body| body.at_s).collect();
        assert!((at[1] - at[0] - 0.005).abs() < 1e-9, "{at:?}");
        let alone = simulated(&scenario, &requests, 1, Duration::ZERO);
        assert_eq!(alone.makespan, 2 * (LEASE + ms(20) + REQUEST + OUTCOME));
    }

    #[test]
    fn a_site_waiting_at_a_busy_agent_moves_to_an_idle_candidate() {
        let scenario = scenario(&[10.0, 10.0, 10.0], 9, 0.0);
        let long = asked(&[1000; 400]);
        let mut requests = vec![asked(&[1000]); 8];
        requests.insert(0, long);
        let survey = survey(&scenario);
        let batch =
            Batch { strategy: Strategy::GNP_TOP3, first_task: 3, seed: 3, ..batch(&scenario, &survey, &requests) };
        let result = run(batch).unwrap();
        // The long crawl takes 400 requests. If two short crawls waited for the long crawl, they
        // would end after it, and the makespan would be longer.
        let longest = LEASE + ms(10 * 401) + 400 * REQUEST + OUTCOME;
        assert_eq!(result.makespan, longest);
        assert_eq!(result, run(batch).unwrap(), "the same seed, the same run");
    }

    #[test]
    fn loss_costs_time_but_no_bytes() {
        let requests = vec![asked(&[50_000; 40])];
        let lossless = simulated(&scenario(&[50.0], 1, 0.0), &requests, 1, Duration::ZERO);
        let lossy = simulated(&scenario(&[50.0], 1, 0.02), &requests, 1, Duration::ZERO);
        assert!(lossy.makespan > lossless.makespan.mul_f64(1.1), "{:?} {:?}", lossy.makespan, lossless.makespan);
        assert_eq!(lossy.sites[0].0, lossless.sites[0].0);
    }
}
