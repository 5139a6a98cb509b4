//! Computes the figures of a simulation from the results of its seeds ([`SeedResult`]), the
//! distributions of round trips and errors for plots, and the dump of all pairs of a site and an
//! agent.
//!
//! The fields of [`Estimate`], and the mean round trips of `random` and `gnp-topK`, can be
//! recomputed from the rows of [`super::dump`]. The figures of other strategies cannot be
//! recomputed, because the dump has no choices, confirmers or crawls.
//!
//! In the dump, `site` and `agent` are row numbers in the matrix, from 0. A pair without a known
//! round trip has no row. For a landmark, `predicted_ms` is its measurement; for other agents, it
//! is the map's prediction. `predicted_ms` is empty if there is no prediction. `rank` is the
//! agent's rank by distance: 1 for the nearest agent, and empty if the agent's distance is unknown.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;

use crate::gnp::Tier;
use crate::model::Strategy;
use crate::model::stats::{count, mean, quantile};

use super::settings_and_draw::lacks;
use super::{JudgedAgent, JudgedSite, SeedResult, Settings};

/// The results of a simulation. A figure without data is serialised as null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Number of nodes in the matrix.
    pub nodes: usize,
    /// Number of agents in each seed.
    pub agents: usize,
    /// Number of landmarks in each seed.
    pub landmarks: usize,
    /// Number of dimensions of the plain map.
    pub dims: usize,
    pub seeds: u64,
    pub estimate: Estimate,
    /// The mean over sites of the true round trip to the nearest agent, in milliseconds.
    pub oracle_rtt_ms: Option<f64>,
    /// The mean over sites of a site's mean true round trip to all agents, in milliseconds.
    pub random_rtt_ms: Option<f64>,
    /// The results of the compared strategies, in the order of the settings.
    pub strategies: Vec<ContenderScore>,
    pub first_seed: u64,
    pub tier: &'static str,
    /// The ingredients left out of the map.
    pub without: Vec<&'static str>,
    pub election: &'static str,
    /// Number of simulated sites, in all seeds together, with or without a known round trip to an
    /// agent.
    pub sites: usize,
    /// Number of sites with a known round trip to an agent, but without a place on the map.
    pub sites_without_estimate: usize,
    /// Number of sites with a known round trip to an agent, but without a landmark's measurement.
    pub sites_unmeasured: usize,
    /// Number of sites that have no known round trip to any agent, and are left out of all figures.
    pub sites_unknown: usize,
    /// Number of pairs of a site and a non-landmark agent from which relative errors are computed.
    pub pairs: usize,
    /// Number of pairs of a site and a non-landmark agent with a known round trip but without a
    /// prediction.
    pub pairs_without_estimate: usize,
    /// Number of seeds for which no map could be fitted.
    pub seeds_without_map: usize,
    pub left_out: Vec<LeftOut>,
}

/// A strategy that was not judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub name: Strategy,
    /// The input that the strategy needs but that no node has; `None` if the strategy was not
    /// requested.
    pub lacks: Option<&'static str>,
}

/// The quality of the predicted distances.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The median of the relative errors |predicted - measured| / measured, over pairs of a site
    /// and a non-landmark agent, pooled over all seeds.
    pub re50: Option<f64>,
    /// The 90th percentile of the relative errors.
    pub re90: Option<f64>,
    /// One minus the mean of the smallest 70 % of the relative errors.
    pub acc70: Option<f64>,
    /// One minus the mean of the smallest 80 % of the relative errors.
    pub acc80: Option<f64>,
    /// The share of sites whose agent of rank 1 is as near as the truly nearest agent.
    pub top1_hit: Option<f64>,
    /// The share of sites for which an agent of rank 1, 2 or 3 is as near as the truly nearest
    /// agent.
    pub top3_hit: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ContenderScore {
    pub name: String,
    /// The mean over sites of the true round trip to the chosen agent, in milliseconds. If agents
    /// are drawn with equal probability, the mean over all agents that could be drawn is used.
    pub mean_rtt_ms: Option<f64>,
    /// `mean_rtt_ms` divided by [`Report::oracle_rtt_ms`].
    pub stretch: Option<f64>,
    /// The mean number of measurements per site, by landmarks and confirmers.
    pub probes_per_site: Option<f64>,
    /// For each crawl, the true round trip to the chosen agent minus the true round trip to the
    /// nearest agent, in milliseconds: the mean over sites, then the median over seeds. Empty if
    /// sites are crawled only once or the strategy does not learn.
    pub excess_ms: Vec<f64>,
    /// The coefficient of variation of the number of sites per agent (standard deviation divided by
    /// mean), averaged over seeds.
    pub load_cv: Option<f64>,
    /// Number of sites, in all seeds together, for which the strategy used its fallback, because it
    /// lacked its input.
    pub fallbacks: usize,
}

