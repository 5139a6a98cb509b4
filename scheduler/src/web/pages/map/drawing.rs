//! Draws the map as SVG. Sites have the colour of their agent's group; the groups with the most
//! sites have colours of their own.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::cli::output::number;
use crate::gnp::plane::Frame;
use crate::web::layout::{self, float};

use super::{MapAgent, MapData};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 620.0;
const MARGIN: f64 = 40.0;
/// Number of groups with a colour of their own; the style sheet has the colours.
const COLOURS: usize = 9;
/// Height of a line of text, width of a letter, and distance of a name from its mark.
const LINE: f64 = 13.0;
const LETTER: f64 = 6.6;
const BESIDE: f64 = 13.0;
/// Interval of the lines of latitude and longitude, in degrees.
const DEGREES: usize = 15;

/// The choice of the epoch and of the view; works without a script.
pub(super) fn controls(map: &MapData, globe: bool) -> Markup {
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

/// The rank of each group of agents by sites, and the groups' names in this order.
struct Groups<'a> {
    of_agent: BTreeMap<&'a str, usize>,
    names: Vec<String>,
}

impl<'a> Groups<'a> {
    fn of(map: &'a MapData) -> Self {
        let group = |agent: &MapAgent| match (agent.city.as_str(), agent.carrier.as_str()) {
            ("", "") => agent.name.clone(),
            (city, carrier) => format!("{city} {carrier}"),
        };
        let mut sites: BTreeMap<&str, usize> = BTreeMap::new();
        for agent in map.sites.iter().filter_map(|site| site.agent.as_deref()) {
            *sites.entry(agent).or_default() += 1;
        }
        let mut groups: BTreeMap<String, usize> = BTreeMap::new();
        for agent in &map.agents {
            *groups.entry(group(agent)).or_default() += sites.get(agent.name.as_str()).copied().unwrap_or_default();
        }
        let mut names: Vec<(String, usize)> = groups.into_iter().collect();
        names.sort_by_key(|(_, sites)| std::cmp::Reverse(*sites));
        let names: Vec<String> = names.into_iter().map(|(name, _)| name).collect();
        let rank = |agent: &MapAgent| names.iter().position(|name| *name == group(agent)).unwrap_or(usize::MAX);
        let of_agent = map.agents.iter().map(|agent| (agent.name.as_str(), rank(agent))).collect();
        Self { of_agent, names }
    }

    /// The class that gives a mark its colour.
    fn class(&self, agent: Option<&str>) -> String {
        match agent.and_then(|agent| self.of_agent.get(agent)) {
            Some(rank) if *rank < COLOURS => format!("f{rank}"),
            _ => "fx".to_owned(),
        }
    }

    fn legend(&self) -> Markup {
        let others = self.names.len().saturating_sub(COLOURS);
        html! { ul.legend {
            @for (rank, name) in self.names.iter().take(COLOURS).enumerate() { li { (key(&format!("f{rank}"))) (name) } }
            @if others > 0 { li { (key("fx")) (others) " others, or no agent" } }
        } }
    }
}

fn key(class: &str) -> Markup {
    html! { svg.dot viewBox="0 0 10 10" aria-hidden="true" { circle class=(class) cx="5" cy="5" r="5" {} } }
}

fn px(value: f64) -> String {
    format!("{value:.1}")
}

