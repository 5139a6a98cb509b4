//! The round trips that the scheduler knows before any crawl: those that landmarks measured to each
//! site, and those that the map predicts for the other agents. The measurements of a layout are
//! either the emulated round trips, or those of a cluster in the lab. This module does no I/O.

use std::time::Duration;

use anyhow::{Context, ensure};
use landfall_scheduler::gnp::{Mesh, Nominee, Refined, RefinedSwitches, SitePlace, elect_held_out};
use landfall_scheduler::model::{AgentId, Rtt};
use landfall_scheduler::strategy::Candidate;
use landfall_scheduler::strategy::distance_strategies::{self, unsure};
use landfall_scheduler::strategy::learned_distances::{
    CrawlObservation, LearnedCorrections, measured_by_crawls, teach,
};
use landfall_scheduler::strategy::similar_sites::SimilarCrawls;
use serde::{Deserialize, Serialize};

use crate::evidence::batch_record;
use crate::world::scenario::{AgentNode, Scenario};

/// Constants of the scheduler and the lab: number of confirmers per site, number of samples per
/// confirmer, and interval between samples.
const CONFIRMERS: usize = 3;
const SAMPLES: u32 = 3;
const SAMPLED_EVERY: Duration = Duration::from_millis(500);
/// The expected duration of a confirmation in the scheduler.
pub const CONFIRMING: Duration = distance_strategies::confirmation_takes(3, SAMPLES, SAMPLED_EVERY);

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

/// The seed of the election of landmarks. The first map has this number as its epoch.
const SEED: u64 = 1;

/// Round trips in milliseconds, by prober. An agent's number is the rank of its id among the agent
/// ids of the scheduler, because random choices depend on these ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayoutMeasurements {
    /// The index of each agent in the scenario. The agents are ordered by their ids in the
    /// scheduler.
    pub agents: Vec<usize>,
    /// The landmarks in the order of election.
    pub landmarks: Vec<usize>,
    /// The epoch of the map, which is also the seed of its fit; `None` during an alarm.
    pub epoch: Option<u64>,
    pub mesh: Vec<(usize, usize, f64)>,
    /// The measurements of each site, as pairs of prober and round trip.
    pub sites: Vec<Vec<(usize, f64)>>,
}

