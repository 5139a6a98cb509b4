//! The round trips that the scheduler knows before any crawl: those that landmarks measured to each
//! site, and those that the map predicts for the other agents. This module does no I/O.

use std::time::Duration;

use anyhow::Context;
use landfall_scheduler::gnp::{Refined, RefinedSwitches, SitePlace};
use landfall_scheduler::model::{AgentId, Rtt};
use landfall_scheduler::strategy::Candidate;
use landfall_scheduler::strategy::learned::{
    CrawlObservation, LearnedCorrections, SimilarCrawls, measured_by_crawls, teach,
};
use landfall_scheduler::strategy::uncertainty::{self, unsure};

use super::layout_measurements::{LayoutMeasurements, agent_id, agent_index};
use crate::world::scenario::Scenario;

/// Constants of the scheduler and the lab: number of confirmers per site, number of samples per
/// confirmer, and interval between samples.
const CONFIRMERS: usize = 3;
const SAMPLES: u32 = 3;
const SAMPLED_EVERY: Duration = Duration::from_millis(500);
/// The expected duration of a confirmation in the scheduler.
pub const CONFIRMING: Duration = uncertainty::takes(3, SAMPLES, SAMPLED_EVERY);

#[derive(Debug)]
pub struct Survey {
    agents: usize,
    /// The map; `None` if there was no epoch, or the candidates were given.
    map: Option<Refined>,
    /// The measurements of each site, as pairs of prober and round trip.
    measured: Vec<Vec<(AgentId, Rtt)>>,
    /// The candidates of each site. Every agent is a candidate. The load of candidates is not set.
    known: Vec<Vec<Candidate>>,
    /// The confirmation of each site; `None` if the site needs no confirmation.
    confirmed: Vec<Option<Confirmation>>,
}

#[derive(Debug)]
struct Confirmation {
    measured: Vec<(AgentId, Rtt)>,
    takes: Duration,
    known: Vec<Candidate>,
}

impl Survey {
    /// Fits the map, and predicts all round trips that were not measured. If `measurements` has no
    /// epoch, no map is fitted, and no round trip is known. The agents of `scenario` must be
    /// ordered by their ids in the scheduler.
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
        let confirm = |site: usize| unsure(survey.known.get(site)?).then(|| survey.confirm(scenario, site)).flatten();
        survey.confirmed = (0..sites).map(confirm).collect();
        Ok(survey)
    }

    /// Confirms a site. The confirmers measure the site one after another, so the duration is the
    /// sum of their times.
    fn confirm(&self, scenario: &Scenario, site: usize) -> Option<Confirmation> {
        let (map, measured, known) = (self.map.as_ref()?, self.measured.get(site)?, self.known.get(site)?);
        let free: Vec<AgentId> = known.iter().filter(|one| one.measured.is_none()).map(|one| one.agent).collect();
        let asked = map.locate(measured).ok()?.confirm(CONFIRMERS, &free);
        // The mean random delay of a response.
        let late = Duration::from_secs_f64(scenario.jitter_ms / 2e3);
        let link = |agent: &AgentId| Some(scenario.paths.get(agent_index(*agent)?)?.get(site)?.rtt() + late);
        let links: Vec<(AgentId, Duration)> = asked.iter().filter_map(|agent| Some((*agent, link(agent)?))).collect();
        // Each confirmer makes a handshake and sends a warm-up request before its samples.
        let takes = links.iter().map(|(_, rtt)| *rtt * 2 + SAMPLED_EVERY.max(*rtt) * SAMPLES).sum();
        let measurements = links.iter().filter_map(|(agent, rtt)| Some((*agent, Rtt::try_new(*rtt).ok()?)));
        let measured: Vec<(AgentId, Rtt)> = measured.iter().copied().chain(measurements).collect();
        let known = self.placed(site, &measured, &[]);
        Some(Confirmation { measured, takes, known })
    }

    /// The candidates of a site, corrected by the round trips of `crawls`. If `confirmed` is true,
    /// the result of the confirmation is included.
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

    /// The candidates of a site before its confirmation.
    pub fn candidates(&self, site: usize) -> &[Candidate] {
        self.known.get(site).map_or(&[], Vec::as_slice)
    }

    /// The candidates of a site after its confirmation, and the duration of the confirmation;
    /// `None` if the site needs no confirmation.
    pub fn confirmed(&self, site: usize) -> Option<(&[Candidate], Duration)> {
        let confirmed = self.confirmed.get(site)?.as_ref()?;
        Some((&confirmed.known, confirmed.takes))
    }

    /// A survey with given candidates.
    pub fn given(known: Vec<Vec<Candidate>>) -> Self {
        let (agents, sites) = (known.first().map_or(0, Vec::len), known.len());
        Self { agents, map: None, measured: vec![Vec::new(); sites], known, confirmed: Vec::new() }
    }
}
