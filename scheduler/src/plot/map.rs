//! Draws agents and sites on a plane: by network distance, or on the globe.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::model::stats::count;

use super::charts_and_page::{label, px};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 620.0;
const MARGIN: f64 = 36.0;
/// Number of groups of agents that have a colour of their own. The style sheet defines the colours.
pub const COLOURS: usize = 9;
/// Height of a line of text, width of a letter, and distance between a mark and its name, all in
/// units of the drawing.
const LINE: f64 = 13.0;
const LETTER: f64 = 6.6;
const BESIDE: f64 = 14.0;
/// Maximum number of names drawn. More names would cover the map.
const NAMES: usize = 40;
/// Interval between lines of latitude and longitude, in degrees.
const DEGREES: usize = 15;

/// The colour of the group with this rank, as the style sheet defines it. All ranks of [`COLOURS`]
/// or more have the same colour.
pub fn colour(rank: usize) -> String {
    if rank < COLOURS { format!("var(--c{rank})") } else { "var(--other)".to_owned() }
}

/// Groups of agents, the groups with the most sites first. The first groups have colours
/// of their own.
#[derive(Debug)]
pub struct Groups {
    of_agent: BTreeMap<String, usize>,
    names: Vec<String>,
}

impl Groups {
    /// Builds groups from agents, each given as its name, the name of its group and its
    /// number of sites.
    pub fn of(agents: impl IntoIterator<Item = (String, String, usize)>) -> Self {
        let agents: Vec<(String, String, usize)> = agents.into_iter().collect();
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, group, sites) in &agents {
            *groups.entry(group).or_default() += sites;
        }
        let mut names: Vec<(&str, usize)> = groups.into_iter().collect();
        names.sort_by_key(|(_, sites)| std::cmp::Reverse(*sites));
        let names: Vec<String> = names.into_iter().map(|(name, _)| name.to_owned()).collect();
        let ranks: BTreeMap<&str, usize> = names.iter().enumerate().map(|(rank, name)| (name.as_str(), rank)).collect();
        let rank = |group: &str| ranks.get(group).copied().unwrap_or(usize::MAX);
        let of_agent = agents.iter().map(|(agent, group, _)| (agent.clone(), rank(group))).collect();
        Self { of_agent, names }
    }

    /// The colour of an agent's group. The agent and its sites are drawn in this colour.
    pub fn colour(&self, agent: Option<&str>) -> String {
        colour(agent.and_then(|agent| self.of_agent.get(agent)).copied().unwrap_or(usize::MAX))
    }

    /// A legend of the groups with a colour of their own, with one entry for all other groups.
    pub fn legend(&self) -> Markup {
        let mut entries: Vec<(String, String)> =
            self.names.iter().take(COLOURS).enumerate().map(|(rank, name)| (colour(rank), name.clone())).collect();
        if self.names.len() > COLOURS {
            entries.push((colour(usize::MAX), format!("{} others", self.names.len() - COLOURS)));
        }
        legend(&entries)
    }
}

/// Renders a legend: a round mark for each colour, with its name.
pub fn legend(entries: &[(String, String)]) -> Markup {
    html! { ul.legend { @for (colour, name) in entries { li {
        svg.dot viewBox="0 0 10 10" aria-hidden="true" { circle fill=(colour) cx="5" cy="5" r="5" {} }
        (name)
    } } } }
}

#[derive(Debug)]
pub struct AgentMark<'a> {
    pub name: &'a str,
    pub at: [f64; 2],
    pub landmark: bool,
    /// The text that appears when the pointer is on the mark.
    pub tooltip: String,
    /// The address of the agent's page.
    pub href: Option<String>,
}

#[derive(Debug)]
pub struct SiteMark<'a> {
    pub at: [f64; 2],
    /// The agent that crawls the site; `None` if the site has none.
    pub agent: Option<&'a str>,
    pub tooltip: String,
}

/// The kind of coordinates on the plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// Coordinates of the map, in milliseconds.
    Network,
    /// Degrees east and degrees north.
    Globe,
}