pub(super) fn figure(map: &MapData, globe: bool) -> Markup {
    let place = |plane: [f64; 2], position: Option<[f64; 2]>| if globe { position } else { Some(plane) };
    let position =
        |latitude: Option<f64>, longitude: Option<f64>| latitude.zip(longitude).map(|(north, east)| [east, north]);
    let agents: Vec<Option<[f64; 2]>> = map
        .agents
        .iter()
        .map(|agent| place([agent.x_ms, agent.y_ms], position(agent.latitude, agent.longitude)))
        .collect();
    let sites: Vec<Option<[f64; 2]>> =
        map.sites.iter().map(|site| place([site.x_ms, site.y_ms], position(site.latitude, site.longitude))).collect();
    let points: Vec<[f64; 2]> = agents.iter().chain(&sites).flatten().copied().collect();
    if points.is_empty() {
        return html! { p { "No position is known: give agents one with " code { "landfall agents enrol --latitude N --longitude E" } ", and sites in the list." } };
    }
    let frame = Frame::around(&points, [WIDTH, HEIGHT], MARGIN);
    let groups = Groups::of(map);
    let drawn = sites.iter().flatten().count();
    let placed = map.agents.iter().zip(&agents).filter_map(|(agent, point)| Some((agent, frame.place((*point)?).0)));
    let labels = labels(placed.collect());
    html! { figure tabindex="0" role="region" aria-label="Map" {
        figcaption { (caption(map, globe, drawn)) }
        svg.map viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="group" aria-label={ "Map with " (map.agents.len()) " agents and " (drawn) " sites" } {
            @if globe { (graticule(&frame)) }
            @for (site, point) in map.sites.iter().zip(&sites) { @if let Some(point) = point {
                @let ([x, y], _) = frame.place(*point);
                circle class={ "site " (groups.class(site.agent.as_deref())) } data-agent=[site.agent.as_deref()] cx=(px(x)) cy=(px(y)) r="3" {
                    title { (site.name) @match &site.agent { Some(agent) => { ", agent " (agent) }, None => { ", no agent yet" } } }
                }
            } }
            @for (agent, point) in map.agents.iter().zip(&agents) { @if let Some(point) = point {
                @let ([x, y], _) = frame.place(*point);
                (mark(agent, &groups, [x, y], labels.get(agent.name.as_str())))
            } }
            @if !globe { (scale_bar(frame.scale)) }
        }
        (groups.legend())
    } }
}

fn caption(map: &MapData, globe: bool, drawn: usize) -> Markup {
    html! {
        "Large dots are agents, ringed ones landmarks; small dots are sites, in the colour of their agent. "
        @if float(map.placed_sites) > crate::model::stats::count(drawn) * 1.05 { "A sample: " (drawn) " of about " (number(map.placed_sites)) " placed sites. " }
        @if globe { "Sites and agents without a known position are left out." }
        @else {
            "The plane shows " (format!("{:.0} %", map.explained * 100.0)) " of the variance of " (map.dimensions)
            " dimensions; access delays are not drawn. Point at an agent to see its errors and its sites."
        }
    }
}

/// A name beside a mark: where it begins or ends, and its baseline.
struct Label {
    anchor: &'static str,
    at: [f64; 2],
}

/// Places names beside their marks, those of landmarks first. A name that would cover another one is
/// only in its mark's tooltip.
fn labels(mut agents: Vec<(&MapAgent, [f64; 2])>) -> BTreeMap<&str, Label> {
    agents.sort_by_key(|(agent, _)| !agent.landmark);
    let mut taken: Vec<[f64; 3]> = Vec::new();
    let mut labels = BTreeMap::new();
    for (agent, [x, y]) in agents {
        let width = crate::model::stats::count(agent.name.chars().count()) * LETTER;
        let places = [4.0, -10.0, 18.0].into_iter().flat_map(|down| {
            [("start", x + BESIDE, x + BESIDE), ("end", x - BESIDE, x - BESIDE - width)].map(|side| (side, y + down))
        });
        let free = places.into_iter().find(|((_, _, left), base)| {
            let inside = *left > 2.0 && left + width < WIDTH - 2.0 && *base > LINE && *base < HEIGHT - 2.0;
            let apart = |[other_left, other_right, other_base]: &[f64; 3]| {
                *left > *other_right || left + width < *other_left || (base - other_base).abs() >= LINE
            };
            inside && taken.iter().all(apart)
        });
        let Some(((anchor, start, left), base)) = free else { continue };
        taken.push([left, left + width, base]);
        labels.insert(agent.name.as_str(), Label { anchor, at: [start, base] });
    }
    labels
}

