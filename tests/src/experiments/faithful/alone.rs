//! The paper's Figure 3: one site is crawled alone. This module does no I/O.
//!
//! The paper drew one site, and one agent for the site by each strategy. Here every agent crawls
//! every site once, so that all draws of `random` and of Top-3 are compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use landfall_scheduler::model::Strategy;
use landfall_scheduler::strategy::{Site, choose};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use serde::Serialize;

use super::batch;
use super::network::{Network, requests};
use super::settings::{Contender, Point, Settings};
use crate::evidence::float;
use crate::experiments::sweep::batch::Batch;
use crate::experiments::sweep::crawls;
use crate::experiments::sweep::measured::agent_index;

/// The paper's ratio of Top-3's rate to random's rate for one site. The rates are 2.38 and 0.45 MB
/// per minute.
const PAPER: f64 = 2.38 / 0.45;
const QUANTILES: [(&str, f64); 7] =
    [("p1", 0.01), ("p5", 0.05), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p95", 0.95), ("p99", 0.99)];

/// For each site of a network, the rates of its crawls in megabytes per minute: by each agent, and
/// by each candidate of Top-3.
#[derive(Debug, Clone, Default)]
pub(super) struct SiteRates {
    pub(super) sites: Vec<(Vec<f64>, Vec<f64>)>,
}

/// Quantiles of the rates of the single sites of a layout.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SingleSites {
    layout: String,
    point: Point,
    sites: usize,
    random: BTreeMap<&'static str, f64>,
    top3: BTreeMap<&'static str, f64>,
    /// Quantiles of the ratio of the crawl's rate with Top-3 to its rate with random, over all pairs
    /// of an agent that Top-3 can draw and an agent that random can draw.
    ratio: BTreeMap<&'static str, f64>,
    /// The fraction of draws whose ratio is below the ratio in the paper.
    below_the_papers: f64,
    largest: f64,
}

/// Simulates a crawl of every site by every agent.
pub(super) fn rates(settings: &Settings, network: &Network, point: Point, seed: u64) -> SiteRates {
    let scenario = network.at(point);
    let requests = requests(&scenario, Duration::from_millis(point.server_ms));
    let batch = batch(settings, network, point, Contender::Published(Strategy::GNP_TOP3), seed);
    let batch = Batch { scenario: &scenario, requests: &requests, ..batch };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut rate = |agent: usize, site: usize| {
        let bytes: usize = requests[site].iter().map(|asked| asked.bytes).sum();
        float(bytes) / 1e6 / (crawls::alone(&batch, agent, site, &mut rng).as_secs_f64() / 60.0)
    };
    let site = |site: usize| {
        let all: Vec<f64> = (0..scenario.agents.len()).map(|agent| rate(agent, site)).collect();
        with_nearest(network, site, seed, all)
    };
    SiteRates { sites: (0..scenario.sites.len()).map(site).collect() }
}

/// Returns the rates `all` of a site's crawls by all agents, and the rates of the crawls by the
/// candidates of Top-3.
pub(super) fn with_nearest(network: &Network, site: usize, seed: u64, all: Vec<f64>) -> (Vec<f64>, Vec<f64>) {
    let choice = choose(Strategy::GNP_TOP3, &Site::default(), network.published.candidates(site), seed);
    let nearest = choice.iter().flat_map(|choice| &choice.candidates);
    let nearest = nearest.filter_map(|one| all.get(agent_index(one.agent)?).copied()).collect();
    (all, nearest)
}

/// Combines the rates of all networks with the same layout and point.
pub(super) fn summary(networks: Vec<(String, Point, SiteRates)>) -> Vec<SingleSites> {
    let mut layouts: Vec<(String, Point, SiteRates)> = Vec::new();
    for (layout, point, rates) in networks {
        match layouts.iter_mut().find(|known| (&known.0, known.1) == (&layout, point)) {
            Some(known) => known.2.sites.extend(rates.sites),
            None => layouts.push((layout, point, rates)),
        }
    }
    let one = |(layout, point, rates): (String, Point, SiteRates)| {
        let (mut random, mut top3, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
        for (all, nearest) in &rates.sites {
            random.extend(all);
            top3.extend(nearest);
            ratio.extend(nearest.iter().flat_map(|near| all.iter().map(move |any| near / any)));
        }
        let below = ratio.iter().filter(|ratio| **ratio < PAPER).count();
        SingleSites {
            layout,
            point,
            sites: rates.sites.len(),
            below_the_papers: float(below) / float(ratio.len().max(1)),
            largest: ratio.iter().copied().fold(0.0, f64::max),
            random: quantiles(random),
            top3: quantiles(top3),
            ratio: quantiles(ratio),
        }
    };
    layouts.into_iter().map(one).collect()
}

pub(super) fn quantiles(mut values: Vec<f64>) -> BTreeMap<&'static str, f64> {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let rank = (Duration::from_secs(1).mul_f64(share * float(values.len()))).as_secs();
        values.get(usize::try_from(rank).ok()?.min(values.len().checked_sub(1)?)).copied()
    };
    QUANTILES.iter().filter_map(|(name, share)| Some((*name, at(*share)?))).collect()
}

pub(super) fn text(layouts: &[SingleSites]) -> String {
    let mut text = String::from("\nFigure 3: one site alone, MB a minute (the paper's site: 0.45 and 2.38)\n");
    // Writing to a string never fails.
    for one in layouts {
        let Point { access_mbit, page_kb, server_ms, connection } = one.point;
        let _ = writeln!(
            text,
            "{}: {access_mbit} Mbit/s, {page_kb} KB, server {server_ms} ms, connection {connection}, {} sites",
            one.layout, one.sites
        );
        for (name, quantiles) in [("random", &one.random), ("gnp-top3", &one.top3), ("ratio", &one.ratio)] {
            let all = QUANTILES.iter().filter_map(|(name, _)| Some(format!("{name} {:.2}", quantiles.get(name)?)));
            let _ = writeln!(text, "  {name:<10} {}", all.collect::<Vec<_>>().join("  "));
        }
        let _ = writeln!(
            text,
            "  the paper's ratio, {PAPER:.2}, is above {:.2} % of the draws; the largest is {:.2}",
            100.0 * one.below_the_papers,
            one.largest
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_compare_every_draw_of_both_strategies() {
        let rates = SiteRates { sites: vec![(vec![1.0, 2.0, 6.0], vec![6.0])] };
        let [one] =
            summary(vec![("spread".to_owned(), Settings::committed().unwrap().centre, rates)]).try_into().unwrap();
        assert_eq!((one.sites, one.largest), (1, 6.0));
        assert_eq!((one.ratio["p1"], one.ratio["p50"], one.ratio["p99"]), (1.0, 3.0, 6.0));
        assert!((one.below_the_papers - 2.0 / 3.0).abs() < 1e-12);
        assert!(text(&[one]).contains("is above 66.67 % of the draws; the largest is 6.00"));
    }
}
