//! The known and predicted distances from every agent to the sites of one pass. A pass that assigns
//! or rebalances tasks reads the distances once.
//!
//! A measured round trip takes precedence over a predicted one. Implausible claims are rejected
//! (see `gnp::trust::believed`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::config::Draws;
use crate::gnp::{Placement, PredictedRtt, SitePlace, SuspectedSite};
use crate::model::geo::Position;
use crate::model::{AgentId, Rtt, SiteId};
use crate::store::assignments::agents_and_loads::AvailableAgent;
use crate::store::assignments::past_crawls_and_site_facts::{self, CrawledSite};
use crate::store::embeddings::placements;
use crate::store::sites::positions_and_verdicts;
use crate::store::{Tx, agents, measurements};
use crate::strategy::learned_distances::{CrawlObservation, LearnedCorrections, measured_by_crawls, teach};
use crate::strategy::similar_sites::SimilarCrawls;
use crate::strategy::{Candidate, Spread};

use crate::jobs::predictor::Predictor;
use crate::jobs::refined_map::CurrentMap;

pub(super) struct Known {
    /// Per site on the map, the prediction for each agent, in the order of the agents.
    predicted: HashMap<SiteId, Vec<Option<PredictedRtt>>>,
    measured: HashMap<SiteId, Vec<(AgentId, Rtt)>>,
    pub(super) suspicions: HashMap<SiteId, SuspectedSite>,
    /// The newest crawls of each site.
    crawled: HashMap<SiteId, CrawledSite>,
    /// Corrections of predictions, learned from the agents' crawl residuals.
    residuals: Arc<LearnedCorrections>,
    /// For each site on the map, the crawls of similar sites, which help to predict its round
    /// trips.
    near: HashMap<SiteId, SimilarCrawls>,
}

/// What the distances of some sites are computed from.
pub(super) struct DistanceInput {
    predictor: Predictor,
    agents: Vec<AgentId>,
    measured: HashMap<SiteId, Vec<(AgentId, Rtt)>>,
    pub(super) suspicions: HashMap<SiteId, SuspectedSite>,
    crawled: HashMap<SiteId, CrawledSite>,
    /// The sites on the map.
    placed: HashMap<SiteId, Placement>,
    /// The positions of the agents that reported a position; empty if no claim is checked.
    positions: BTreeMap<AgentId, Position>,
    /// Sites with claims to check.
    claimed: Vec<SiteId>,
}

impl DistanceInput {
    /// Reads what is known of the distances of these sites.
    pub(super) async fn read(
        tx: &mut Tx<'_>,
        predictor: &Predictor,
        sites: &[SiteId],
        agents: &[AvailableAgent],
    ) -> anyhow::Result<Self> {
        let measured = measurements::of_sites(tx, sites).await?;
        let suspicions = positions_and_verdicts::suspicions(tx, sites).await?;
        let mut crawled = past_crawls_and_site_facts::crawled(tx, sites).await?;
        // If a site has several locations, a crawl shows only the distance to the location that
        // served it.
        crawled.retain(|site, _| !suspicions.contains_key(site));
        let mut input = Self {
            predictor: predictor.clone(),
            agents: agents.iter().map(|available| available.agent).collect(),
            measured,
            suspicions,
            crawled,
            placed: HashMap::new(),
            positions: BTreeMap::new(),
            claimed: Vec::new(),
        };
        let Some(map) = &predictor.map else { return Ok(input) };
        input.placed = placements::sites(tx, sites, map.embedding.epoch()).await?;
        // A site with several locations may really be near every agent, so claims about the site
        // are not checked.
        let claimed =
            |(site, measured): &(&SiteId, &Vec<_>)| !input.suspicions.contains_key(*site) && map.has_claims(measured);
        input.claimed = input.measured.iter().filter(claimed).map(|(site, _)| *site).collect();
        if !input.claimed.is_empty() || input.crawled.values().any(|crawled| !crawled.crawls.is_empty()) {
            let fleet = agents::places(tx).await?;
            input.positions = fleet.into_iter().filter_map(|(agent, place)| Some((agent, place.position?))).collect();
        }
        Ok(input)
    }