/// Draws the plane. Also returns the number of marks that are drawn on the edge because their
/// points are outside the drawn part of the plane.
pub fn draw(
    plane: Plane,
    joined: bool,
    agents: &[AgentMark<'_>],
    sites: &[SiteMark<'_>],
    groups: &Groups,
) -> (Markup, usize) {
    let points: Vec<[f64; 2]> = agents.iter().map(|agent| agent.at).chain(sites.iter().map(|site| site.at)).collect();
    let frame = Frame::around(&points, [WIDTH, HEIGHT], MARGIN);
    let outside = points.iter().filter(|point| !frame.place(**point).1).count();
    let at = |point: [f64; 2]| frame.place(point).0;
    let of_agent: BTreeMap<&str, [f64; 2]> = agents.iter().map(|agent| (agent.name, at(agent.at))).collect();
    let labels = labels(agents, &of_agent);
    let said = format!("Map with {} agents and {} sites", agents.len(), sites.len());
    let drawing = html! {
        svg.map viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="group" aria-label=(said) {
            @if plane == Plane::Globe { (graticule(&frame)) }
            @if joined { @for site in sites { (ray(at(site.at), site.agent, &of_agent, groups)) } }
            @for site in sites {
                @let [x, y] = at(site.at);
                circle.site data-agent=[site.agent] cx=(px(x)) cy=(px(y)) r="3.2" fill=(groups.colour(site.agent)) {
                    title { (site.tooltip) }
                }
            }
            @for agent in agents { (mark(agent, at(agent.at), labels.get(agent.name), groups)) }
            @if plane == Plane::Network { (scale_bar(frame.scale)) }
        }
    };
    (drawing, outside)
}

/// A line from a site to the agent that crawls it.
fn ray(site: [f64; 2], agent: Option<&str>, of_agent: &BTreeMap<&str, [f64; 2]>, groups: &Groups) -> Markup {
    let end = agent.and_then(|agent| of_agent.get(agent));
    html! { @if let Some([x, y]) = end {
        line.ray x1=(px(site[0])) y1=(px(site[1])) x2=(px(*x)) y2=(px(*y)) stroke=(groups.colour(agent)) {}
    } }
}

fn mark(agent: &AgentMark<'_>, [x, y]: [f64; 2], label: Option<&Label>, groups: &Groups) -> Markup {
    let drawn = html! {
        @if agent.landmark { circle.ring cx=(px(x)) cy=(px(y)) r="10.5" {} }
        circle.agent cx=(px(x)) cy=(px(y)) r="6.5" fill=(groups.colour(Some(agent.name))) { title { (agent.tooltip) } }
        @if let Some(Label { left, base }) = label { text.halo x=(px(*left)) y=(px(*base)) { (agent.name) } }
    };
    html! {
        @match &agent.href {
            Some(href) => a href=(href) data-agent=(agent.name) aria-label=(agent.name) { (drawn) },
            None => g data-agent=(agent.name) { (drawn) },
        }
    }
}

/// The left end and the baseline of a name.
#[derive(Debug)]
struct Label {
    left: f64,
    base: f64,
}

fn width(name: &str) -> f64 {
    count(name.chars().count()) * LETTER
}

/// Places names beside their marks, the names of landmarks first. A name that would cover another
/// name is left out, and appears only in the tooltip of its mark.
fn labels<'a>(agents: &[AgentMark<'a>], of_agent: &BTreeMap<&str, [f64; 2]>) -> BTreeMap<&'a str, Label> {
    let mut order: Vec<&AgentMark<'a>> = agents.iter().collect();
    order.sort_by_key(|agent| !agent.landmark);
    let mut placed: BTreeMap<&str, Label> = BTreeMap::new();
    for agent in order.into_iter().take(NAMES) {
        let Some([x, y]) = of_agent.get(agent.name) else { continue };
        let own = width(agent.name);
        let places = [4.0, -10.0, 18.0, -24.0, 32.0, -38.0, 46.0]
            .into_iter()
            .flat_map(|down| [x + BESIDE, x - BESIDE - own].map(|left| Label { left, base: y + down }));
        let is_free = |label: &Label| {
            let inside =
                label.left > 2.0 && label.left + own < WIDTH - 2.0 && label.base > LINE && label.base < HEIGHT - 2.0;
            let apart = |(name, other): (&&str, &Label)| {
                label.left > other.left + width(name)
                    || other.left > label.left + own
                    || (label.base - other.base).abs() >= LINE
            };
            inside && placed.iter().all(apart)
        };
        let free = places.into_iter().find(is_free);
        placed.extend(free.map(|label| (agent.name, label)));
    }
    placed
}

fn scale_bar(px_per_ms: f64) -> Markup {
    let wanted = 120.0 / px_per_ms;
    let steps = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0];
    let millis = steps.into_iter().rfind(|step| *step <= wanted).unwrap_or(0.1);
    let (left, base) = (MARGIN, HEIGHT - 14.0);
    let right = left + millis * px_per_ms;
    html! {
        path.scale d={ "M" (px(left)) " " (px(base - 5.0)) "V" (px(base)) "H" (px(right)) "V" (px(base - 5.0)) } {}
        text x=(px(right + 8.0)) y=(px(base)) { (label(millis)) " ms" }
    }
}

/// Draws lines of latitude and longitude.
fn graticule(frame: &Frame) -> Markup {
    let degrees = |most: i32| (-most..=most).step_by(DEGREES).map(|degree| (degree, f64::from(degree)));
    let meridians = degrees(180).map(|(east, at)| (east, frame.place([at, 0.0]).0[0]));
    let parallels = degrees(90).map(|(north, at)| (north, frame.place([0.0, at]).0[1]));
    let inside = |at: f64, length: f64| at > 13.0 && at < length - 13.0;
    html! {
        @for (east, x) in meridians.filter(|(_, x)| inside(*x, WIDTH)) {
            line.grid x1=(px(x)) x2=(px(x)) y1="0" y2=(HEIGHT) {}
            text x=(px(x + 3.0)) y=(HEIGHT - 4.0) { (east) "°" }
        }
        @for (north, y) in parallels.filter(|(_, y)| inside(*y, HEIGHT)) {
            line.grid x1="0" x2=(WIDTH) y1=(px(y)) y2=(px(y)) {}
            text x="4" y=(px(y - 3.0)) { (north) "°" }
        }
    }
}

