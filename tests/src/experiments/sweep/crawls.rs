//! A batch as a discrete-event simulation in virtual time: crawls that ask in the agent's order, and answers that arrive as
//! [`crate::world::wan`] lets them. Pure, and deterministic under its seed.
//!
//! One event a request: the moment its first byte leaves. All rounds of the body take the agent's access link then, as in the lab,
//! and the next request follows the last round, or the interval. What the real machine adds between (a lease, an outcome, the work
//! of both ends) are the constants below, measured in the lab; they are the same for every strategy.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use landfall_scheduler::model::{Rtt, Strategy};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::fleet::{CrawlHistory, CrawlStats, Fleet};
use super::growth::{BodyArrival, Growth};
use super::survey::Survey;
use crate::world::reno;
use crate::world::scenario::Scenario;
use crate::world::web::SiteRequest;

/// From a grant to the first request: the stream to the agent, its file, and the permit for the address.
const LEASE: Duration = Duration::from_millis(15);
/// From the last answer to the moment the scheduler has the outcome: written to the disk, sent, stored.
const OUTCOME: Duration = Duration::from_millis(4);
/// What both ends add to a request: parsing, writing down, and the lab's own lateness.
const REQUEST: Duration = Duration::from_micros(600);
/// As in the agent: the weight of the newest time to first byte in their mean, and the mean from which on requests are twice that apart.
const NEWEST: f64 = 0.2;
const SLOW: Duration = Duration::from_secs(1);
/// As in the scheduler: how often waiting tasks are rebalanced.
const BALANCE_EVERY: Duration = Duration::from_millis(500);
/// As in the agent: how often a crawl leaves a checkpoint, which tells its scheduler how far it is.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    pub scenario: &'a Scenario,
    /// What the scheduler knows of it.
    pub survey: &'a Survey,
    /// What a crawl of each site asks for.
    pub requests: &'a [Vec<SiteRequest>],
    pub strategy: Strategy,
    /// Sites an agent crawls at once.
    pub slots: u32,
    /// From one request to a site to the next, at least.
    pub interval: Duration,
    /// What a crawl of the same sites taught before.
    pub before: Option<&'a CrawlHistory>,
    /// The first site's task: the scheduler draws among agents with the tasks' numbers.
    pub first_task: u64,
    /// Draws losses and jitter.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchResult {
    /// The bodies, in seconds from the first lease.
    pub arrived: Vec<BodyArrival>,
    /// From the first lease to the last outcome.
    pub makespan: Duration,
    pub requests: usize,
    /// For each site, bytes and how long its crawl took, at all agents that had it.
    pub sites: Vec<(usize, Duration)>,
    /// Crawls that were taken back from an agent and went on at another.
    pub recalled: usize,
    /// Sites that each agent crawled, the most first.
    pub per_agent: Vec<usize>,
    /// How long each agent's crawls took, added up.
    pub busy: Vec<Duration>,
    pub history: CrawlHistory,
}

impl BatchResult {
    /// How it grew.
    pub fn growth(&self, share: f64) -> Growth {
        Growth::of(self.arrived.clone(), share)
    }
}

/// How unevenly agents were busy: the standard deviation of their times over the mean.
pub fn variation(busy: &[Duration]) -> f64 {
    let agents = crate::evidence::figures::float(busy.len().max(1));
    let mean = busy.iter().sum::<Duration>().as_secs_f64() / agents;
    let squares: f64 = busy.iter().map(|busy| (busy.as_secs_f64() - mean).powi(2)).sum();
    if mean > 0.0 { (squares / agents).sqrt() / mean } else { 0.0 }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The first byte of an answer leaves.
    FirstByte { site: usize },
    /// The scheduler has a crawl's outcome.
    Outcome { site: usize },
    /// The scheduler has back what it asked for.
    HandedBack { site: usize },
    /// Waiting sites are rebalanced.
    Balance,
}

/// A crawl under way.
#[derive(Debug, Clone, Copy, Default)]
struct Crawl {
    agent: usize,
    /// Which request is under way.
    request: usize,
    /// When the first one was sent, and this one.
    began: Duration,
    sent: Duration,
    took: Duration,
    /// How long it took at agents that had it before.
    before: Duration,
    /// Whether it is asked for.
    recalled: bool,
    /// Pages it had fetched, and how long it had taken for them, at its last checkpoint.
    checkpoint: Option<(u32, Duration)>,
    /// The mean time to first byte, in seconds.
    mean_first_byte: f64,
}

