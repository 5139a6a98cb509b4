//! Learns from crawls by how much the map errs for each agent, and by how much pages take longer
//! than probes.

use std::collections::HashMap;

use crate::model::{AgentId, Rtt, SiteId, stats};

use super::crawl_residual::{CrawlResidual, Prefix};
use super::similar_sites::{Alike, CorrectedResidual, SimilarCrawls};

/// Number of residuals of zero that are added to an agent's own residuals, so that a correction by
/// few crawls is small.
const PRIOR_RESIDUALS: f64 = 5.0;
/// Maximum absolute log ratio of a residual, which corresponds to a factor of four. A greater
/// factor indicates a broken crawl.
const MOST: f64 = 1.4;

/// The corrections learned from all crawls.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LearnedCorrections {
    /// The logarithm of the ratio of a page's round trip to a probe's round trip, for all agents
    /// and sites.
    bias: f64,
    by_agent: HashMap<AgentId, f64>,
    pub(super) alike: Alike,
}

/// The weighted sum of log ratios, and the sum of the weights.
#[derive(Debug, Clone, Copy, Default)]
struct Sum(f64, f64);

impl Sum {
    fn add(&mut self, ratio: f64, weight: f64) {
        self.0 += ratio * weight;
        self.1 += weight;
    }

    fn shrunk(self) -> f64 {
        self.0 / (self.1 + PRIOR_RESIDUALS)
    }
}

impl LearnedCorrections {
    /// Learns from residuals. `measured` contains the probers' measurements of the crawled sites,
    /// which determine how similar the sites are. The factor by which pages take longer than
    /// probes is learned only from crawls by agents whose probes measured the site.
    pub fn of(residuals: &[CrawlResidual], measured: &HashMap<SiteId, Vec<(AgentId, Rtt)>>) -> Self {
        let log_ratio = |crawl: &CrawlResidual| ln(crawl.crawled) - ln(crawl.known);
        let bias = shrunk_median(residuals.iter().filter(|residual| residual.probed).map(log_ratio).collect());
        let ratio = |crawl: &CrawlResidual| (log_ratio(crawl) - bias).clamp(-MOST, MOST);
        let mut agents: HashMap<AgentId, Sum> = HashMap::new();
        for residual in residuals.iter().filter(|residual| !residual.probed && !residual.preferred) {
            agents.entry(residual.agent).or_default().add(ratio(residual), residual.weight);
        }
        let by_agent: HashMap<AgentId, f64> = agents.into_iter().map(|(agent, sum)| (agent, sum.shrunk())).collect();
        let corrected = |crawl: &CrawlResidual| {
            let CrawlResidual { agent, site, network, weight, .. } = *crawl;
            let residual = ratio(crawl) - by_agent.get(&agent).copied().unwrap_or(0.0);
            CorrectedResidual { agent, site, network, residual, weight }
        };
        let alike = Alike::of(residuals.iter().filter(|residual| !residual.probed).map(corrected).collect(), measured);
        Self { bias, by_agent, alike }
    }

    pub fn corrected(&self, agent: AgentId, predicted: Rtt) -> Rtt {
        let of_agent = self.by_agent.get(&agent).copied().unwrap_or(0.0);
        round_trip(ln(predicted) + of_agent, predicted)
    }

    /// Returns the crawls of sites similar to a site in this network with these measurements. This
    /// method scans all crawled sites, so do not call it on a thread that serves requests.
    pub fn near(&self, network: Option<Prefix>, measured: &[(AgentId, Rtt)]) -> SimilarCrawls {
        self.alike.near(measured, network)
    }

    /// Estimates the round trip that probes would measure: the crawl's round trip without the time
    /// by which crawls usually exceed probes.
    pub fn probed(&self, crawled: Rtt) -> Rtt {
        round_trip(ln(crawled) - self.bias, crawled)
    }
}

/// The median, shrunk towards zero. A mean is not used, because a few slow servers would change it
/// too much.
fn shrunk_median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_unstable_by(f64::total_cmp);
    let count = stats::count(ratios.len());
    ratios.get(ratios.len() / 2).copied().unwrap_or(0.0) * count / (count + PRIOR_RESIDUALS)
}

pub(super) fn ln(rtt: Rtt) -> f64 {
    rtt.as_millis_f64().ln()
}

pub(super) fn round_trip(log: f64, otherwise: Rtt) -> Rtt {
    Rtt::try_from_millis_f64(log.exp()).unwrap_or(otherwise)
}