impl LayoutMeasurements {
    /// Exact measurements of a scenario, with landmarks elected from them.
    pub fn emulated(scenario: &Scenario, landmarks: usize) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for (from, row) in scenario.mesh.iter().enumerate() {
            let others = row.iter().enumerate().filter(|(to, _)| *to != from);
            all.extend(others.map(|(to, link)| (from, to, link.rtt_ms)));
        }
        let landmarks = elected(scenario, &all, landmarks)?;
        let of_site = |site: usize| {
            let link = |&landmark: &usize| Some((landmark, scenario.paths.get(landmark)?.get(site)?.rtt_ms));
            landmarks.iter().map(link).collect::<Option<Vec<_>>>().context("a landmark's path to a site")
        };
        let sites = (0..scenario.sites.len()).map(of_site).collect::<anyhow::Result<_>>()?;
        Ok(Self { agents: (0..scenario.agents.len()).collect(), landmarks, epoch: Some(SEED), mesh: all, sites })
    }

    /// The measurements of a cluster. `by_rank` contains the names of the cluster's agents, ordered
    /// by their ids. `agents` and `sites` contain names in the order of the scenario.
    pub fn by(
        record: &batch_record::BatchRecord,
        by_rank: &[String],
        agents: &[String],
        sites: &[String],
    ) -> anyhow::Result<Self> {
        let batch_record::TrustRecord { quarantined, alarm } = &record.trust;
        let map = record.embedding.as_ref().filter(|_| alarm.is_none()).map(|map| map.embedding.epoch());
        ensure!(map.is_some() || alarm.is_some(), "there is no map");
        let index = |name: &String| agents.iter().position(|known| known == name);
        let order: Vec<usize> =
            by_rank.iter().map(index).collect::<Option<_>>().context("an agent is not the scenario's")?;
        ensure!(order.len() == agents.len(), "{} of {} agents enrolled", order.len(), agents.len());
        let rank = |name: &str| by_rank.iter().position(|known| known == name);
        let believed = |name: &String| !quarantined.contains(name);
        let millis = |one: &batch_record::Measurement| {
            believed(&one.prober).then_some(f64::from(u32::try_from(one.rtt_us?).ok()?) / 1e3)
        };
        let way = |one: &batch_record::Measurement| Some((rank(&one.prober)?, rank(&one.target)?, millis(one)?));
        let of_site = |site: &String| {
            let own = record.site_measurements.iter().filter(|one| one.target == *site);
            own.filter_map(|one| Some((rank(&one.prober)?, millis(one)?))).collect()
        };
        let landmarks = record.landmarks.iter().filter(|name| believed(name)).map(|name| rank(name));
        Ok(Self {
            agents: order,
            landmarks: landmarks.collect::<Option<_>>().context("a landmark is not the scenario's")?,
            epoch: map.map(|epoch| epoch.get().unsigned_abs()),
            mesh: record.mesh_measurements.iter().filter_map(way).collect(),
            sites: sites.iter().map(of_site).collect(),
        })
    }

    pub fn mesh(&self) -> anyhow::Result<Mesh> {
        mesh(&self.mesh)
    }

    pub fn landmarks(&self) -> Vec<AgentId> {
        self.landmarks.iter().map(|&landmark| agent_id(landmark)).collect()
    }

    pub fn sites(&self) -> anyhow::Result<Vec<Vec<(AgentId, Rtt)>>> {
        let one = |&(agent, millis): &(usize, f64)| Ok((agent_id(agent), rtt(millis)?));
        self.sites.iter().map(|all| all.iter().map(one).collect()).collect()
    }
}

fn elected(scenario: &Scenario, all: &[(usize, usize, f64)], count: usize) -> anyhow::Result<Vec<usize>> {
    let nominee = |(index, node): (usize, &AgentNode)| Nominee {
        agent: agent_id(index),
        city: node.city.clone(),
        carrier: node.carrier.clone(),
    };
    let nominees: Vec<Nominee> = scenario.agents.iter().enumerate().map(nominee).collect();
    let elected = elect_held_out(&mesh(all)?, &nominees, count, SEED).context("elect the landmarks")?;
    Ok(elected.iter().filter_map(|elected| agent_index(elected.agent)).collect())
}

fn mesh(all: &[(usize, usize, f64)]) -> anyhow::Result<Mesh> {
    let mut mesh = Mesh::new();
    for &(from, to, millis) in all {
        mesh.insert(agent_id(from), agent_id(to), rtt(millis)?);
    }
    Ok(mesh)
}

fn rtt(millis: f64) -> anyhow::Result<Rtt> {
    Rtt::try_from_millis_f64(millis).context("a round trip")
}

pub fn agent_id(index: usize) -> AgentId {
    AgentId::new(i64::try_from(index).unwrap_or(i64::MAX).saturating_add(1))
}