impl Crawl {
    /// How long the first byte of an answer takes; counts in their mean.
    fn first_byte(
        &mut self,
        scenario: &Scenario,
        (agent, site): (usize, usize),
        request: usize,
        thinking: Duration,
        rng: &mut ChaCha8Rng,
    ) -> Duration {
        // Loopback connects in no time: the first request of a connection is charged for it.
        let trips = if request == 0 { 2 } else { 1 };
        let late = Duration::from_secs_f64(scenario.jitter_ms * rng.random_range(0.0..1.0) / 1e3);
        let first_byte = scenario.paths[agent][site].rtt() * trips + late + thinking;
        self.mean_first_byte += NEWEST * (first_byte.as_secs_f64() - self.mean_first_byte);
        first_byte
    }

    /// The pause between requests to a site that has trouble to answer.
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
    /// What comes, the soonest first; at one moment in the order in which it was planned.
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    planned: u64,
    crawls: Vec<Crawl>,
    /// Until when each agent's access link is taken.
    links: Vec<Duration>,
    arrived: Vec<BodyArrival>,
    sent: usize,
    open: usize,
    recalled: usize,
    /// How long each agent's crawls took, added up.
    busy: Vec<Duration>,
}

/// Simulates a batch.
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
        recalled: 0,
        busy: vec![Duration::ZERO; agents],
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
    let bytes = |site: &Vec<SiteRequest>| site.iter().map(|asked| asked.bytes).sum();
    let took = run.crawls.iter().map(|crawl| crawl.before + crawl.took);
    let sites = batch.requests.iter().map(bytes).zip(took).collect();
    let Run { fleet, arrived, sent: requests, recalled, busy, .. } = run;
    Ok(BatchResult { arrived, makespan, requests, sites, recalled, per_agent, busy, history: fleet.into_history() })
}

/// How long a slot of an agent is taken by a site's crawl that has the agent's access link to itself.
pub fn alone(batch: &Batch<'_>, agent: usize, site: usize, rng: &mut ChaCha8Rng) -> Duration {
    let (mut now, mut link, mut crawl) = (LEASE, Duration::ZERO, Crawl::default());
    let mut rested = now;
    for (index, asked) in batch.requests[site].iter().enumerate() {
        let sent = rested;
        let first_byte = crawl.first_byte(batch.scenario, (agent, site), index, asked.thinking, rng);
        now = pass(batch.scenario, (agent, site), asked.bytes, sent + first_byte, (&mut link, rng)) + REQUEST;
        let last = index + 1 == batch.requests[site].len();
        let interval = if last { batch.interval } else { batch.interval.max(crawl.trouble()) };
        rested = now.max(sent + interval);
    }
    rested + OUTCOME
}

