//! The input and the result of a simulated batch. This module does no I/O.

use std::time::Duration;

use landfall_scheduler::model::Strategy;

use super::growth::{BodyArrival, Growth};
use super::simulated_scheduler::CrawlHistory;
use super::survey::Survey;
use crate::evidence::figures::float;
use crate::world::scenario::Scenario;
use crate::world::site_pages::SiteRequest;

#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    pub scenario: &'a Scenario,
    /// The round trips that the scheduler has measured or predicted.
    pub survey: &'a Survey,
    /// The requests of the crawl of each site.
    pub requests: &'a [Vec<SiteRequest>],
    pub strategy: Strategy,
    /// Number of slots of each agent.
    pub slots: u32,
    /// Minimum time between two requests to a site.
    pub interval: Duration,
    /// The history of an earlier crawl of the same sites; `None` if there was no earlier crawl.
    pub before: Option<&'a CrawlHistory>,
    /// The task number of the first site. Random choices depend on the task numbers.
    pub first_task: u64,
    /// The seed of packet losses and jitter.
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct BatchResult {
    pub arrived: Vec<BodyArrival>,
    /// Time from the first lease to the last outcome.
    pub makespan: Duration,
    pub requests: usize,
    /// The bytes of each site, and its total crawl time over all agents.
    pub sites: Vec<(usize, Duration)>,
    pub preempted: usize,
    /// Number of sites per agent, in descending order.
    pub per_agent: Vec<usize>,
    /// Total crawl time of each agent.
    pub busy: Vec<Duration>,
    pub history: CrawlHistory,
}

impl BatchResult {
    pub fn growth(&self, share: f64) -> Growth {
        Growth::of(self.arrived.clone(), share)
    }
}

/// The coefficient of variation of the busy times of agents.
pub fn variation(busy: &[Duration]) -> f64 {
    let agents = float(busy.len().max(1));
    let mean = busy.iter().sum::<Duration>().as_secs_f64() / agents;
    let squares: f64 = busy.iter().map(|busy| (busy.as_secs_f64() - mean).powi(2)).sum();
    if mean > 0.0 { (squares / agents).sqrt() / mean } else { 0.0 }
}
