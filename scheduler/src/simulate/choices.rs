//! Computes, for one draw of agents and sites, each compared strategy's choice for a site and the
//! result of one seed, also after repeated crawls of the same sites, which show how much the
//! choices improve.
//!
//! Each strategy that uses distances has its own history of crawls. In every crawl, the strategy
//! chooses an agent for each site, using the residuals of all earlier crawls
//! ([`crate::strategy::learned_distances`]). Some strategies sometimes explore: they choose an
//! agent that may be nearer than the best known agent. A crawl observes the true round trip between
//! its agent and its site.

use std::collections::HashMap;
use std::time::Duration;

use crate::gnp::SitePlace;
use crate::model::{AgentId, Rtt, SiteId, Strategy, seed, stats};
use crate::strategy::learned_distances::{CrawlObservation, LearnedCorrections, measured_by_crawls, teach};
use crate::strategy::similar_sites::CrawlResidual;
use crate::strategy::{AgentLocation, Candidate, Site, choose, explored};

use super::map_and_landmarks::Map;
use super::{Draw, Node, Settings};

/// A draw, and the data that are the same for all of its sites.
pub(super) struct DrawContext<'a> {
    pub(super) draw: Draw<'a>,
    pub(super) landmarks: Vec<AgentId>,
    pub(super) map: Option<Map>,
    pub(super) settings: &'a Settings,
    pub(super) seed: u64,
}

