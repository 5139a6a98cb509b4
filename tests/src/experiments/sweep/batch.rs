//! The input and the result of a simulated batch, and its throughput over time, computed from the
//! arrival times of bodies. This module does no I/O.

use std::time::Duration;

use landfall_scheduler::model::Strategy;
use serde::{Deserialize, Serialize};

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

/// Number of points of a stored curve.
const POINTS: usize = 60;

/// The arrival of a complete body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BodyArrival {
    /// Seconds since the first lease.
    pub at_s: f64,
    pub bytes: usize,
}

/// The throughput of a batch over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// Megabytes (10^6 bytes) per minute until the fraction `growth_share` of all bytes has
    /// arrived.
    pub mb_per_min: f64,
    /// Points of the curve: seconds since the first lease, and megabytes arrived by then.
    pub curve: Vec<(f64, f64)>,
}

impl Growth {
    /// Computes the growth until the fraction `share` of all bytes has arrived. The growth is zero
    /// if there are no bodies.
    pub fn of(mut arrived: Vec<BodyArrival>, share: f64) -> Self {
        arrived.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        let all: f64 = arrived.iter().map(|body| float(body.bytes)).sum();
        let last_s = arrived.last().map_or(0.0, |body| body.at_s);
        let (mut growth, mut curve) = (Self { mb_per_min: 0.0, curve: Vec::new() }, Vec::with_capacity(POINTS));
        let mut so_far = 0.0;
        let mut reached = false;
        let mut next = 1;
        for body in &arrived {
            // A point of the curve includes the bodies that arrived up to the point's time.
            while next <= POINTS && body.at_s > point_s(next, last_s) {
                curve.push((point_s(next, last_s), so_far / 1e6));
                next += 1;
            }
            so_far += float(body.bytes);
            if !reached && so_far >= share * all && body.at_s > 0.0 {
                growth.mb_per_min = so_far / 1e6 / (body.at_s / 60.0);
                reached = true;
            }
        }
        if !arrived.is_empty() {
            curve.push((last_s, so_far / 1e6));
        }
        growth.curve = curve;
        growth
    }
}

fn point_s(point: usize, last_s: f64) -> f64 {
    last_s * float(point) / float(POINTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(at: &[(f64, usize)]) -> Vec<BodyArrival> {
        at.iter().map(|&(at_s, bytes)| BodyArrival { at_s, bytes }).collect()
    }

    #[test]
    fn growth_ignores_the_tail_after_the_share() {
        let mut arrived = bodies(&[(60.0, 1_000_000); 1]);
        arrived.extend(bodies(&[(6.0, 4_000_000), (12.0, 5_000_000)]));
        let growth = Growth::of(arrived.clone(), 0.9);
        assert!((growth.mb_per_min - 9.0 / 0.2).abs() < 1e-9, "{growth:?}");
        arrived[0].at_s = 6000.0;
        assert!((Growth::of(arrived, 0.9).mb_per_min - 45.0).abs() < 1e-9);
        assert_eq!(Growth::of(Vec::new(), 0.9), Growth { mb_per_min: 0.0, curve: Vec::new() });
    }

    #[test]
    fn a_curve_ends_with_all_bytes_at_the_last_body() {
        let growth = Growth::of(bodies(&[(1.0, 500_000), (2.0, 500_000), (4.0, 1_000_000)]), 1.0);
        assert_eq!(growth.curve.len(), POINTS);
        assert_eq!(growth.curve[POINTS - 1], (4.0, 2.0));
        assert_eq!(growth.curve[15], (4.0 * 16.0 / 60.0, 0.5));
        assert!(growth.curve.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
        assert!((growth.mb_per_min - 30.0).abs() < 1e-9);
    }
}