    /// Predicts the distances that are not measured. Takes half a millisecond per site, too long
    /// for a thread of the async runtime and for an open transaction.
    pub(super) fn predict(self) -> Known {
        let Self { predictor, agents, mut measured, suspicions, mut crawled, placed, positions, claimed } = self;
        let Predictor { map, residuals } = predictor;
        let Some(map) = map else {
            let (predicted, near) = (HashMap::new(), HashMap::new());
            return Known { predicted, measured, suspicions, crawled, residuals, near };
        };
        for (site, of_it) in &mut crawled {
            let measured = measured.get(site).map_or(&[][..], Vec::as_slice);
            of_it.crawls = believed_crawls(&map, &positions, &residuals, measured, &of_it.crawls);
        }
        for site in claimed {
            measured.entry(site).and_modify(|of_it| *of_it = map.believed(&positions, of_it));
        }
        let near = |site: &SiteId| {
            let network = crawled.get(site).and_then(|crawled| crawled.network);
            (*site, residuals.near(network, measured.get(site).map_or(&[][..], Vec::as_slice)))
        };
        let near: HashMap<SiteId, SimilarCrawls> = placed.keys().map(near).collect();
        let predict = |(site, placement)| {
            let measured = measured.get(&site).map_or(&[][..], Vec::as_slice);
            let crawls = crawled.get(&site).map_or(&[][..], |crawled| crawled.crawls.as_slice());
            let placed_by = [measured, &measured_by_crawls(&residuals, measured, crawls)].concat();
            (site, predict(&map, placement, &placed_by, &agents))
        };
        let predicted = placed.into_iter().map(predict).collect();
        Known { predicted, measured, suspicions, crawled, residuals, near }
    }
}

impl Known {
    /// The number of stored crawls of a site.
    pub(super) fn crawls(&self, site: SiteId) -> usize {
        self.crawled.get(&site).map_or(0, |crawled| crawled.crawls.len())
    }

    /// The agents as candidates for a site. With [`Draws::Static`], the candidates have no load and
    /// no corrections learned from crawls.
    pub(super) fn candidates(&self, site: SiteId, agents: &[AvailableAgent], draws: Draws) -> Vec<Candidate> {
        let measured = self.measured.get(&site).map_or(&[][..], Vec::as_slice);
        let predicted = self.predicted.get(&site);
        let mut candidates: Vec<Candidate> = agents
            .iter()
            .enumerate()
            .map(|(place, available)| {
                let predicted = predicted.and_then(|predicted| predicted.get(place).copied().flatten());
                Candidate {
                    predicted: predicted.map(|predicted| predicted.rtt),
                    expected: predicted.and_then(|predicted| predicted.expected),
                    measured: measured.iter().find(|(prober, _)| *prober == available.agent).map(|(_, rtt)| *rtt),
                    spread: predicted.and_then(|predicted| predicted.spread).map(Spread::new),
                    load: if draws == Draws::Static { 0 } else { available.load },
                    pace: available.pace,
                    home: available.home,
                    ..Candidate::new(available.agent, available.capacity)
                }
            })
            .collect();
        if draws == Draws::Balanced && !self.suspicions.contains_key(&site) {
            let crawled = self.crawled.get(&site);
            let own = crawled.map_or(&[][..], |crawled| &crawled.crawls);
            let nothing = SimilarCrawls::default();
            teach(&mut candidates, &self.residuals, self.near.get(&site).unwrap_or(&nothing), own);
        }
        candidates
    }
}

/// The crawls of a site, without those whose round trips are rejected. A round trip that a
/// non-landmark agent observed in a crawl is checked like a claim.
fn believed_crawls(
    map: &CurrentMap,
    positions: &BTreeMap<AgentId, Position>,
    residuals: &LearnedCorrections,
    measured: &[(AgentId, Rtt)],
    crawls: &[CrawlObservation],
) -> Vec<CrawlObservation> {
    let by_landmark = |crawl: &CrawlObservation| map.embedding.landmarks().contains(&crawl.agent);
    let said = |crawl: &CrawlObservation| (crawl.agent, residuals.probed(crawl.rtt));
    let claimed = crawls.iter().filter(|crawl| !by_landmark(crawl)).map(said);
    let all: Vec<(AgentId, Rtt)> = measured.iter().copied().chain(claimed).collect();
    let believed = map.believed(positions, &all);
    crawls.iter().filter(|crawl| by_landmark(crawl) || believed.contains(&said(crawl))).copied().collect()
}

/// The prediction for one placed site: by the refined map if there is one, otherwise by the site's
/// placement.
fn predict(
    map: &CurrentMap,
    placement: Placement,
    measured: &[(AgentId, Rtt)],
    agents: &[AgentId],
) -> Vec<Option<PredictedRtt>> {
    let cloud = map.refined.as_ref().and_then(|refined| refined.locate(measured).ok());
    let place = cloud.map_or_else(|| SitePlace::Point(&map.embedding, placement), SitePlace::Cloud);
    agents.iter().map(|&agent| place.predict(agent)).collect()
}