/// When the last byte of a body has passed the agent's access link. Bytes that find it free pass at once.
fn pass(
    scenario: &Scenario,
    (agent, site): (usize, usize),
    bytes: usize,
    first_byte: Duration,
    (free, rng): (&mut Duration, &mut ChaCha8Rng),
) -> Duration {
    let link = scenario.paths[agent][site];
    let bytes_per_s = scenario.bytes_per_s(agent);
    let path = reno::Path { rtt: link.rtt(), loss: link.loss, bytes_per_s };
    let (mut round, mut last) = (first_byte, first_byte);
    for bytes in reno::rounds(bytes, path, rng) {
        let on_wire = Duration::from_secs_f64(crate::evidence::figures::float(bytes) / bytes_per_s);
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

    /// Fills an agent's slots.
    fn grant(&mut self, agent: usize, now: Duration) {
        for site in self.fleet.grant(agent, now) {
            let began = now + LEASE;
            let former = self.crawls[site];
            self.crawls[site] = Crawl { agent, began, ..Crawl::default() };
            if former.recalled {
                self.resume(site, &former);
            } else {
                self.ask(site, began);
            }
        }
    }

    /// Goes on with a crawl that another agent has begun: it reads robots.txt, over a connection of its own, and then asks for what is next.
    fn resume(&mut self, site: usize, former: &Crawl) {
        let crawl = &mut self.crawls[site];
        crawl.request = former.request + 1;
        crawl.before = former.before + former.took;
        self.sent += 1;
        let (agent, began) = (crawl.agent, crawl.began);
        let robots = crawl.first_byte(self.batch.scenario, (agent, site), 0, Duration::ZERO, &mut self.rng);
        self.ask(site, began + (robots + REQUEST).max(self.batch.interval));
    }

    /// Sends the request that is next.
    fn ask(&mut self, site: usize, now: Duration) {
        let Crawl { agent, request, .. } = self.crawls[site];
        self.crawls[site].sent = now;
        self.sent += 1;
        let thinking = self.batch.requests[site][request].thinking;
        let crawl = &mut self.crawls[site];
        let first_byte = crawl.first_byte(self.batch.scenario, (agent, site), request, thinking, &mut self.rng);
        self.plan(now + first_byte, Event::FirstByte { site });
    }

    /// Receives a body, and plans what follows it.
    fn first_byte(&mut self, site: usize, now: Duration) {
        let Crawl { agent, request, began, sent, .. } = self.crawls[site];
        let asked = self.batch.requests[site][request];
        let link = (&mut self.links[agent], &mut self.rng);
        let arrived = pass(self.batch.scenario, (agent, site), asked.bytes, now, link);
        self.arrived.push(BodyArrival { at_s: arrived.as_secs_f64(), bytes: asked.bytes });
        let (next, interval) = (arrived + REQUEST, self.batch.interval);
        let crawl = &mut self.crawls[site];
        crawl.took = next.saturating_sub(began);
        if request + 1 == self.batch.requests[site].len() {
            // It rests where a request of its own might come.
            self.plan(next.max(sent + interval) + OUTCOME, Event::Outcome { site });
            return;
        }
        let due = crawl.checkpoint.map_or(Duration::ZERO, |(_, took)| took) + CHECKPOINT_EVERY;
        if crawl.took >= due {
            crawl.checkpoint = Some((u32::try_from(request + 1).unwrap_or(u32::MAX), crawl.took));
        }
        let sends = next.max(sent + interval.max(crawl.trouble()));
        if crawl.recalled {
            self.plan(sends + OUTCOME, Event::HandedBack { site });
            return;
        }
        // A request is planned when it is sent: nothing that happens until then changes it.
        crawl.request += 1;
        self.ask(site, sends);
    }

    /// What is left of a site is planned as any other.
    fn handed_back(&mut self, site: usize, now: Duration) {
        let Crawl { agent, request, took, .. } = self.crawls[site];
        self.recalled += 1;
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

    /// What is planned together is planned anew when a crawl has ended.
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
            self.crawls[site].recalled = true;
        }
        if self.open > 0 && (self.fleet.waits() || self.batch.strategy == Strategy::EarliestFinish) {
            self.plan(now + BALANCE_EVERY, Event::Balance);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use landfall_scheduler::strategy::Candidate;

    use super::super::survey::agent_id;
    use super::*;
    use crate::world::scenario::{AgentNode, Link, SiteNode, WebRules};

    /// Agents on links of 2 MB/s; the round trip from agent to site is `rtt_ms[agent]`.
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
            shapes: Vec::new(),
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

    /// With a slot an agent, and no interval.
    pub(in super::super) fn batch<'a>(
        scenario: &'a Scenario,
        survey: &'a Survey,
        requests: &'a [Vec<SiteRequest>],
    ) -> Batch<'a> {
        let (strategy, interval) = (Strategy::EarliestFinish, Duration::ZERO);
        Batch { scenario, survey, requests, strategy, slots: 1, interval, before: None, first_task: 1, seed: 1 }
    }

    fn simulated(scenario: &Scenario, requests: &[Vec<SiteRequest>], slots: u32, interval: Duration) -> BatchResult {
        let survey = survey(scenario);
        run(Batch { strategy: Strategy::GnpTop1, slots, interval, ..batch(scenario, &survey, requests) }).unwrap()
    }

    pub(in super::super) fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn one_crawl_takes_its_round_trips_by_hand() {
        let scenario = scenario(&[100.0], 1, 0.0);
        // robots.txt: two round trips. 14,600 bytes: one. 50,000: 14,600, 29,200 and the rest, three.
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
    fn a_crawl_that_is_slower_than_foreseen_is_taken_back_and_goes_on_at_another_agent() {
        let truth = scenario(&[900.0, 10.0], 1, 0.0);
        // The far agent is thought to be the nearer one.
        let foreseen = survey(&scenario(&[100.0, 150.0], 1, 0.0));
        let requests = [asked(&[1000; 300])];
        let result = run(batch(&truth, &foreseen, &requests)).unwrap();
        // The first checkpoint, after a minute, tells its pace; the rest takes three seconds, and the opening is asked for again.
        assert_eq!((result.recalled, result.requests, result.arrived.len()), (1, 301, 300));
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
    fn an_interval_holds_requests_and_the_slot_after_the_last_one() {
        let scenario = scenario(&[100.0], 2, 0.0);
        let requests = vec![asked(&[14, 1000, 1000]), asked(&[14])];
        let result = simulated(&scenario, &requests, 1, ms(1000));
        // Requests at 0, 1 and 2 s; it rests until 3 s, and then the other begins.
        let second = LEASE + ms(3000) + OUTCOME + LEASE;
        assert_eq!(result.makespan, second + ms(1000) + OUTCOME);
        assert_eq!(result.sites[0].1, ms(2100) + REQUEST, "the rest is no part of the crawl");
    }

    #[test]
    fn a_site_that_answers_slowly_is_asked_half_as_often() {
        let scenario = scenario(&[2000.0], 1, 0.0);
        let result = simulated(&scenario, &[asked(&[14, 1000, 1000])], 1, Duration::ZERO);
        // First bytes after 4 and 2 s: their mean, from 0, is 0.8 and then 1.04 s; so that the third request is 2.08 s after the second.
        let took = ms(4000) + REQUEST + ms(2080) + ms(2000) + REQUEST;
        assert_eq!(result.sites[0].1, took);
    }

    #[test]
    fn crawls_of_one_agent_share_its_access_link() {
        let scenario = scenario(&[10.0], 2, 0.0);
        let requests = vec![asked(&[10_000]), asked(&[10_000])];
        let together = simulated(&scenario, &requests, 2, Duration::ZERO);
        // 10,000 bytes are 5 ms of the link: the second body begins when the first has passed.
        let at: Vec<f64> = together.arrived.iter().map(|body| body.at_s).collect();
        assert!((at[1] - at[0] - 0.005).abs() < 1e-9, "{at:?}");
        let alone = simulated(&scenario, &requests, 1, Duration::ZERO);
        assert_eq!(alone.makespan, 2 * (LEASE + ms(20) + REQUEST + OUTCOME));
    }

    #[test]
    fn what_waits_at_a_busy_agent_is_crawled_by_an_idle_candidate() {
        let scenario = scenario(&[10.0, 10.0, 10.0], 9, 0.0);
        let long = asked(&[1000; 400]);
        let mut requests = vec![asked(&[1000]); 8];
        requests.insert(0, long);
        let survey = survey(&scenario);
        let batch =
            Batch { strategy: Strategy::GnpTop3, first_task: 3, seed: 3, ..batch(&scenario, &survey, &requests) };
        let result = run(batch).unwrap();
        // The long one alone takes 400 requests; had two others waited for it, they would end after it.
        let longest = LEASE + ms(10 * 401) + 400 * REQUEST + OUTCOME;
        assert_eq!(result.makespan, longest);
        assert_eq!(result, run(batch).unwrap(), "the same seed, the same run");
    }

    #[test]
    fn loss_costs_time_and_no_byte() {
        let requests = vec![asked(&[50_000; 40])];
        let lossless = simulated(&scenario(&[50.0], 1, 0.0), &requests, 1, Duration::ZERO);
        let lossy = simulated(&scenario(&[50.0], 1, 0.02), &requests, 1, Duration::ZERO);
        assert!(lossy.makespan > lossless.makespan.mul_f64(1.1), "{:?} {:?}", lossy.makespan, lossless.makespan);
        assert_eq!(lossy.sites[0].0, lossless.sites[0].0);
    }
}
