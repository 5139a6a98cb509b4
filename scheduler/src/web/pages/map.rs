//! The page of the map: reads an epoch's agents and a sample of its sites, and draws the embedding
//! in a plane or the known positions on the globe, with the controls and the caption.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use serde::Serialize;

use super::map_errors::{AgentErrors, EpochErrors, MapResidual};
use crate::cli::output::number;
use crate::gnp::{Embedding, project};
use crate::model::geo::Position;
use crate::model::stats::count;
use crate::model::{AgentId, EmbeddingEpoch};
use crate::plot::map::{AgentMark, Groups, Plane, SiteMark, draw};
use crate::store::agents::{self, AgentPlace};
use crate::store::embeddings::{self, Epoch};
use crate::store::measurements;
use crate::store::reports::capacity_and_map::{self, PlacedSite};
use crate::web::Web;
use crate::web::page_layout::{self, Page, PageError, float, section};

pub(in crate::web) async fn page(web: &Web, epoch: &str, globe: bool) -> Result<Page, PageError> {
    let map = read(web, epoch).await?;
    let plane = if globe { Plane::Globe } else { Plane::Network };
    let live = html! {
        @match map.epoch {
            None => (section("No map yet", &html! { p { "The map is fitted when enough agents have measured each other: " code { "landfall status" } } })),
            Some(_) => {
                (controls(&map, globe))
                (section(if globe { "By known position" } else { "By network distance" }, &figure(&map, plane)))
            }
        }
    };
    Ok(Page { title: "Map".to_owned(), section: "/map", actions: html! {}, live })
}

/// The controls for the epoch and the view. They also work without scripts.
fn controls(map: &MapData, globe: bool) -> Markup {
    let epoch = map.epoch.unwrap_or_default();
    let at = map.epochs.iter().position(|known| *known == epoch).unwrap_or_default();
    let last = map.epochs.len().saturating_sub(1);
    let other = if globe { "" } else { "&view=globe" };
    html! {
        div.controls {
            form action="/map" data-epochs=(map.epochs.iter().map(i64::to_string).collect::<Vec<_>>().join(" ")) {
                label for="epoch" { "Epoch " output { (epoch) } }
                input id="epoch" type="range" min="0" max=(last) value=(at) disabled[last == 0];
                noscript { @for epoch in &map.epochs { a href={ "/map?epoch=" (epoch) } { (epoch) } " " } }
                @if globe { input type="hidden" name="view" value="globe"; }
            }
            a href={ "/map?epoch=" (epoch) (other) } { (if globe { "By network distance" } else { "By known position" }) }
            @if let Some(fitted_at) = map.fitted_at { span.soft { "fitted " (fitted_at.format("%Y-%m-%d %H:%M UTC")) } }
        }
    }
}

/// Groups agents by city and carrier. Each group has one colour.
fn groups(map: &MapData) -> Groups {
    let mut sites: BTreeMap<&str, usize> = BTreeMap::new();
    for agent in map.sites.iter().filter_map(|site| site.agent.as_deref()) {
        *sites.entry(agent).or_default() += 1;
    }
    Groups::of(map.agents.iter().map(|agent| {
        let group = match (agent.city.as_str(), agent.carrier.as_str()) {
            ("", "") => agent.name.clone(),
            (city, carrier) => format!("{city} {carrier}"),
        };
        (agent.name.clone(), group, sites.get(agent.name.as_str()).copied().unwrap_or_default())
    }))
}

fn figure(map: &MapData, plane: Plane) -> Markup {
    let at = |near: [f64; 2], (north, east): (Option<f64>, Option<f64>)| match plane {
        Plane::Network => Some(near),
        Plane::Globe => Some([east?, north?]),
    };
    let agents = map.agents.iter().filter_map(|agent| {
        let at = at([agent.x_ms, agent.y_ms], (agent.latitude, agent.longitude))?;
        let href = Some(page_layout::path("/agents/", &agent.name));
        Some(AgentMark { name: &agent.name, at, landmark: agent.landmark, tooltip: tooltip(agent), href })
    });
    let sites = map.sites.iter().filter_map(|site| {
        let at = at([site.x_ms, site.y_ms], (site.latitude, site.longitude))?;
        let by = site.agent.as_deref().map_or_else(|| "no agent yet".to_owned(), |agent| format!("agent {agent}"));
        Some(SiteMark { at, agent: site.agent.as_deref(), tooltip: format!("{}, {by}", site.name) })
    });
    let (agents, sites): (Vec<AgentMark<'_>>, Vec<SiteMark<'_>>) = (agents.collect(), sites.collect());
    if agents.is_empty() && sites.is_empty() {
        return html! { p {
            "No position is known: give agents one with " code { "landfall agents enrol --latitude N --longitude E" }
            ", and sites in the list."
        } };
    }
    let groups = groups(map);
    let (drawing, outside) = draw(plane, false, &agents, &sites, &groups);
    html! { figure tabindex="0" role="region" aria-label="Map" {
        figcaption { (caption(map, plane, sites.len(), outside)) }
        (drawing)
        (groups.legend())
    } }
}

