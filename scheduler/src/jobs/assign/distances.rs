//! The known and predicted distances from every agent to the sites of one pass. A pass that assigns
//! or rebalances tasks reads the distances once.
//!
//! A measured round trip takes precedence over a predicted one. Implausible claims are rejected
//! (see `gnp::trust::believed`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::Context;

use crate::config::Draws;
use crate::gnp::{Placement, PredictedRtt, SitePlace, SuspectedSite};
use crate::model::geo::Position;
use crate::model::{AgentId, Rtt, SiteId};
use crate::store::assignments::agents_and_loads::AvailableAgent;
use crate::store::assignments::past_crawls_and_site_facts::{self, CrawledSite};
use crate::store::embeddings::placements;
use crate::store::sites::positions_and_verdicts;
use crate::store::{self, agents, measurements};
use crate::strategy::learned_distances::{CrawlObservation, LearnedCorrections, measured_by_crawls, teach};
use crate::strategy::similar_sites::SimilarCrawls;
use crate::strategy::{Candidate, Spread};

use crate::jobs::refined_map::{CurrentMap, MapCache};

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

impl Known {
    /// Reads the measured distances of these sites, and predicts the other distances.
    pub(super) async fn read(
        conn: &mut sqlx::PgConnection,
        maps: &MapCache,
        sites: &[SiteId],
        agents: &[AvailableAgent],
        map: Option<Arc<CurrentMap>>,
    ) -> anyhow::Result<Self> {
        let measured = measurements::of_sites(conn, sites).await.context("read the sites' measurements")?;
        let suspicions = positions_and_verdicts::suspicions(conn, sites).await.context("read suspicions")?;
        let mut crawled = past_crawls_and_site_facts::crawled(conn, sites).await.context("read the sites' crawls")?;
        // If a site has several locations, a crawl shows only the distance to the location that
        // served it.
        crawled.retain(|site, _| !suspicions.contains_key(site));
        let residuals = maps.residuals(conn).await?;
        let Some(map) = map else {
            return Ok(Self {
                predicted: HashMap::new(),
                measured,
                suspicions,
                crawled,
                residuals,
                near: HashMap::new(),
            });
        };
        let placed =
            placements::sites(conn, sites, map.embedding.epoch()).await.context("read the sites' placements")?;
        // A site with several locations may really be near every agent, so claims about the site
        // are not checked.
        let claimed: Vec<SiteId> = measured
            .iter()
            .filter(|(site, measured)| !suspicions.contains_key(site) && map.has_claims(measured))
            .map(|(site, _)| *site)
            .collect();
        let any = !claimed.is_empty() || crawled.values().any(|crawled| !crawled.crawls.is_empty());
        let positions = if any { positions(conn).await? } else { BTreeMap::new() };
        let agents: Vec<AgentId> = agents.iter().map(|available| available.agent).collect();
        // The computation takes half a millisecond per site, too long for a thread of the async
        // runtime.
        let taught = Arc::clone(&residuals);
        let predicting = tokio::task::spawn_blocking(move || {
            let (mut measured, mut crawled) = (measured, crawled);
            for (site, of_it) in &mut crawled {
                let measured = measured.get(site).map_or(&[][..], Vec::as_slice);
                of_it.crawls = believed_crawls(&map, &positions, &taught, measured, &of_it.crawls);
            }
            for site in claimed {
                measured.entry(site).and_modify(|of_it| *of_it = map.believed(&positions, of_it));
            }
            let near = |site: &SiteId| {
                let network = crawled.get(site).and_then(|crawled| crawled.network);
                (*site, taught.near(network, measured.get(site).map_or(&[][..], Vec::as_slice)))
            };
            let near: HashMap<SiteId, SimilarCrawls> = placed.keys().map(near).collect();
            let predict = |(site, placement)| {
                let measured = measured.get(&site).map_or(&[][..], Vec::as_slice);
                let crawls = crawled.get(&site).map_or(&[][..], |crawled| crawled.crawls.as_slice());
                let placed_by = [measured, &measured_by_crawls(&taught, measured, crawls)].concat();
                (site, predict(&map, placement, &placed_by, &agents))
            };
            let predicted: HashMap<_, _> = placed.into_iter().map(predict).collect();
            (predicted, measured, crawled, near)
        });
        let (predicted, measured, crawled, near) =
            store::keep_open(conn, predicting).await?.context("predict distances")?;
        Ok(Self { predicted, measured, suspicions, crawled, residuals, near })
    }

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

/// The positions of the agents that reported a position.
async fn positions(conn: &mut sqlx::PgConnection) -> anyhow::Result<BTreeMap<AgentId, Position>> {
    let fleet = agents::places(conn).await.context("read the agents' positions")?;
    Ok(fleet.into_iter().filter_map(|(agent, place)| Some((agent, place.position?))).collect())
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