/// In each direction, the frame (the visible part of the plane) contains the points from the
/// quantile `1 - FRAMED` to the quantile `FRAMED`.
const FRAMED: f64 = 0.97;
/// Points outside the frame are drawn inside it, at this distance from its edge, in units of the
/// drawing.
const EDGE: f64 = 12.0;

/// The visible part of the plane. The scale is the same in both directions.
#[derive(Debug, Clone, Copy)]
struct Frame {
    size: [f64; 2],
    middle: [f64; 2],
    /// The length, in the drawing, of one unit of the points' components.
    scale: f64,
}

impl Frame {
    /// Returns a frame around most of the points. `size` is the size of the drawing, and `margin`
    /// its empty margin; both are in units of the drawing.
    fn around(points: &[[f64; 2]], size: [f64; 2], margin: f64) -> Self {
        let range = |axis: usize| {
            let mut values: Vec<f64> = points.iter().map(|point| point[axis]).collect();
            values.sort_by(f64::total_cmp);
            let last = count(values.len().saturating_sub(1));
            let at = |share: f64| {
                let rank = (0..values.len()).find(|rank| count(*rank) >= share * last).unwrap_or(0);
                values.get(rank).copied().unwrap_or(0.0)
            };
            (at(1.0 - FRAMED), at(FRAMED))
        };
        let (x, y) = (range(0), range(1));
        let room = |length: f64, (low, high): (f64, f64)| (length - 2.0 * margin) / (high - low).max(1.0);
        let scale = room(size[0], x).min(room(size[1], y)) * 0.94;
        Self { size, middle: [f64::midpoint(x.0, x.1), f64::midpoint(y.0, y.1)], scale }
    }

    /// Returns where to draw a point, and whether the point is inside the frame.
    fn place(&self, point: [f64; 2]) -> ([f64; 2], bool) {
        let free = [
            self.size[0] / 2.0 + (point[0] - self.middle[0]) * self.scale,
            self.size[1] / 2.0 - (point[1] - self.middle[1]) * self.scale,
        ];
        let held = [free[0].clamp(EDGE, self.size[0] - EDGE), free[1].clamp(EDGE, self.size[1] - EDGE)];
        (held, free == held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> AgentMark<'_> {
        AgentMark { name, at: [0.0, 0.0], landmark: true, tooltip: name.to_owned(), href: None }
    }

    #[test]
    fn names_at_one_place_are_drawn_apart() {
        let names = ["beijing-1", "beijing-2", "beijing-3"];
        let agents = names.map(agent);
        let placed = labels(&agents, &names.map(|name| (name, [500.0, 300.0])).into());
        assert_eq!(placed.len(), 3);
        for (name, label) in &placed {
            let others = placed.iter().filter(|(other, _)| *other != name);
            let covered =
                |other: &Label| (other.base - label.base).abs() < LINE && (other.left - label.left).abs() < width(name);
            assert!(others.into_iter().all(|(_, other)| !covered(other)), "{placed:?}");
        }
    }

    #[test]
    fn hostile_names_are_text_and_groups_have_the_colours_of_their_ranks() {
        let hostile = "\"><script>";
        let site = SiteMark { at: [9.0, 3.0], agent: Some("b"), tooltip: hostile.to_owned() };
        let group = |name: &str, sites| (name.to_owned(), format!("{hostile}{name}"), sites);
        let groups = Groups::of([group("a", 0), group("b", 4)]);
        let agents = [agent("a"), AgentMark { href: Some("/agents/b".to_owned()), ..agent("b") }];
        for plane in [Plane::Network, Plane::Globe] {
            let (drawn, outside) = draw(plane, true, &agents, std::slice::from_ref(&site), &groups);
            let drawn = drawn.into_string();
            assert!(!drawn.contains("<script") && outside == 0, "{drawn}");
            assert!(drawn.contains("class=\"site\" data-agent=\"b\""), "{drawn}");
        }
        assert_eq!(
            [Some("b"), Some("a"), None].map(|agent| groups.colour(agent)),
            ["var(--c0)", "var(--c1)", "var(--other)"]
        );
        assert!(!groups.legend().into_string().contains("<script"));
    }

    #[test]
    fn far_outliers_are_drawn_on_the_edge() {
        let mut points: Vec<[f64; 2]> = (0..200).map(|step| [f64::from(step % 20), f64::from(step / 20)]).collect();
        points.push([5000.0, 0.0]);
        let frame = Frame::around(&points, [1000.0, 620.0], 34.0);
        let (held, inside) = frame.place([5000.0, 0.0]);
        assert!(!inside && (held[0] - 988.0).abs() < 1e-9);
        assert!(frame.place([10.0, 5.0]).1);
        let (middle, _) = Frame::around(&[], [1000.0, 620.0], 34.0).place([0.0, 0.0]);
        assert_eq!(middle, [500.0, 310.0]);
    }
}
