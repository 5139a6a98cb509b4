//! Simulates repeated crawls of the same sites, which show how much the strategies' choices improve
//! by learning from crawls.
//!
//! Each strategy that uses distances has its own history of crawls. In every crawl, the strategy
//! chooses an agent for each site, using the residuals of all earlier crawls
//! ([`crate::strategy::learned`]). Some strategies sometimes explore: they choose an agent that may
//! be nearer than the best known agent. A crawl observes the true round trip between its agent and
//! its site.

use std::collections::HashMap;
use std::time::Duration;

use super::JudgedSite;
use super::choices::DrawContext;
use crate::model::{AgentId, Rtt, SiteId, Strategy};
use crate::strategy::learned::{CrawlObservation, CrawlResidual, LearnedCorrections, teach};
use crate::strategy::{Candidate, Site, choose, explored};

/// The time between two crawls of a site.
const BETWEEN: Duration = Duration::from_secs(86_400);

/// Simulates all crawls for every compared strategy that learns, and records in `judged` the true
/// round trip of each crawl. Other strategies get an empty list.
pub(super) fn crawl_again(context: &DrawContext<'_>, sites: &[usize], judged: &mut [JudgedSite]) {
    let fresh: Vec<Vec<Candidate>> =
        sites.iter().map(|site| context.candidates(*site, &LearnedCorrections::default(), &[])).collect();
    for strategy in context.strategies() {
        // `gnp-confirmed` does not learn, because its distances come from probes.
        let learns = strategy.needs_distance() && *strategy != Strategy::GnpConfirmed;
        let history = if learns { play(context, sites, &fresh, *strategy) } else { Vec::new() };
        for (index, judged) in judged.iter_mut().enumerate() {
            judged.crawls.push(history.get(index).cloned().unwrap_or_default());
        }
    }
}

/// Simulates the crawls of one strategy. Returns, for each site, the true round trip of each crawl
/// in milliseconds. `fresh` are the candidates of each site before any crawl.
fn play(context: &DrawContext<'_>, sites: &[usize], fresh: &[Vec<Candidate>], strategy: Strategy) -> Vec<Vec<f64>> {
    let mut truths = vec![Vec::new(); sites.len()];
    let mut crawls: Vec<Vec<(usize, CrawlObservation)>> = vec![Vec::new(); sites.len()];
    let mut told: Vec<(usize, CrawlResidual)> = Vec::new();
    let measured: HashMap<SiteId, Vec<(AgentId, Rtt)>> =
        sites.iter().map(|site| (site_id(*site), context.measured(*site))).collect();
    for crawl in 0..context.crawls() {
        let residuals: Vec<CrawlResidual> =
            told.iter().map(|(at, residual)| CrawlResidual { weight: weight(crawl, *at), ..*residual }).collect();
        let residuals = LearnedCorrections::of(&residuals, &measured);
        for (index, site) in sites.iter().enumerate() {
            // The newest crawl comes first, as in the store's results.
            let own: Vec<CrawlObservation> = crawls[index]
                .iter()
                .rev()
                .map(|(at, seen)| CrawlObservation { weight: weight(crawl, *at), ..*seen })
                .collect();
            let mut candidates =
                if own.is_empty() { fresh[index].clone() } else { context.candidates(*site, &residuals, &own) };
            let probed = measured.get(&site_id(*site)).map_or(&[][..], Vec::as_slice);
            teach(&mut candidates, &residuals, &residuals.near(None, probed), &own);
            let Some((taken, tried)) = take(strategy, &candidates, own.len(), context.crawl_seed(*site, crawl)) else {
                continue;
            };
            let Some(truth) = context.truth(*site, taken.agent) else { continue };
            truths[index].push(truth);
            let Ok(rtt) = Rtt::try_from_millis_f64(truth) else { continue };
            crawls[index].push((crawl, CrawlObservation { agent: taken.agent, rtt, weight: 1.0 }));
            let before = fresh[index].iter().find(|one| one.agent == taken.agent);
            let known =
                before.and_then(|one| one.measured.or(one.predicted).map(|known| (known, one.measured.is_some())));
            if let Some((known, probed)) = known {
                let residual = CrawlResidual {
                    agent: taken.agent,
                    site: site_id(*site),
                    network: None,
                    known,
                    probed,
                    preferred: !tried,
                    crawled: rtt,
                    weight: 1.0,
                };
                told.push((crawl, residual));
            }
        }
    }
    truths
}

fn site_id(site: usize) -> SiteId {
    SiteId::new(i64::try_from(site).unwrap_or(i64::MAX))
}

/// The agent that gets a site, and whether it was chosen by exploration rather than by the
/// strategy.
fn take(strategy: Strategy, candidates: &[Candidate], crawls: usize, seed: u64) -> Option<(Candidate, bool)> {
    let choice = choose(strategy, &Site::default(), candidates, seed)?;
    let chosen = candidates.iter().find(|one| one.agent == choice.agent)?;
    let other = if strategy.explores() { explored(chosen, candidates, crawls, seed) } else { None };
    Some((*other.unwrap_or(chosen), other.is_some()))
}

fn weight(now: usize, then: usize) -> f64 {
    crate::strategy::learned::weight(BETWEEN * u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX))
}