fn mark(agent: &MapAgent, groups: &Groups<'_>, [x, y]: [f64; 2], label: Option<&Label>) -> Markup {
    let ring = if agent.landmark { " landmark" } else { "" };
    html! {
        a href=(layout::path("/agents/", &agent.name)) class={ "agent" (ring) } data-agent=(agent.name) aria-label=(agent.name) {
            @if agent.landmark { circle.ring cx=(px(x)) cy=(px(y)) r="10.5" {} }
            circle class=(groups.class(Some(&agent.name))) cx=(px(x)) cy=(px(y)) r="6.5" { title { (tooltip(agent)) } }
            @if let Some(Label { anchor, at: [start, base] }) = label {
                text.halo x=(px(*start)) y=(px(*base)) text-anchor=(anchor) { (agent.name) }
            }
        }
    }
}

/// The name, the place and the errors of an agent, a line each.
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

fn scale_bar(px_per_ms: f64) -> Markup {
    let wanted = 120.0 / px_per_ms;
    let steps = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0];
    let millis = steps.into_iter().rfind(|step| *step <= wanted).unwrap_or(0.1);
    let (left, base) = (MARGIN, HEIGHT - 14.0);
    let right = left + millis * px_per_ms;
    html! {
        path.scale d={ "M" (px(left)) " " (px(base - 5.0)) "V" (px(base)) "H" (px(right)) "V" (px(base - 5.0)) } {}
        text x=(px(right + 8.0)) y=(px(base)) { (millis) " ms" }
    }
}

/// Lines of latitude and longitude.
fn graticule(frame: &Frame) -> Markup {
    let meridians = (-180..=180)
        .step_by(DEGREES)
        .map(|east| (east, frame.place([f64::from(east), 0.0])))
        .filter(|(_, ([x, _], _))| *x > 13.0 && *x < WIDTH - 13.0);
    let parallels = (-90..=90)
        .step_by(DEGREES)
        .map(|north| (north, frame.place([0.0, f64::from(north)])))
        .filter(|(_, ([_, y], _))| *y > 13.0 && *y < HEIGHT - 13.0);
    html! {
        @for (east, ([x, _], _)) in meridians { line.grid x1=(px(x)) x2=(px(x)) y1="0" y2=(HEIGHT) {} text x=(px(x + 3.0)) y=(HEIGHT - 4.0) { (east) "°" } }
        @for (north, ([_, y], _)) in parallels { line.grid x1="0" x2=(WIDTH) y1=(px(y)) y2=(px(y)) {} text x="4" y=(px(y - 3.0)) { (north) "°" } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::pages::map::MapSite;

    #[test]
    fn hostile_names_are_text_and_groups_are_coloured_by_their_sites() {
        let agent = |name: &str, city: &str| MapAgent {
            name: name.to_owned(),
            city: city.to_owned(),
            carrier: "<script>".to_owned(),
            landmark: true,
            x_ms: 1.0,
            y_ms: 2.0,
            height_ms: 1.5,
            median_error: Some(0.05),
            worst: Vec::new(),
            latitude: None,
            longitude: None,
        };
        let site = MapSite {
            name: "\"><img src=x>".to_owned(),
            agent: Some("b".to_owned()),
            x_ms: 9.0,
            y_ms: 3.0,
            latitude: None,
            longitude: None,
        };
        let map = MapData {
            epoch: Some(3),
            epochs: vec![2, 3],
            agents: vec![agent("a", "A"), agent("b", "B")],
            sites: vec![site],
            dimensions: 2,
            ..MapData::default()
        };
        let drawn = figure(&map, false).into_string();
        assert!(!drawn.contains("<script") && !drawn.contains("<img"), "{drawn}");
        assert!(
            drawn.contains("class=\"site f0\" data-agent=\"b\""),
            "the group with the most sites is first: {drawn}"
        );
        assert_eq!(drawn.matches("class=\"halo\"").count(), 2, "names at one place are drawn apart: {drawn}");
        assert!(figure(&map, true).into_string().contains("No position is known"));
        assert!(controls(&map, false).into_string().contains("data-epochs=\"2 3\""));
    }
}