impl Report {
    pub fn last_seed(&self) -> u64 {
        self.first_seed.saturating_add(self.seeds.saturating_sub(1))
    }

    /// Describes the map in words. The number of dimensions is left out for the refined map,
    /// because `dims` does not apply to it.
    pub fn map(&self) -> String {
        match self.without.as_slice() {
            [] if self.tier != Tier::Refined.name() => format!("{}, {} dimensions", self.tier, self.dims),
            [] => self.tier.to_owned(),
            without => format!("{} without {}", self.tier, without.join(", ")),
        }
    }

    pub fn of(nodes: usize, settings: &Settings, judged: &[SeedResult]) -> Self {
        let sites: Vec<&JudgedSite> =
            judged.iter().flat_map(|seed| &seed.sites).filter(|site| !site.agents.is_empty()).collect();
        let drawn: usize = judged.iter().map(|seed| seed.sites.len()).sum();
        let pairs = || sites.iter().flat_map(|site| &site.agents).filter(|agent| !agent.landmark);
        let mut errors: Vec<f64> = pairs().filter_map(relative_error).collect();
        errors.sort_by(f64::total_cmp);
        let oracle = mean_over(&sites, nearest);
        let score = |(index, strategy): (usize, &Strategy)| contender_score(index, *strategy, settings, judged, oracle);
        Self {
            nodes,
            agents: settings.agents,
            landmarks: settings.landmarks,
            dims: settings.dimensions(),
            seeds: settings.seeds,
            estimate: Estimate {
                re50: quantile(&errors, 0.5),
                re90: quantile(&errors, 0.9),
                acc70: accuracy(&errors, 70),
                acc80: accuracy(&errors, 80),
                top1_hit: mean_over(&sites, |site| Some(hit(site, 1))),
                top3_hit: mean_over(&sites, |site| Some(hit(site, 3))),
            },
            oracle_rtt_ms: oracle,
            random_rtt_ms: mean_over(&sites, |site| {
                mean(&site.agents.iter().map(|agent| agent.truth).collect::<Vec<f64>>())
            }),
            strategies: settings.strategies.iter().enumerate().map(score).collect(),
            first_seed: settings.first_seed,
            tier: settings.tier.name(),
            without: settings.without.clone(),
            election: settings.election.name(),
            sites: drawn,
            sites_without_estimate: sites.iter().filter(|site| !site.located).count(),
            sites_unmeasured: sites.iter().filter(|site| site.measurements == 0).count(),
            sites_unknown: drawn - sites.len(),
            pairs: errors.len(),
            pairs_without_estimate: pairs().count() - errors.len(),
            seeds_without_map: judged.iter().filter(|seed| !seed.mapped).count(),
            left_out: Strategy::ALL
                .iter()
                .filter(|strategy| !settings.strategies.contains(strategy))
                .map(|strategy| LeftOut { name: *strategy, lacks: lacks(*strategy, &settings.nodes) })
                .collect(),
        }
    }
}

fn contender_score(
    index: usize,
    strategy: Strategy,
    settings: &Settings,
    judged: &[SeedResult],
    oracle: Option<f64>,
) -> ContenderScore {
    let taken = || judged.iter().flat_map(|seed| &seed.sites).filter_map(|site| site.taken.get(index));
    let mean_rtt_ms = mean(&taken().map(|taken| taken.truth).collect::<Vec<f64>>());
    let loads: Vec<f64> = judged.iter().filter_map(|seed| load_cv(seed, index, settings.agents)).collect();
    ContenderScore {
        name: strategy.to_string(),
        mean_rtt_ms,
        stretch: mean_rtt_ms.zip(oracle).map(|(mean, oracle)| mean / oracle),
        probes_per_site: mean(&taken().map(|taken| count(taken.probes)).collect::<Vec<f64>>()),
        excess_ms: (0..settings.crawls).map_while(|crawl| excess(index, crawl, judged)).collect(),
        load_cv: mean(&loads),
        fallbacks: taken().filter(|taken| taken.fell_back).count(),
    }
}

/// The value of [`ContenderScore::excess_ms`] for one crawl.
fn excess(index: usize, crawl: usize, judged: &[SeedResult]) -> Option<f64> {
    let of_site = |site: &JudgedSite| Some(site.crawls.get(index)?.get(crawl)? - nearest(site)?);
    let of_seed = |seed: &SeedResult| mean(&seed.sites.iter().filter_map(of_site).collect::<Vec<f64>>());
    let mut seeds: Vec<f64> = judged.iter().filter_map(of_seed).collect();
    seeds.sort_by(f64::total_cmp);
    quantile(&seeds, 0.5)
}

/// The relative error |predicted - measured| / measured; `None` without a prediction.
pub(super) fn relative_error(agent: &JudgedAgent) -> Option<f64> {
    agent.predicted.map(|predicted| (predicted - agent.truth).abs() / agent.truth)
}