impl DrawContext<'_> {
    pub(super) fn judge(&self, site: usize) -> JudgedSite {
        let measured = self.draw.measured(site, &self.landmarks);
        let place = self.map.as_ref().and_then(|map| map.locate(&measured));
        let agents = (0..self.draw.agents()).filter_map(|agent| self.agent(site, agent, place.as_ref()));
        let mut agents: Vec<JudgedAgent> = agents.collect();
        let candidates: Vec<Candidate> = (0..self.draw.agents())
            .filter(|&agent| self.draw.truth(site, agent).is_some())
            .map(|agent| self.candidate(agent, place.as_ref(), &measured))
            .collect();
        let node = self.draw.site_node(site);
        let seed = draw_seed(self.seed, node);
        self.rank(&mut agents, &candidates, seed);
        let taken = |strategy: &Strategy| match strategy {
            Strategy::GnpConfirmed => {
                let (candidates, asked) = self.confirmed(site, &candidates, place.as_ref());
                self.taken(*strategy, site, &candidates, measured.len() + asked, seed)
            }
            strategy if strategy.needs_distance() => self.taken(*strategy, site, &candidates, measured.len(), seed),
            strategy => self.taken(*strategy, site, &candidates, 0, seed),
        };
        let taken = self.settings.strategies.iter().filter_map(taken).collect();
        let crawls = Vec::new();
        JudgedSite { node, located: place.is_some(), measurements: measured.len(), agents, taken, crawls }
    }

    fn agent(&self, site: usize, agent: usize, place: Option<&SitePlace<'_>>) -> Option<JudgedAgent> {
        let truth = self.draw.truth(site, agent)?;
        let id = self.draw.agent_id(agent);
        let landmark = self.landmarks.contains(&id);
        let predicted = if landmark {
            Some(truth)
        } else {
            place.and_then(|place| place.predict(id)).map(|predicted| predicted.rtt.as_millis_f64())
        };
        Some(JudgedAgent { node: self.draw.agent_node(agent), landmark, truth, predicted, rank: None })
    }

    fn candidate(&self, agent: usize, place: Option<&SitePlace<'_>>, measured: &[(AgentId, Rtt)]) -> Candidate {
        let home = self.told(self.draw.agent_node(agent)).map(home).unwrap_or_default();
        let agent = self.draw.agent_id(agent);
        let predicted = place.and_then(|place| place.predict(agent));
        // The load is 0: an agent is chosen as if there were no other sites.
        Candidate { home, ..Candidate::new(agent, 1) }.to_site(predicted, measured)
    }

    /// Ranks the agents by distance, the nearest first. If no distance is known, an agent is drawn
    /// at random and gets rank 1.
    fn rank(&self, agents: &mut [JudgedAgent], candidates: &[Candidate], seed: u64) {
        let mut nearest: Vec<&Candidate> =
            candidates.iter().filter(|candidate| candidate.distance().is_some()).collect();
        nearest.sort_by_key(|candidate| (candidate.distance(), candidate.agent));
        let mut ranked: Vec<AgentId> = nearest.into_iter().map(|candidate| candidate.agent).collect();
        if ranked.is_empty() {
            ranked.extend(choose(Strategy::GNP_TOP1, &Site::default(), candidates, seed).map(|choice| choice.agent));
        }
        for (rank, id) in (1..).zip(ranked) {
            let node = self.node(id);
            if let Some(agent) = agents.iter_mut().find(|agent| Some(agent.node) == node) {
                agent.rank = Some(rank);
            }
        }
    }

    /// A strategy's choice for a site; `None` if there are no candidates. `probes` is the number of
    /// measurements made for the choice.
    fn taken(
        &self,
        strategy: Strategy,
        site: usize,
        candidates: &[Candidate],
        probes: usize,
        seed: u64,
    ) -> Option<ContenderChoice> {
        let node = self.draw.site_node(site);
        let told = self.told(node);
        let host = told.and_then(|node| node.name.clone()).unwrap_or_else(|| format!("{node}.node.invalid"));
        let (address, position) = told.map_or((None, None), |node| (node.address, node.position));
        let choice = choose(strategy, &Site { host: &host, address, position, work: None }, candidates, seed)?;
        let chosen = choice.candidates.iter().filter(|candidate| candidate.agent == choice.agent);
        // If agents are drawn with equal probability, the choice is judged by the mean round trip
        // over all agents that could be drawn, so that chance has no influence. A fallback to
        // `random` is an exception: it is judged by the drawn agent.
        let drawn_among: Vec<&Candidate> = match (strategy, choice.strategy) {
            (Strategy::Random, _) => candidates.iter().collect(),
            (_, Strategy::GnpTop(_) | Strategy::Geographic | Strategy::Prefix) => choice.candidates.iter().collect(),
            _ => chosen.collect(),
        };
        let truths: Vec<f64> =
            drawn_among.into_iter().filter_map(|candidate| self.truth(site, candidate.agent)).collect();
        let (truth, fell_back) = (stats::mean(&truths)?, choice.fallback.is_some());
        Some(ContenderChoice { node: self.node(choice.agent)?, truth, probes, among: truths, fell_back })
    }

    /// The candidates for a site. The site's earlier crawls are also used to locate it on the map.
    pub(super) fn candidates(
        &self,
        site: usize,
        residuals: &LearnedCorrections,
        crawls: &[CrawlObservation],
    ) -> Vec<Candidate> {
        let measured = self.measured(site);
        let placed_by = [&measured[..], &measured_by_crawls(residuals, &measured, crawls)].concat();
        let place = self.map.as_ref().and_then(|map| map.locate(&placed_by));
        (0..self.draw.agents())
            .filter(|&agent| self.draw.truth(site, agent).is_some())
            .map(|agent| self.candidate(agent, place.as_ref(), &measured))
            .collect()
    }

    /// The landmarks' measurements of a site.
    pub(super) fn measured(&self, site: usize) -> Vec<(AgentId, Rtt)> {
        self.draw.measured(site, &self.landmarks)
    }

    /// The data about a node, apart from its round trips; `None` if there are no data.
    fn told(&self, node: usize) -> Option<&Node> {
        self.settings.nodes.get(node)
    }

    pub(super) fn strategies(&self) -> &[Strategy] {
        &self.settings.strategies
    }

    pub(super) fn crawls(&self) -> usize {
        self.settings.crawls
    }

    /// The seed for one crawl of a site.
    fn crawl_seed(&self, site: usize, crawl: usize) -> u64 {
        let crawl = u64::try_from(crawl).unwrap_or(u64::MAX);
        draw_seed(self.seed ^ crawl.rotate_left(16), self.draw.site_node(site))
    }

    /// Returns the candidates with the measurements of the confirmers that the map selects, and the
    /// number of these confirmers.
    fn confirmed(
        &self,
        site: usize,
        candidates: &[Candidate],
        place: Option<&SitePlace<'_>>,
    ) -> (Vec<Candidate>, usize) {
        let free: Vec<AgentId> = candidates.iter().filter(|one| one.measured.is_none()).map(|one| one.agent).collect();
        let asked = place.map(|place| place.confirm(self.settings.confirm, &free)).unwrap_or_default();
        let mut candidates = candidates.to_vec();
        for (agent, rtt) in self.draw.measured(site, &asked) {
            candidates.iter_mut().filter(|one| one.agent == agent).for_each(|one| one.measured = Some(rtt));
        }
        (candidates, asked.len())
    }

    fn node(&self, id: AgentId) -> Option<usize> {
        self.draw.agent_of(id).map(|agent| self.draw.agent_node(agent))
    }

    pub(super) fn truth(&self, site: usize, id: AgentId) -> Option<f64> {
        self.draw.truth(site, self.draw.agent_of(id)?)
    }
}

