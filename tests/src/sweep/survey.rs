//! What the scheduler would know of the ways from agents to sites, before anything is crawled: landmarks elected from the mesh, their
//! own round trips to each site, and what the map says of everybody else. Pure.
//!
//! Round trips are taken as they are emulated: measured ones differ by less than a millisecond.

use anyhow::Context;
use landfall_scheduler::gnp::{Ingredients, Mesh, Nominee, Place, Refined, elect_held_out};
use landfall_scheduler::model::{AgentId, Rtt};
use landfall_scheduler::strategy::learned::{Crawled, Lessons, Near, measured_by_crawls, teach};
use landfall_scheduler::strategy::{Candidate, Spread};

use crate::scenario::Scenario;

/// What the scheduler elects with, and the epoch of its first map.
const SEED: u64 = 1;

/// What is known of every site.
#[derive(Debug)]
pub struct Survey {
    agents: usize,
    /// What predicts; `None` where all is given.
    map: Option<Refined>,
    /// For each site the landmarks' round trips.
    measured: Vec<Vec<(AgentId, Rtt)>>,
    /// For each site every agent, without load.
    known: Vec<Vec<Candidate>>,
}

/// An agent's identifier in a survey.
pub fn agent_id(index: usize) -> AgentId {
    AgentId::new(i64::try_from(index).unwrap_or(i64::MAX).saturating_add(1))
}

/// Which agent has this identifier.
pub fn agent_index(id: AgentId) -> Option<usize> {
    usize::try_from(id.get().checked_sub(1)?).ok()
}

impl Survey {
    /// Surveys a scenario with so many landmarks.
    ///
    /// # Errors
    /// When no landmarks can be elected or the map cannot be fitted.
    pub fn of(scenario: &Scenario, landmarks: usize) -> anyhow::Result<Self> {
        let rtt = |millis| Rtt::try_from_millis_f64(millis).context("a round trip of the scenario");
        let mut mesh = Mesh::new();
        for (from, row) in scenario.mesh.iter().enumerate() {
            for (to, link) in row.iter().enumerate().filter(|(to, _)| *to != from) {
                mesh.insert(agent_id(from), agent_id(to), rtt(link.rtt_ms)?);
            }
        }
        let nominees: Vec<Nominee> = scenario
            .agents
            .iter()
            .enumerate()
            .map(|(index, node)| Nominee {
                agent: agent_id(index),
                city: node.city.clone(),
                carrier: node.carrier.clone(),
            })
            .collect();
        let elected = elect_held_out(&mesh, &nominees, landmarks, SEED).context("elect the landmarks")?;
        let landmarks: Vec<AgentId> = elected.into_iter().map(|elected| elected.agent).collect();
        let map = Refined::new(&mesh, &landmarks, &Ingredients::default(), SEED).context("fit the map")?;
        let of_site = |site: usize| {
            let mut measured = Vec::with_capacity(landmarks.len());
            for &landmark in &landmarks {
                let path = agent_index(landmark).and_then(|agent| scenario.paths.get(agent));
                let link = path.and_then(|row| row.get(site)).context("a landmark's way to a site")?;
                measured.push((landmark, rtt(link.rtt_ms)?));
            }
            Ok(measured)
        };
        let measured = (0..scenario.sites.len()).map(of_site).collect::<anyhow::Result<Vec<_>>>()?;
        let mut survey = Self { agents: scenario.agents.len(), map: Some(map), measured, known: Vec::new() };
        survey.known = (0..scenario.sites.len()).map(|site| survey.predicted(site, &[])).collect();
        Ok(survey)
    }

    /// What is known of each agent's way to a site, after these crawls of it.
    pub fn predicted(&self, site: usize, crawls: &[Crawled]) -> Vec<Candidate> {
        let (Some(map), Some(measured)) = (&self.map, self.measured.get(site)) else {
            return self.candidates(site).to_vec();
        };
        let placed_by = [measured, measured_by_crawls(&Lessons::default(), measured, crawls).as_slice()].concat();
        let place = map.locate(&placed_by).ok().map(Place::Cloud);
        let one = |agent: usize| {
            let agent = agent_id(agent);
            let predicted = place.as_ref().and_then(|place| place.predict(agent));
            Candidate {
                predicted: predicted.map(|predicted| predicted.rtt),
                expected: predicted.and_then(|predicted| predicted.expected),
                measured: measured.iter().find(|(prober, _)| *prober == agent).map(|(_, rtt)| *rtt),
                spread: predicted.and_then(|predicted| predicted.spread).map(Spread::new),
                ..Candidate::new(agent, 1)
            }
        };
        let mut candidates: Vec<Candidate> = (0..self.agents).map(one).collect();
        if !crawls.is_empty() {
            teach(&mut candidates, &Lessons::default(), &Near::default(), crawls);
        }
        candidates
    }

    /// What is known of each agent's way to a site.
    pub fn candidates(&self, site: usize) -> &[Candidate] {
        self.known.get(site).map_or(&[], Vec::as_slice)
    }

    /// A survey of which nothing but these is known; for cases worked out by hand.
    #[cfg(test)]
    pub(super) fn given(known: Vec<Vec<Candidate>>) -> Self {
        Self { agents: known.first().map_or(0, Vec::len), map: None, measured: Vec::new(), known }
    }
}
