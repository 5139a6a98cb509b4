//! Computes, for one draw of agents and sites, each compared strategy's choice for a site and the
//! true round trip to the chosen agent.

use super::map::Map;
use super::{ContenderChoice, Draw, JudgedAgent, JudgedSite, Node, Settings};
use crate::gnp::SitePlace;
use crate::model::{AgentId, Rtt, Strategy, seed, stats};
use crate::strategy::learned::{CrawlObservation, LearnedCorrections, measured_by_crawls};
use crate::strategy::{AgentLocation, Candidate, Site, choose};

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
    pub(super) fn crawl_seed(&self, site: usize, crawl: usize) -> u64 {
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
