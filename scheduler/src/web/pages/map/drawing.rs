//! Draws the page of the map: the controls, the embedding in a plane or the known positions on the
//! globe, and the caption.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::cli::output::number;
use crate::model::stats::count;
use crate::plot::map::{AgentMark, Groups, Plane, SiteMark, draw};
use crate::web::Web;
use crate::web::elements::{self, float, section};
use crate::web::error::PageError;
use crate::web::page_frame::Page;

use super::data::{MapAgent, MapData, read};

pub(in crate::web::pages) async fn page(web: &Web, epoch: &str, globe: bool) -> Result<Page, PageError> {
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
        let href = Some(elements::path("/agents/", &agent.name));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::pages::map::data::MapSite;

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