fn caption(map: &MapData, plane: Plane, drawn: usize, outside: usize) -> Markup {
    html! {
        "Large dots are agents, ringed ones landmarks; small dots are sites, in the colour of their agent. "
        @if float(map.placed_sites) > count(drawn) * 1.05 { "A sample: " (drawn) " of about " (number(map.placed_sites)) " placed sites. " }
        @if plane == Plane::Globe { "Sites and agents without a known position are left out." }
        @else {
            "The plane shows " (format!("{:.0} %", map.explained * 100.0)) " of the variance of " (map.dimensions)
            " dimensions; access delays are not drawn. Point at an agent to see its errors and its sites."
        }
        @if outside > 0 { " Marks beyond the frame are drawn on its edge: " (outside) "." }
    }
}

/// The text of an agent's tooltip: its name, place and errors, in several lines.
fn tooltip(agent: &MapAgent) -> String {
    let landmark = if agent.landmark { ", landmark" } else { "" };
    let mut text =
        format!("{} ({}, {}){landmark}\naccess delay {:.1} ms", agent.name, agent.city, agent.carrier, agent.height_ms);
    if let Some(error) = agent.median_error {
        text.push_str(&format!("\nmedian error {:.1} %", error.exp_m1() * 100.0));
    }
    for worst in &agent.worst {
        text.push_str(&format!(
            "\nto {}: measured {:.1} ms, predicted {:.1} ms",
            worst.agent, worst.measured_ms, worst.predicted_ms
        ));
    }
    text
}

/// Maximum number of agents and sites that are drawn. More marks would cover each other and make
/// the page large. At least [`LEAST_SITES`] sites are drawn, even if there are many agents.
const MARKS: usize = 1_500;
const LEAST_SITES: usize = 300;

/// The data from which the map is drawn.
#[derive(Debug, Clone, Default, Serialize)]
pub(in crate::web) struct MapData {
    /// The epoch of the embedding; null before the first embedding.
    epoch: Option<i64>,
    /// The epochs that can be shown, in order.
    epochs: Vec<i64>,
    fitted_at: Option<DateTime<Utc>>,
    dimensions: usize,
    /// The share of the coordinates' variance that remains visible in the plane, 0 to 1.
    explained: f64,
    agents: Vec<MapAgent>,
    sites: Vec<MapSite>,
    /// The approximate number of placed sites, over all epochs.
    placed_sites: u64,
}

