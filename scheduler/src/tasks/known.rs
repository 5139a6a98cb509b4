//! What is known of the way from every agent to the sites of one pass: gathered once, for choosing and for passing on.
//!
//! A measured round trip beats a predicted one, and claims that cannot be true are not believed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::Context;

use crate::gnp::{Place, Placement, Position, Predicted};
use crate::model::{AgentId, Rtt, SiteId};
use crate::store::loads::Available;
use crate::store::verdicts::Suspicion;
use crate::store::{agents, measurements, placements, verdicts};
use crate::strategy::Candidate;

use super::claims;
use super::refined::Current;

/// What is known of the sites of one pass.
pub(super) struct Known {
    /// Per site on the map, what it predicts for each agent.
    predicted: HashMap<SiteId, HashMap<AgentId, Predicted>>,
    measured: HashMap<SiteId, Vec<(AgentId, Rtt)>>,
    /// Sites that probably stand in several places.
    pub(super) suspicions: HashMap<SiteId, Suspicion>,
}

impl Known {
    /// Reads what is known of these sites, and predicts the rest.
    pub(super) async fn read(
        conn: &mut sqlx::PgConnection,
        sites: &[SiteId],
        agents: &[Available],
        map: Option<Arc<Current>>,
    ) -> anyhow::Result<Self> {
        let measured = measurements::of_sites(conn, sites).await.context("read the sites' measurements")?;
        let suspicions = verdicts::suspicions(conn, sites).await.context("read suspicions")?;
        let Some(map) = map else { return Ok(Self { predicted: HashMap::new(), measured, suspicions }) };
        let placed =
            placements::sites(conn, sites, map.embedding.epoch()).await.context("read the sites' placements")?;
        // A site in several places may be next to everybody.
        let claimed: Vec<SiteId> = measured
            .iter()
            .filter(|(site, measured)| !suspicions.contains_key(site) && claims::are_among(&map, measured))
            .map(|(site, _)| *site)
            .collect();
        let positions = if claimed.is_empty() { BTreeMap::new() } else { positions(conn).await? };
        let agents: Vec<AgentId> = agents.iter().map(|available| available.agent).collect();
        // Half a millisecond a site: too long for a thread that serves others.
        let (predicted, measured) = tokio::task::spawn_blocking(move || {
            let mut measured = measured;
            for site in claimed {
                measured.entry(site).and_modify(|of_it| *of_it = claims::believed(&map, &positions, of_it));
            }
            let predict = |(site, placement)| {
                let measured = measured.get(&site).map_or(&[][..], Vec::as_slice);
                (site, predict(&map, placement, measured, &agents))
            };
            let predicted: HashMap<_, _> = placed.into_iter().map(predict).collect();
            (predicted, measured)
        })
        .await
        .context("predict distances")?;
        Ok(Self { predicted, measured, suspicions })
    }

    /// The agents as candidates for one of the sites.
    pub(super) fn candidates(&self, site: SiteId, agents: &[Available]) -> Vec<Candidate> {
        let measured = self.measured.get(&site).map_or(&[][..], Vec::as_slice);
        let predicted = self.predicted.get(&site);
        agents
            .iter()
            .map(|available| {
                let predicted = predicted.and_then(|predicted| predicted.get(&available.agent));
                Candidate {
                    agent: available.agent,
                    predicted: predicted.map(|predicted| predicted.rtt),
                    expected: predicted.and_then(|predicted| predicted.expected),
                    measured: measured.iter().find(|(prober, _)| *prober == available.agent).map(|(_, rtt)| *rtt),
                    load: available.load,
                    capacity: available.capacity,
                    pace: available.pace,
                }
            })
            .collect()
    }
}

/// Where agents are, as far as they say so.
async fn positions(conn: &mut sqlx::PgConnection) -> anyhow::Result<BTreeMap<AgentId, Position>> {
    let fleet = agents::list(conn).await.context("read the agents")?;
    Ok(fleet.into_iter().filter_map(|agent| Some((agent.id, agent.position?))).collect())
}

/// What the map says of one placed site: the refined one where there is one, else its point.
fn predict(
    map: &Current,
    placement: Placement,
    measured: &[(AgentId, Rtt)],
    agents: &[AgentId],
) -> HashMap<AgentId, Predicted> {
    let cloud = map.refined.as_ref().and_then(|refined| refined.locate(measured).ok());
    let place = cloud.map_or_else(|| Place::Point(&map.embedding, placement), Place::Cloud);
    agents.iter().filter_map(|&agent| Some((agent, place.predict(agent)?))).collect()
}