pub fn agent_index(id: AgentId) -> Option<usize> {
    usize::try_from(id.get().checked_sub(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::scenario::{Layout, SMALL};

    /// The record of a cluster whose agents were enrolled in reverse order.
    fn record(scenario: &Scenario, measurements: &LayoutMeasurements) -> (batch_record::BatchRecord, [Vec<String>; 3]) {
        let names: Vec<String> = scenario.agents.iter().map(|agent| agent.name.clone()).collect();
        let sites: Vec<String> = scenario.sites.iter().map(|site| site.host.clone()).collect();
        let told = |prober: usize, target: &String, millis: f64| batch_record::Measurement {
            prober: names[prober].clone(),
            target: target.clone(),
            rtt_us: i64::try_from(std::time::Duration::from_secs_f64(millis / 1e3).as_micros()).ok(),
        };
        let site_measurements =
            measurements.sites.iter().zip(&sites).flat_map(|(all, site)| {
                all.iter().map(|&(prober, millis)| told(prober, site, millis)).collect::<Vec<_>>()
            });
        let embedding = landfall_scheduler::gnp::fit(
            landfall_scheduler::model::EmbeddingEpoch::new(2),
            &measurements.mesh().unwrap(),
            &measurements.landmarks(),
            2,
            2,
        );
        let map = batch_record::EmbeddingRecord {
            embedding: embedding.unwrap(),
            agents: std::collections::BTreeMap::new(),
            sites: std::collections::BTreeMap::new(),
        };
        let record = batch_record::BatchRecord {
            tasks: Vec::new(),
            active_leases: 0,
            wrong_progress: Vec::new(),
            landmarks: measurements.landmarks.iter().map(|&landmark| names[landmark].clone()).collect(),
            site_measurements: site_measurements.collect(),
            mesh_measurements: measurements
                .mesh
                .iter()
                .map(|&(from, to, millis)| told(from, &names[to], millis))
                .collect(),
            embedding: Some(map),
            trust: batch_record::TrustRecord::default(),
        };
        let by_rank = names.iter().rev().cloned().collect();
        (record, [by_rank, names, sites])
    }

    #[test]
    fn a_clusters_measurements_equal_the_emulated_ones_by_rank() {
        let scenario = Layout::parse(SMALL, "small.toml").unwrap().scenario(Some(6), Some(3)).unwrap();
        let emulated = LayoutMeasurements::emulated(&scenario, 3).unwrap();
        assert_eq!((emulated.landmarks.len(), emulated.mesh.len(), emulated.sites.len()), (3, 30, 3));
        assert!(emulated.sites.iter().all(|site| site.len() == 3), "{emulated:?}");

        let (record, [by_rank, names, sites]) = record(&scenario, &emulated);
        let measurements = LayoutMeasurements::by(&record, &by_rank, &names, &sites).unwrap();
        assert_eq!((&measurements.agents[..], measurements.epoch), (&[5, 4, 3, 2, 1, 0][..], Some(2)));
        assert_eq!(measurements.landmarks, emulated.landmarks.iter().map(|landmark| 5 - landmark).collect::<Vec<_>>());
        let ranked = scenario.ranked(&measurements.agents).unwrap();
        let near = |one: f64, other: f64| (one - other).abs() < 2e-3;
        assert!(measurements.mesh.iter().all(|&(from, to, millis)| near(millis, ranked.mesh[from][to].rtt_ms)));
        for (site, measured) in measurements.sites.iter().enumerate() {
            assert!(
                measured.iter().all(|&(from, millis)| near(millis, ranked.paths[from][site].rtt_ms)),
                "{measured:?}"
            );
        }

        let stranger = ["nobody".to_owned()];
        assert!(LayoutMeasurements::by(&record, &stranger, &names, &sites).is_err());
        assert!(LayoutMeasurements::by(&record, &by_rank[1..], &names, &sites).is_err(), "one has not enrolled");

        let mut doubted = record.clone();
        doubted.trust.quarantined.push(record.landmarks[0].clone());
        let without = LayoutMeasurements::by(&doubted, &by_rank, &names, &sites).unwrap();
        assert_eq!((without.landmarks.len(), without.agents.len(), without.mesh.len()), (2, 6, 25));
        assert!(without.sites.iter().all(|site| site.len() == 2), "{without:?}");

        doubted.trust.alarm = Some("2 of 3 landmarks are doubted".to_owned());
        assert_eq!(LayoutMeasurements::by(&doubted, &by_rank, &names, &sites).unwrap().epoch, None);
        let unmapped = batch_record::BatchRecord { embedding: None, ..record };
        assert!(
            LayoutMeasurements::by(&unmapped, &by_rank, &names, &sites).is_err(),
            "nobody is doubted, and there is no map"
        );
    }
}
