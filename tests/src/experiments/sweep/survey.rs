//! What the scheduler would know of the ways from agents to sites, before anything is crawled: the landmarks' own round trips to each
//! site, and what the map predicts for all other agents. Pure.

use std::time::Duration;

use anyhow::Context;
use landfall_scheduler::gnp::{Refined, RefinedSwitches, SitePlace};
use landfall_scheduler::model::{AgentId, Rtt};
use landfall_scheduler::strategy::Candidate;
use landfall_scheduler::strategy::learned::confidence::{self, unsure};
use landfall_scheduler::strategy::learned::{
    CrawlObservation, LearnedCorrections, SimilarCrawls, measured_by_crawls, teach,
};

use super::measured::LayoutMeasurements;
use crate::world::scenario::Scenario;

/// As in the scheduler and the lab: agents that confirm a site, samples each takes, and the time from one to the next.
const CONFIRMERS: usize = 3;
const SAMPLES: u32 = 3;
const SAMPLED_EVERY: Duration = Duration::from_millis(500);
/// How long a confirmation takes as the scheduler reckons.
pub const CONFIRMING: Duration = confidence::takes(3, SAMPLES, SAMPLED_EVERY);

/// What is known of every site.
#[derive(Debug)]
pub struct Survey {
    agents: usize,
    /// What predicts; `None` where all is given.
    map: Option<Refined>,
    /// For each site, who measured it, and what.
    measured: Vec<Vec<(AgentId, Rtt)>>,
    /// For each site every agent, without load.
    known: Vec<Vec<Candidate>>,
    /// For sites whose distances are unsure, what a confirmation brings.
    confirmed: Vec<Option<Confirmation>>,
}

/// What a confirmation of a site brings.
#[derive(Debug)]
struct Confirmation {
    measured: Vec<(AgentId, Rtt)>,
    takes: Duration,
    known: Vec<Candidate>,
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
    /// Makes the map of what was measured, and predicts everything else with it; where no map is trusted, no distance is known. Agents of the
    /// scenario are in the order of their ranks.
    pub fn of(scenario: &Scenario, measurements: &LayoutMeasurements) -> anyhow::Result<Self> {
        let (agents, sites) = (scenario.agents.len(), scenario.sites.len());
        let Some(epoch) = measurements.epoch else {
            let known: Vec<Candidate> = (0..agents).map(|agent| Candidate::new(agent_id(agent), 1)).collect();
            return Ok(Self::given(vec![known; sites]));
        };
        let map = Refined::new(&measurements.mesh()?, &measurements.landmarks(), &RefinedSwitches::default(), epoch)
            .context("fit the map")?;
        let mut survey =
            Self { agents, map: Some(map), measured: measurements.sites()?, known: Vec::new(), confirmed: Vec::new() };
        survey.known = (0..sites).map(|site| survey.predicted(site, false, &[])).collect();
        survey.confirmed = (0..sites).map(|site| survey.confirm(scenario, site)).collect();
        Ok(survey)
    }

    /// Has a site confirmed, if its distances are unsure: one agent after another.
    fn confirm(&self, scenario: &Scenario, site: usize) -> Option<Confirmation> {
        let (map, measured, known) = (self.map.as_ref()?, self.measured.get(site)?, self.known.get(site)?);
        if !unsure(known) {
            return None;
        }
        let free: Vec<AgentId> = known.iter().filter(|one| one.measured.is_none()).map(|one| one.agent).collect();
        let asked = map.locate(measured).ok()?.confirm(CONFIRMERS, &free);
        let link = |agent: &AgentId| Some(scenario.paths.get(agent_index(*agent)?)?.get(site)?.rtt());
        let links: Vec<(AgentId, Duration)> = asked.iter().filter_map(|agent| Some((*agent, link(agent)?))).collect();
        // A connection and a request to warm it up come before the samples.
        let takes = links.iter().map(|(_, rtt)| *rtt * 2 + SAMPLED_EVERY.max(*rtt) * SAMPLES).sum();
        let measurements = links.iter().filter_map(|(agent, rtt)| Some((*agent, Rtt::try_new(*rtt).ok()?)));
        let measured: Vec<(AgentId, Rtt)> = measured.iter().copied().chain(measurements).collect();
        let known = self.placed(site, &measured, &[]);
        Some(Confirmation { measured, takes, known })
    }

    /// What is known of each agent's way to a site, confirmed if that is needed, after these crawls of it.
    pub fn predicted(&self, site: usize, confirmed: bool, crawls: &[CrawlObservation]) -> Vec<Candidate> {
        let confirmed = self.confirmed.get(site).and_then(Option::as_ref).filter(|_| confirmed);
        let measured = confirmed.map(|confirmed| &confirmed.measured).or_else(|| self.measured.get(site));
        measured.map_or_else(Vec::new, |measured| self.placed(site, measured, crawls))
    }

    fn placed(&self, site: usize, measured: &[(AgentId, Rtt)], crawls: &[CrawlObservation]) -> Vec<Candidate> {
        let Some(map) = &self.map else { return self.candidates(site).to_vec() };
        let placed_by = [measured, &measured_by_crawls(&LearnedCorrections::default(), measured, crawls)].concat();
        let place = map.locate(&placed_by).ok().map(SitePlace::Cloud);
        let one = |agent: usize| {
            let agent = agent_id(agent);
            let predicted = place.as_ref().and_then(|place| place.predict(agent));
            Candidate::new(agent, 1).to_site(predicted, measured)
        };
        let mut candidates: Vec<Candidate> = (0..self.agents).map(one).collect();
        if !crawls.is_empty() {
            teach(&mut candidates, &LearnedCorrections::default(), &SimilarCrawls::default(), crawls);
        }
        candidates
    }

    /// What is known of each agent's way to a site.
    pub fn candidates(&self, site: usize) -> &[Candidate] {
        self.known.get(site).map_or(&[], Vec::as_slice)
    }

    /// The same once it is confirmed, and how long that takes; `None` where it is not needed.
    pub fn confirmed(&self, site: usize) -> Option<(&[Candidate], Duration)> {
        let confirmed = self.confirmed.get(site)?.as_ref()?;
        Some((&confirmed.known, confirmed.takes))
    }

    /// A survey of which nothing but these is known.
    pub(super) fn given(known: Vec<Vec<Candidate>>) -> Self {
        let (agents, sites) = (known.first().map_or(0, Vec::len), known.len());
        Self { agents, map: None, measured: vec![Vec::new(); sites], known, confirmed: Vec::new() }
    }
}
