//! The input and the result of a simulated batch. Pure.

use std::time::Duration;

use landfall_scheduler::model::Strategy;

use super::fleet::CrawlHistory;
use super::growth::{BodyArrival, Growth};
use super::survey::Survey;
use crate::evidence::float;
use crate::world::scenario::Scenario;
use crate::world::web::SiteRequest;

/// The input of a simulation.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    pub scenario: &'a Scenario,
    /// The distances that the scheduler knows.
    pub survey: &'a Survey,
    /// The requests of each site's crawl.
    pub requests: &'a [Vec<SiteRequest>],
    pub strategy: Strategy,
    /// Number of sites that an agent crawls at the same time.
    pub slots: u32,
    /// Minimum time between two requests to a site.
    pub interval: Duration,
    /// The history of an earlier crawl of the same sites, if there was one.
    pub before: Option<&'a CrawlHistory>,
    /// The task number of the first site. Random choices depend on the task numbers.
    pub first_task: u64,
    /// The seed from which packet losses and jitter are drawn.
    pub seed: u64,
    /// If set, sites have no end: their pages repeat, and the run ends after this time.
    pub window: Option<Duration>,
    /// Whether every request opens a connection. If not, a crawl keeps one.
    pub reconnects: bool,
}

impl Batch<'_> {
    /// The request with this number of a site's crawl. The first is for robots.txt.
    pub(super) fn request(&self, site: usize, number: usize) -> SiteRequest {
        let requests = &self.requests[site];
        let pages = requests.len().saturating_sub(1).max(1);
        requests[if number < requests.len() { number } else { 1 + (number - 1) % pages }]
    }

    /// Whether this is the number of the last request of a site's crawl.
    pub(super) fn ends(&self, site: usize, number: usize) -> bool {
        self.window.is_none() && number + 1 == self.requests[site].len()
    }
}

/// What the bodies that an agent fetched demand of the network.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Carried {
    pub bytes: f64,
    /// The sum over bodies of bytes times the round trip in milliseconds.
    pub byte_ms: f64,
    /// Bytes of sites on another carrier than the agent's.
    pub between_carriers: f64,
}

/// The result of a simulated batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchResult {
    /// When bodies arrived.
    pub arrived: Vec<BodyArrival>,
    /// Time from the first lease to the last outcome.
    pub makespan: Duration,
    pub requests: usize,
    /// For each site, its bytes, and its crawl time at all agents together.
    pub sites: Vec<(usize, Duration)>,
    /// Number of crawls that were preempted.
    pub preempted: usize,
    /// Number of sites that each agent crawled, in descending order.
    pub per_agent: Vec<usize>,
    /// Total crawl time of each agent, for all its crawls.
    pub busy: Vec<Duration>,
    pub history: CrawlHistory,
    /// The load that each agent's bodies put on the network.
    pub carried: Vec<Carried>,
}

impl BatchResult {
    pub fn growth(&self, share: f64) -> Growth {
        Growth::of(self.arrived.clone(), share)
    }
}

/// The coefficient of variation of the agents' busy times.
pub fn variation(busy: &[Duration]) -> f64 {
    let agents = float(busy.len().max(1));
    let mean = busy.iter().sum::<Duration>().as_secs_f64() / agents;
    let squares: f64 = busy.iter().map(|busy| (busy.as_secs_f64() - mean).powi(2)).sum();
    if mean > 0.0 { (squares / agents).sqrt() / mean } else { 0.0 }
}