/// The true round trip to the nearest agent; `None` without agents.
pub(super) fn nearest(site: &JudgedSite) -> Option<f64> {
    site.agents.iter().map(|agent| agent.truth).min_by(f64::total_cmp)
}

/// 1 if an agent of rank `first` or better is as near as the nearest agent, otherwise 0.
fn hit(site: &JudgedSite, first: usize) -> f64 {
    let best = site.agents.iter().filter(|agent| agent.rank.is_some_and(|rank| rank <= first)).map(|agent| agent.truth);
    let hits = best.min_by(f64::total_cmp).zip(nearest(site)).is_some_and(|(best, nearest)| best <= nearest);
    if hits { 1.0 } else { 0.0 }
}

/// The coefficient of variation of the number of sites per agent in one seed, including agents
/// without sites.
fn load_cv(seed: &SeedResult, index: usize, agents: usize) -> Option<f64> {
    let mut got: BTreeMap<usize, usize> = BTreeMap::new();
    for taken in seed.sites.iter().filter_map(|site| site.taken.get(index)) {
        *got.entry(taken.node).or_default() += 1;
    }
    let mean = count(got.values().sum()) / count(agents);
    let squares: f64 = got.values().map(|&sites| (count(sites) - mean).powi(2)).sum();
    let idle = count(agents.saturating_sub(got.len())) * mean.powi(2);
    (mean > 0.0).then(|| ((squares + idle) / count(agents)).sqrt() / mean)
}

/// One minus the mean of the smallest `percent` per cent of a sorted list. The number of values is
/// rounded down, but is at least one.
fn accuracy(sorted: &[f64], percent: usize) -> Option<f64> {
    let kept = (sorted.len().saturating_mul(percent) / 100).max(1);
    mean(sorted.get(..kept)?).map(|mean| 1.0 - mean)
}

fn mean_over(sites: &[&JudgedSite], figure: impl Fn(&JudgedSite) -> Option<f64>) -> Option<f64> {
    mean(&sites.iter().filter_map(|site| figure(site)).collect::<Vec<f64>>())
}

/// Number of steps between the quantiles of a distribution. More steps would not be visible, and
/// would make the page larger.
const STEPS: usize = 200;

/// Distributions over the sites of all seeds. Each distribution is a list of quantiles in steps of
/// 0.5 %, from the smallest to the greatest value; empty if there are no data.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Distributions {
    /// The true round trips to the nearest agents, in milliseconds.
    pub nearest: Vec<f64>,
    /// For each compared strategy, in the order of the settings, the true round trips to the chosen
    /// agents, in milliseconds. If a strategy draws among several agents with equal probability,
    /// each of these agents has an equal share.
    pub taken: Vec<Vec<f64>>,
    /// The relative errors of predictions, over pairs of a site and a non-landmark agent.
    pub errors: Vec<f64>,
}

impl Distributions {
    pub fn of(settings: &Settings, judged: &[SeedResult]) -> Self {
        let sites = || judged.iter().flat_map(|seed| &seed.sites);
        let taken = |index: usize| {
            let each = |site: &JudgedSite| -> Vec<(f64, f64)> {
                let among = site.taken.get(index).map(|taken| taken.among.as_slice()).unwrap_or_default();
                among.iter().map(|truth| (*truth, 1.0 / count(among.len()))).collect()
            };
            quantiles(sites().flat_map(each).collect())
        };
        let pairs = sites().flat_map(|site| &site.agents).filter(|agent| !agent.landmark);
        Self {
            nearest: quantiles(sites().filter_map(nearest).map(|truth| (truth, 1.0)).collect()),
            taken: (0..settings.strategies.len()).map(taken).collect(),
            errors: quantiles(pairs.filter_map(relative_error).map(|error| (error, 1.0)).collect()),
        }
    }
}

/// Computes weighted quantiles from pairs of a value and its weight. Each quantile is one of the
/// values.
fn quantiles(mut weighted: Vec<(f64, f64)>) -> Vec<f64> {
    weighted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let Some((greatest, _)) = weighted.last().copied() else { return Vec::new() };
    let whole: f64 = weighted.iter().map(|(_, weight)| weight).sum();
    let mut values = weighted.into_iter();
    let (mut value, mut so_far) = values.next().unwrap_or((greatest, whole));
    let mut quantiles = Vec::with_capacity(STEPS + 1);
    for step in 0..STEPS {
        let wanted = whole * count(step) / count(STEPS);
        while so_far < wanted {
            let Some((next, weight)) = values.next() else { break };
            (value, so_far) = (next, so_far + weight);
        }
        quantiles.push(value);
    }
    quantiles.push(greatest);
    quantiles
}

