//! Draws the embedding: agents, landmarks and sites in the two directions of largest variance.

use maud::{Markup, html};
use nalgebra::{DMatrix, SymmetricEigen};

use super::{Groups, ReportInput, legend, px};
use crate::evidence::float;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 620.0;
const MARGIN: f64 = 34.0;
/// The frame contains this share of hosts in each direction; other hosts are drawn on its edge.
const FRAMED: f64 = 0.97;
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
        let frame = Frame::around(&projected);
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
        Some(Self { agents, sites, explained, outside, px_per_ms: frame.px_per_ms })
    }
}

/// Projects the points on their two principal components. Also returns the share of the variance
/// that these explain.
fn project(places: &[&[f64]], dimensions: usize) -> (Vec<[f64; 2]>, f64) {
    let mut points = DMatrix::from_fn(places.len(), dimensions, |row, column| places[row][column]);
    for mut column in points.column_iter_mut() {
        let mean = column.mean();
        column.add_scalar_mut(-mean);
    }
    let eigen = SymmetricEigen::new(points.transpose() * &points);
    let mut order: Vec<usize> = (0..dimensions).collect();
    order.sort_by(|a, b| eigen.eigenvalues[*b].total_cmp(&eigen.eigenvalues[*a]));
    let along = |row: usize, rank: usize| {
        order.get(rank).map_or(0.0, |&component| points.row(row).transpose().dot(&eigen.eigenvectors.column(component)))
    };
    let total: f64 = eigen.eigenvalues.iter().sum();
    let shown: f64 = order.iter().take(2).map(|&component| eigen.eigenvalues[component]).sum();
    let projected = (0..places.len()).map(|row| [along(row, 0), along(row, 1)]).collect();
    (projected, if total > 0.0 { shown / total } else { 1.0 })
}

/// The visible part of the plane. One millisecond has the same length in both directions.
struct Frame {
    middle: [f64; 2],
    px_per_ms: f64,
}

impl Frame {
    fn around(points: &[[f64; 2]]) -> Self {
        let range = |axis: usize| {
            let mut values: Vec<f64> = points.iter().map(|point| point[axis]).collect();
            values.sort_by(f64::total_cmp);
            let rank = |share: f64| {
                let last = float(values.len() - 1);
                (0..values.len()).find(|rank| float(*rank) >= share * last).unwrap_or(0)
            };
            (values[rank(1.0 - FRAMED)], values[rank(FRAMED)])
        };
        let (x, y) = (range(0), range(1));
        let room = |length: f64, (low, high): (f64, f64)| (length - 2.0 * MARGIN) / (high - low).max(1.0);
        let px_per_ms = room(WIDTH, x).min(room(HEIGHT, y)) * 0.94;
        Self { middle: [(x.0 + x.1) / 2.0, (y.0 + y.1) / 2.0], px_per_ms }
    }

    fn place(&self, point: [f64; 2]) -> ([f64; 2], bool) {
        let free = [
            WIDTH / 2.0 + (point[0] - self.middle[0]) * self.px_per_ms,
            HEIGHT / 2.0 - (point[1] - self.middle[1]) * self.px_per_ms,
        ];
        let held = [free[0].clamp(12.0, WIDTH - 12.0), free[1].clamp(12.0, HEIGHT - 12.0)];
        (held, free == held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_projection_keeps_what_differs_most() {
        let places: Vec<Vec<f64>> = (0..10).map(|step| vec![1.0, f64::from(step) * 3.0, f64::from(step % 2)]).collect();
        let places: Vec<&[f64]> = places.iter().map(Vec::as_slice).collect();
        let (projected, explained) = project(&places, 3);
        assert!(explained > 0.999, "{explained}");
        assert!(((projected[9][0] - projected[0][0]).abs() - 27.0).abs() < 0.2, "{projected:?}");
    }

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

    #[test]
    fn far_outliers_are_drawn_on_the_edge() {
        let mut points: Vec<[f64; 2]> = (0..200).map(|step| [f64::from(step % 20), f64::from(step / 20)]).collect();
        points.push([5000.0, 0.0]);
        let frame = Frame::around(&points);
        let (held, inside) = frame.place([5000.0, 0.0]);
        assert!(!inside && (held[0] - (WIDTH - 12.0)).abs() < 1e-9);
        assert!(frame.place([10.0, 5.0]).1);
    }
}