fn home(node: &Node) -> AgentLocation {
    AgentLocation { country: node.country, direction: node.position.map(Into::into), address: node.address }
}

/// The seed for one site. Neighbouring sites and seeds get unrelated random numbers.
fn draw_seed(seed: u64, node: usize) -> u64 {
    seed::spread(seed.rotate_left(32) ^ u64::try_from(node).unwrap_or(u64::MAX))
}

#[derive(Debug, Clone, PartialEq)]
pub struct SeedResult {
    pub seed: u64,
    /// Whether a map could be fitted. Without a map, agents are chosen by measured distances.
    pub mapped: bool,
    /// All sites, in the order of the matrix.
    pub sites: Vec<JudgedSite>,
}

/// One site of one seed.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedSite {
    /// The site's row number in the matrix, from 0.
    pub node: usize,
    /// Whether the map could locate the site.
    pub located: bool,
    /// Number of landmarks that measured the site.
    pub measurements: usize,
    /// The agents with a known true round trip to the site. Only these agents are candidates,
    /// because a choice is judged by the true round trip.
    pub agents: Vec<JudgedAgent>,
    /// The choices of the compared strategies, in the order of the settings; empty without
    /// candidates.
    pub taken: Vec<ContenderChoice>,
    /// For each compared strategy, the true round trip to the chosen agent in each crawl, in
    /// milliseconds; empty if sites are crawled only once.
    pub crawls: Vec<Vec<f64>>,
}

/// One agent as a candidate for one site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JudgedAgent {
    /// The agent's row number in the matrix, from 0.
    pub node: usize,
    pub landmark: bool,
    /// The true round trip, in milliseconds.
    pub truth: f64,
    /// The estimated round trip in milliseconds: a landmark's measurement, or the prediction for
    /// another agent; `None` if the map has no prediction.
    pub predicted: Option<f64>,
    /// The agent's rank by distance, from 1; `None` if the agent's distance is unknown. If no
    /// distance is known, a randomly drawn agent has rank 1.
    pub rank: Option<usize>,
}

/// A compared strategy's choice for one site.
#[derive(Debug, Clone, PartialEq)]
pub struct ContenderChoice {
    /// The chosen agent's row number in the matrix, from 0.
    pub node: usize,
    /// The true round trip to the chosen agent, in milliseconds. If agents are drawn with equal
    /// probability, it is the mean over all agents that could be drawn.
    pub truth: f64,
    /// Number of measurements made for the choice, by landmarks and by confirmers.
    pub probes: usize,
    /// The true round trips to all agents that could be drawn, in milliseconds; without a draw, the
    /// round trip to the chosen agent.
    pub among: Vec<f64>,
    /// Whether the choice was made by a fallback, because the strategy lacked its input.
    pub fell_back: bool,
}

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
    crate::strategy::similar_sites::weight(BETWEEN * u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX))
}
