//! Reads the data of one map: its epoch, its agents, and a sample of its sites. Limits the number
//! of marks.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::distance_errors::{self, MapResidual};
use crate::gnp::projection::project;
use crate::model::geo::Position;
use crate::model::{AgentId, EmbeddingEpoch};
use crate::store::agents::{self, AgentPlace, AgentPosition};
use crate::store::reports::map::{self, PlacedSite};
use crate::store::{self, embeddings};
use crate::web::Web;
use crate::web::error::PageError;

/// Maximum number of agents and sites that are drawn. More marks would cover each other and make
/// the page large. At least [`LEAST_SITES`] sites are drawn, even if there are many agents.
const MARKS: usize = 1_500;
const LEAST_SITES: usize = 300;

/// The data from which the map is drawn.
#[derive(Debug, Clone, Default, Serialize)]
pub(in crate::web) struct MapData {
    /// The epoch of the embedding; null before the first embedding.
    pub(super) epoch: Option<i64>,
    /// The epochs that can be shown, in order.
    pub(super) epochs: Vec<i64>,
    pub(super) fitted_at: Option<DateTime<Utc>>,
    pub(super) dimensions: usize,
    /// The share of the coordinates' variance that remains visible in the plane, 0 to 1.
    pub(super) explained: f64,
    pub(super) agents: Vec<MapAgent>,
    pub(super) sites: Vec<MapSite>,
    /// The approximate number of placed sites, over all epochs.
    pub(super) placed_sites: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct MapAgent {
    pub(super) name: String,
    pub(super) city: String,
    pub(super) carrier: String,
    pub(super) landmark: bool,
    /// The coordinates in the plane and the height (the delay of the agent's own access), in
    /// milliseconds.
    pub(super) x_ms: f64,
    pub(super) y_ms: f64,
    pub(super) height_ms: f64,
    /// The median of |ln(predicted / measured)| over the agent's pairs; null without measurements.
    pub(super) median_error: Option<f64>,
    /// The agent's pairs with the largest errors.
    pub(super) worst: Vec<MapResidual>,
    pub(super) latitude: Option<f64>,
    pub(super) longitude: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct MapSite {
    pub(super) name: String,
    pub(super) agent: Option<String>,
    pub(super) x_ms: f64,
    pub(super) y_ms: f64,
    pub(super) latitude: Option<f64>,
    pub(super) longitude: Option<f64>,
}

/// Reads the embedding of an epoch, or the newest one if `epoch` is empty, with a sample
/// of its sites.
pub(in crate::web) async fn read(web: &Web, epoch: &str) -> Result<MapData, PageError> {
    let wanted = match epoch {
        "" => None,
        text => Some(text.parse().map(EmbeddingEpoch::new).map_err(|_| unknown_epoch(text))?),
    };
    // Only one map is read at a time. Requests that wait for this lock hold no database
    // connection.
    let mut known_errors = web.map_errors.lock().await;
    let mut tx = store::begin_snapshot(&web.scheduler.pool).await?;
    let epochs = embeddings::stored_epochs(&mut tx).await?.into_iter().map(EmbeddingEpoch::get).collect();
    let Some(embedding) = embeddings::stored(&mut tx, wanted).await? else {
        return if epoch.is_empty() { Ok(MapData::default()) } else { Err(unknown_epoch(epoch)) };
    };
    let wanted = MARKS.saturating_sub(embedding.agents().len()).max(LEAST_SITES);
    let (sites, placed_sites) =
        map::sites(&mut tx, embedding.epoch(), u32::try_from(wanted).unwrap_or(u32::MAX)).await?;
    let dimensions = embedding.dimensions();
    let sites: Vec<PlacedSite> = sites.into_iter().filter(|site| site.coordinate.len() > dimensions).collect();
    let places =
        embedding.agents().values().map(|place| &place.coordinate).chain(sites.iter().map(|site| &site.coordinate));
    let places: Vec<&[f64]> = places.filter_map(|coordinate| coordinate.get(..dimensions)).collect();
    let (points, explained) = project(&places, dimensions);
    let known: BTreeMap<AgentId, AgentPosition> =
        agents::positions(&mut tx).await?.into_iter().map(|known| (known.agent, known)).collect();
    let homes: BTreeMap<AgentId, AgentPlace> =
        agents::places(&mut tx).await?.into_iter().map(|home| (home.agent, home)).collect();
    let errors = distance_errors::of_epoch(&mut known_errors, &mut tx, &embedding, &known).await?;
    let agents = embedding.agents().iter().zip(&points).map(|((&id, place), [x, y])| {
        let (known, home) = (known.get(&id), homes.get(&id));
        let position = known.and_then(|known| known.position);
        let (median_error, worst) = errors.get(&id).cloned().unwrap_or_default();
        MapAgent {
            name: known.map_or_else(|| format!("agent {id}"), |agent| agent.name.clone()),
            city: home.map(|home| home.city.clone()).unwrap_or_default(),
            carrier: home.map(|home| home.carrier.clone()).unwrap_or_default(),
            landmark: embedding.landmarks().contains(&id),
            x_ms: *x,
            y_ms: *y,
            height_ms: place.coordinate.last().copied().unwrap_or_default(),
            median_error,
            worst,
            latitude: position.map(Position::latitude),
            longitude: position.map(Position::longitude),
        }
    });
    let agents: Vec<MapAgent> = agents.collect();
    let sites = sites.into_iter().zip(points.iter().skip(agents.len())).map(|(site, [x, y])| MapSite {
        name: site.name,
        agent: site.agent,
        x_ms: *x,
        y_ms: *y,
        latitude: site.position.map(|(latitude, _)| latitude),
        longitude: site.position.map(|(_, longitude)| longitude),
    });
    let history = embeddings::history(&mut tx, 1_000).await?;
    let fitted_at = history.iter().find(|line| line.epoch == embedding.epoch()).map(|line| line.fitted_at);
    Ok(MapData {
        epoch: Some(embedding.epoch().get()),
        epochs,
        fitted_at,
        dimensions,
        explained,
        sites: sites.collect(),
        agents,
        placed_sites,
    })
}

fn unknown_epoch(epoch: &str) -> PageError {
    tonic::Status::not_found(format!("no map of epoch '{epoch}' is stored")).into()
}
