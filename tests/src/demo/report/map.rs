//! Draws the embedding: agents, landmarks and sites, projected onto the two directions of largest
//! variance.

use landfall_scheduler::gnp::projection::project;
use landfall_scheduler::plot::map::{AgentMark, Groups, Plane, SiteMark, draw};
use maud::{Markup, html};

use super::report_input::ReportInput;

pub(super) fn figure(run: &ReportInput<'_>, groups: &Groups) -> Markup {
    let Some((agents, sites, explained)) = marks(run) else {
        return html! { figure { h2 { "The map" } figcaption { "There is no embedding: measured distance decided." } } };
    };
    let (drawing, outside) = draw(Plane::Network, true, &agents, &sites, groups);
    html! { figure {
        h2 { "The map" }
        figcaption {
            "The embedding, projected on the two directions in which hosts differ most (" (format!("{:.0} %", explained * 100.0))
            " of the variance; access delays are not drawn). A line joins each site to the agent that crawled it, in that "
            "agent's colour. Large dots are agents, ringed dots are landmarks."
            @if outside > 0 { " Hosts beyond the frame are drawn on its edge: " (outside) "." }
        }
        (drawing)
        (groups.legend())
    } }
}

/// The marks of all placed agents and sites, and the fraction of the variance that the two plotted
/// directions show.
fn marks<'a>(run: &ReportInput<'a>) -> Option<(Vec<AgentMark<'a>>, Vec<SiteMark<'a>>, f64)> {
    let map = run.record.embedding.as_ref()?;
    let dimensions = map.embedding.dimensions();
    let placements = map.agents.values().chain(map.sites.values());
    let places: Vec<&[f64]> = placements.filter_map(|placement| placement.coordinate.get(..dimensions)).collect();
    if places.is_empty() || places.len() != map.agents.len() + map.sites.len() {
        return None;
    }
    let (projected, explained) = project(&places, dimensions);
    let mark = |(name, at): (&'a String, &[f64; 2])| {
        let landmark = run.record.landmarks.contains(name);
        let tooltip = if landmark { format!("{name}, a landmark") } else { name.clone() };
        AgentMark { name, at: *at, landmark, tooltip, href: None }
    };
    let agents = map.agents.keys().zip(&projected).map(mark).collect();
    let sites = map.sites.keys().zip(projected.iter().skip(map.agents.len())).map(|(name, at)| {
        let agent = run.record.tasks.iter().find(|task| task.site == *name).and_then(|task| task.crawler.as_deref());
        SiteMark { at: *at, agent, tooltip: format!("{name}, crawled by {}", agent.unwrap_or("nobody")) }
    });
    Some((agents, sites.collect(), explained))
}