const HEADER: [&str; 7] = ["seed", "site", "agent", "is_landmark", "measured_ms", "predicted_ms", "rank"];

pub fn dump(judged: &[SeedResult], out: impl Write) -> Result<(), csv::Error> {
    let mut rows = csv::Writer::from_writer(out);
    rows.write_record(HEADER)?;
    for seed in judged {
        for site in &seed.sites {
            for agent in &site.agents {
                rows.write_record([
                    seed.seed.to_string(),
                    site.node.to_string(),
                    agent.node.to_string(),
                    u8::from(agent.landmark).to_string(),
                    agent.truth.to_string(),
                    agent.predicted.map(|millis| millis.to_string()).unwrap_or_default(),
                    agent.rank.map(|rank| rank.to_string()).unwrap_or_default(),
                ])?;
            }
        }
    }
    rows.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::simulate::ContenderChoice;

    use super::*;

    fn agent(node: usize, landmark: bool, truth: f64, predicted: f64, rank: usize) -> JudgedAgent {
        JudgedAgent { node, landmark, truth, predicted: Some(predicted), rank: Some(rank) }
    }

    fn site(agents: Vec<JudgedAgent>, node: usize, truth: f64) -> JudgedSite {
        let taken = vec![ContenderChoice { node, truth, probes: 4, among: vec![truth], fell_back: false }];
        JudgedSite { node: 9, located: true, measurements: 1, agents, taken, crawls: vec![vec![truth, 12.0]] }
    }

    #[test]
    fn figures_of_a_run_small_enough_to_reckon_by_hand() {
        let first = site(vec![agent(0, true, 10.0, 10.0, 1), agent(1, false, 20.0, 22.0, 2)], 0, 10.0);
        let second = site(vec![agent(0, true, 30.0, 30.0, 1), agent(1, false, 15.0, 60.0, 2)], 0, 30.0);
        let judged = SeedResult { seed: 0, mapped: true, sites: vec![first, second] };
        let settings = Settings {
            agents: 2,
            landmarks: 1,
            seeds: 1,
            strategies: vec![Strategy::GnpConfirmed],
            crawls: 2,
            ..Settings::default()
        };
        let report = Report::of(3, &settings, &[judged]);
        // The two relative errors are 0.1 and 3.0.
        let close = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-12;
        assert!(close(report.estimate.re50, 1.55) && close(report.estimate.re90, 2.71), "{report:?}");
        assert!(close(report.estimate.acc70, 0.9) && close(report.estimate.acc80, 0.9), "{report:?}");
        assert!(close(report.estimate.top1_hit, 0.5) && close(report.estimate.top3_hit, 1.0), "{report:?}");
        assert!(close(report.oracle_rtt_ms, 12.5) && close(report.random_rtt_ms, 18.75), "{report:?}");
        let confirmed = &report.strategies[0];
        assert!(close(confirmed.mean_rtt_ms, 20.0) && close(confirmed.stretch, 1.6), "{confirmed:?}");
        assert!(close(confirmed.probes_per_site, 4.0) && close(confirmed.load_cv, 1.0), "{confirmed:?}");
        assert_eq!((report.pairs, report.sites, report.sites_without_estimate), (2, 2, 0));
        // The nearest agents are at 10 and 15 ms. The excesses are 0 and 15 ms in the first crawl,
        // and 2 and -3 ms in the second crawl.
        assert_eq!(confirmed.excess_ms, [7.5, -0.5]);
    }

    #[test]
    fn an_agent_as_near_as_the_nearest_is_a_hit() {
        let tied = site(vec![agent(0, true, 10.0, 10.0, 2), agent(1, false, 10.0, 9.0, 1)], 1, 10.0);
        assert_eq!(hit(&tied, 1), 1.0);
    }

    #[test]
    fn figures_of_nothing_are_absent_and_not_numbers_that_mean_nothing() {
        let report = Report::of(3, &Settings::default(), &[]);
        assert_eq!((report.estimate.re50, report.estimate.acc70, report.estimate.top1_hit), (None, None, None));
        assert!(report.strategies.iter().all(|score| score.mean_rtt_ms.is_none() && score.load_cv.is_none()));
        assert!(!serde_json::to_string(&report).unwrap().contains("NaN"));
    }

    #[test]
    fn quantiles_are_values_that_are_there_by_their_weight() {
        let drawn = quantiles(vec![(30.0, 0.5), (10.0, 1.0), (20.0, 0.5)]);
        assert_eq!(
            (drawn.len(), drawn[0], drawn[100], drawn[101], drawn[150], drawn[151], drawn[200]),
            (201, 10.0, 10.0, 20.0, 20.0, 30.0, 30.0)
        );
        assert_eq!(quantiles(Vec::new()), Vec::<f64>::new());
        assert!(quantiles(vec![(4.0, 1.0)]).iter().all(|value| *value == 4.0));
    }
}
