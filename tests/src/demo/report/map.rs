//! Draws the embedding: agents, landmarks and sites in the two directions of largest variance.

use landfall_scheduler::gnp::plane::{Frame, project};
use maud::{Markup, html};

use super::{Groups, ReportInput, legend, px};
use crate::evidence::float;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 620.0;
const MARGIN: f64 = 34.0;
/// Height of a line of text.
const LINE: f64 = 13.0;
const LETTER: f64 = 6.6;

/// A host drawn on the map.
struct Host<'a> {
    name: &'a str,
    at: [f64; 2],
    /// The agent that crawled the site; `None` for an agent.
    crawler: Option<&'a str>,
}

pub(super) fn figure(run: &ReportInput<'_>, groups: &Groups) -> Markup {
    let Some(drawing) = Drawing::of(run) else {
        return html! { figure { h2 { "The map" } figcaption { "There is no embedding: measured distance decided." } } };
    };
    let agent_at = |name: &str| drawing.agents.iter().find(|agent| agent.name == name).map(|agent| agent.at);
    let landmarks: Vec<&Host<'_>> =
        drawing.agents.iter().filter(|agent| run.record.landmarks.iter().any(|name| name == agent.name)).collect();
    html! { figure {
        h2 { "The map" }
        figcaption {
            "The embedding, projected on the two directions in which hosts differ most (" (format!("{:.0} %", drawing.explained * 100.0))
            " of the variance; access delays are not drawn). A line joins each site to the agent that crawled it, in that "
            "agent's colour. Large dots are agents, ringed dots are landmarks."
            @if drawing.outside > 0 { " Hosts beyond the frame are drawn on its edge: " (drawing.outside) "." }
        }
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label="Map of the embedding" {
            title { "Sites and the agents that crawl them, placed by network distance" }
            @for site in &drawing.sites {
                @if let Some(agent) = site.crawler.and_then(agent_at) {
                    line x1=(px(site.at[0])) y1=(px(site.at[1])) x2=(px(agent[0])) y2=(px(agent[1]))
                        stroke=(groups.colour(site.crawler.unwrap_or_default())) stroke-width="1" stroke-opacity="0.3" {}
                }
            }
            @for site in &drawing.sites {
                circle cx=(px(site.at[0])) cy=(px(site.at[1])) r="3.2"
                    fill=(groups.colour(site.crawler.unwrap_or_default())) fill-opacity="0.85" {
                    title { (site.name) ", crawled by " (site.crawler.unwrap_or("nobody")) }
                }
            }
            @for agent in &drawing.agents { (agent_mark(groups, agent, landmarks.iter().any(|host| host.name == agent.name))) }
            @for label in labels(&landmarks) {
                text.strong.halo x=(px(label.left)) y=(px(label.base)) { (label.name) }
            }
            (scale_bar(drawing.px_per_ms))
        }
        (legend(&groups.legend()))
    } }
}

fn agent_mark(groups: &Groups, agent: &Host<'_>, landmark: bool) -> Markup {
    let [x, y] = agent.at;
    html! {
        circle cx=(px(x)) cy=(px(y)) r="6.5" fill=(groups.colour(agent.name)) stroke="var(--card)" stroke-width="1.5" {
            title { (agent.name) @if landmark { ", a landmark" } }
        }
        @if landmark { circle cx=(px(x)) cy=(px(y)) r="10" fill="none" stroke="var(--ink)" stroke-width="1.6" {} }
    }
}

/// A landmark's name, drawn beside its mark.
struct Label<'a> {
    name: &'a str,
    left: f64,
    base: f64,
}

impl Label<'_> {
    fn width(&self) -> f64 {
        float(self.name.len()) * LETTER
    }

    fn overlaps(&self, other: &Self) -> bool {
        let beside = self.left > other.left + other.width() || other.left > self.left + self.width();
        !beside && (self.base - other.base).abs() < LINE
    }

    fn inside(&self) -> bool {
        self.left > 2.0 && self.left + self.width() < WIDTH - 2.0 && self.base > LINE && self.base < HEIGHT - 2.0
    }
}

/// Places each name to the right or left of its mark, above or below the mark. If there is no room,
/// the name appears only in the mark's tooltip.
fn labels<'a>(landmarks: &[&Host<'a>]) -> Vec<Label<'a>> {
    let mut placed: Vec<Label<'a>> = Vec::new();
    for host in landmarks {
        let [x, y] = host.at;
        let width = float(host.name.len()) * LETTER;
        let places = [4.0, -10.0, 18.0, -24.0, 32.0, -38.0, 46.0]
            .into_iter()
            .flat_map(|down| [x + 14.0, x - 14.0 - width].map(|left| Label { name: host.name, left, base: y + down }));
        let mut free = places.filter(|label| label.inside() && !placed.iter().any(|other| label.overlaps(other)));
        let chosen = free.next();
        placed.extend(chosen);
    }
    placed
}

fn scale_bar(px_per_ms: f64) -> Markup {
    let wanted = 120.0 / px_per_ms;
    let millis =
        [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0].into_iter().rfind(|step| *step <= wanted).unwrap_or(1.0);
    let (left, base) = (MARGIN, HEIGHT - 14.0);
    let right = left + millis * px_per_ms;
    html! {
        path d={ "M" (px(left)) " " (px(base - 5.0)) "V" (px(base)) "H" (px(right)) "V" (px(base - 5.0)) } fill="none" stroke="var(--soft)" stroke-width="1.2" {}
        text x=(px(right + 8.0)) y=(px(base)) { (super::label(millis)) " ms" }
    }
}

struct Drawing<'a> {
    agents: Vec<Host<'a>>,
    sites: Vec<Host<'a>>,
    explained: f64,
    outside: usize,
    px_per_ms: f64,
}

impl<'a> Drawing<'a> {
    fn of(run: &ReportInput<'a>) -> Option<Self> {
        let map = run.record.embedding.as_ref()?;
        let dimensions = map.embedding.dimensions();
        let places: Vec<&[f64]> = map
            .agents
            .values()
            .chain(map.sites.values())
            .filter_map(|placement| placement.coordinate.get(..dimensions))
            .collect();
        if places.is_empty() || places.len() != map.agents.len() + map.sites.len() {
            return None;
        }
        let (projected, explained) = project(&places, dimensions);
        let frame = Frame::around(&projected, [WIDTH, HEIGHT], MARGIN);
        let mut outside = 0;
        let mut at = |index: usize| {
            let (point, inside) = frame.place(projected[index]);
            outside += usize::from(!inside);
            point
        };
        let agents =
            map.agents.keys().enumerate().map(|(index, name)| Host { name, at: at(index), crawler: None }).collect();
        let first_site = map.agents.len();
        let crawler_of = |site: &str| run.record.tasks.iter().find(|task| task.site == site)?.crawler.as_deref();
        let sites = map
            .sites
            .keys()
            .enumerate()
            .map(|(index, name)| Host { name, at: at(first_site + index), crawler: crawler_of(name) })
            .collect();
        Some(Self { agents, sites, explained, outside, px_per_ms: frame.scale })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_one_place_are_drawn_apart() {
        let hosts =
            ["beijing-1", "beijing-2", "beijing-3"].map(|name| Host { name, at: [500.0, 300.0], crawler: None });
        let placed = labels(&hosts.iter().collect::<Vec<_>>());
        assert_eq!(placed.len(), 3);
        for (index, label) in placed.iter().enumerate() {
            assert!(placed[index + 1..].iter().all(|other| !label.overlaps(other)), "{}", label.name);
        }
    }
}