#[derive(Debug, Clone, Serialize)]
struct MapAgent {
    name: String,
    city: String,
    carrier: String,
    landmark: bool,
    /// The coordinates in the plane and the height (the delay of the agent's own access), in
    /// milliseconds.
    x_ms: f64,
    y_ms: f64,
    height_ms: f64,
    /// The median of |ln(predicted / measured)| over the agent's pairs; null without measurements.
    median_error: Option<f64>,
    /// The agent's pairs with the largest errors.
    worst: Vec<MapResidual>,
    latitude: Option<f64>,
    longitude: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
struct MapSite {
    name: String,
    agent: Option<String>,
    x_ms: f64,
    y_ms: f64,
    latitude: Option<f64>,
    longitude: Option<f64>,
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
    let mut tx = web.scheduler.operators.snapshot("draw the map").await?;
    let epochs = embeddings::stored_epochs(&mut tx).await?.into_iter().map(EmbeddingEpoch::get).collect();
    let Some(embedding) = embeddings::stored(&mut tx, wanted).await? else {
        return if epoch.is_empty() { Ok(MapData::default()) } else { Err(unknown_epoch(epoch)) };
    };
    let wanted = MARKS.saturating_sub(embedding.agents().len()).max(LEAST_SITES);
    let (sites, placed_sites) =
        capacity_and_map::placed_sites(&mut tx, embedding.epoch(), u32::try_from(wanted).unwrap_or(u32::MAX)).await?;
    let known = agents::places(&mut tx).await?;
    let history = embeddings::history(&mut tx, 1_000).await?;
    let mesh = match known_errors.as_ref().is_some_and(|errors| errors.is_fresh(embedding.epoch())) {
        true => None,
        false => Some(measurements::mesh(&mut tx).await?),
    };
    drop(tx);
    let read = MapInput { epochs, embedding, sites, placed_sites, known, history };
    let former = known_errors.take();
    // Errors of many agents take too long for a thread of the async runtime.
    let computed = tokio::task::spawn_blocking(move || {
        let errors = match (mesh, former) {
            (None, Some(errors)) => errors,
            (mesh, _) => {
                let mesh = mesh.into_iter().flatten().collect();
                EpochErrors::compute(&mesh, &read.embedding, &read.known)
            }
        };
        (read.drawn(&errors.errors), errors)
    });
    let (data, errors) = computed.await.map_err(|_| tonic::Status::unavailable("the map was not drawn: try again"))?;
    *known_errors = Some(errors);
    Ok(data)
}

/// What is read of the database to draw a map.
struct MapInput {
    epochs: Vec<i64>,
    embedding: Embedding,
    sites: Vec<PlacedSite>,
    placed_sites: u64,
    known: BTreeMap<AgentId, AgentPlace>,
    history: Vec<Epoch>,
}

impl MapInput {
    fn drawn(self, errors: &AgentErrors) -> MapData {
        let Self { epochs, embedding, sites, placed_sites, known, history } = self;
        let dimensions = embedding.dimensions();
        let sites: Vec<PlacedSite> = sites.into_iter().filter(|site| site.coordinate.len() > dimensions).collect();
        let places =
            embedding.agents().values().map(|place| &place.coordinate).chain(sites.iter().map(|site| &site.coordinate));
        let places: Vec<&[f64]> = places.filter_map(|coordinate| coordinate.get(..dimensions)).collect();
        let (points, explained) = project(&places, dimensions);
        let agents = embedding.agents().iter().zip(&points).map(|((&id, place), [x, y])| {
            let known = known.get(&id);
            let position = known.and_then(|known| known.position);
            let (median_error, worst) = errors.get(&id).cloned().unwrap_or_default();
            MapAgent {
                name: known.map_or_else(|| format!("agent {id}"), |agent| agent.name.clone()),
                city: known.map(|agent| agent.city.clone()).unwrap_or_default(),
                carrier: known.map(|agent| agent.carrier.clone()).unwrap_or_default(),
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
        let fitted_at = history.iter().find(|line| line.epoch == embedding.epoch()).map(|line| line.fitted_at);
        MapData {
            epoch: Some(embedding.epoch().get()),
            epochs,
            fitted_at,
            dimensions,
            explained,
            sites: sites.collect(),
            agents,
            placed_sites,
        }
    }
}

fn unknown_epoch(epoch: &str) -> PageError {
    tonic::Status::not_found(format!("no map of epoch '{epoch}' is stored")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_drawn_by_distance_and_by_position_where_it_is_known() {
        let agent = |name: &str, city: &str| MapAgent {
            name: name.to_owned(),
            city: city.to_owned(),
            carrier: "C".to_owned(),
            landmark: true,
            x_ms: 1.0,
            y_ms: 2.0,
            height_ms: 1.5,
            median_error: Some(0.05),
            worst: Vec::new(),
            latitude: None,
            longitude: None,
        };
        let (name, agent_name) = ("a.example".to_owned(), Some("b".to_owned()));
        let site = MapSite { name, agent: agent_name, x_ms: 9.0, y_ms: 3.0, latitude: None, longitude: None };
        let mut map = MapData {
            epoch: Some(3),
            epochs: vec![2, 3],
            agents: vec![agent("a", "A"), agent("b", "B")],
            sites: vec![site],
            placed_sites: 70,
            ..MapData::default()
        };
        let drawn = figure(&map, Plane::Network).into_string();
        assert!(drawn.contains("a.example, agent b") && drawn.contains("1 of about 70 placed sites"), "{drawn}");
        assert!(drawn.contains("median error 5.1 %"), "{drawn}");
        assert!(figure(&map, Plane::Globe).into_string().contains("No position is known"));
        (map.agents[0].latitude, map.agents[0].longitude) = (Some(45.8), Some(126.5));
        let globe = figure(&map, Plane::Globe).into_string();
        assert!(globe.contains("href=\"/agents/a\"") && !globe.contains("/agents/b"), "{globe}");
        assert!(controls(&map, false).into_string().contains("data-epochs=\"2 3\""));
    }
}
