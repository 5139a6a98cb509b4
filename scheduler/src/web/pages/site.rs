//! The page of one site: what is known about it, and why its agents were chosen.

use landfall_proto::json::milliseconds;
use landfall_proto::v1::site_service_server::SiteService as _;
use landfall_proto::v1::{ExplainRequest, ExplainResponse, ExplainedCandidate, ExplainedChoice, ShowSiteRequest};
use maud::{Markup, html};
use tonic::Request;

use crate::cli::sites::show::globe_cell;
use crate::plot::{Axis, Bar, bars};
use crate::web::Web;
use crate::web::elements::{self, section, table};
use crate::web::error::PageError;
use crate::web::page_frame::Page;

/// Maximum number of choices shown. `landfall explain` shows all.
const MOST_CHOICES: usize = 5;

pub(super) async fn page(web: &Web, name: &str) -> Result<Page, PageError> {
    let site = web.desks.sites.show_site(Request::new(ShowSiteRequest { site: name.to_owned() })).await?.into_inner();
    let request = ExplainRequest { site: site.name.clone(), ..ExplainRequest::default() };
    let explained = web.desks.sites.explain(Request::new(request)).await?.into_inner();
    let view = elements::view();
    let live = html! {
        (section("Why its agent", &explanation(&explained)))
        (section("What is known", &html! { dl {
            dt { "Origin" } dd { (if site.origin.is_empty() { "not known yet" } else { &site.origin }) }
            @if !site.alias_of.is_empty() { dt { "The same site as" } dd { a href=(elements::path("/site?name=", &site.alias_of)) { (site.alias_of) } } }
            dt { "Position" } dd { (globe_cell(site.position.as_ref())) }
            @if let Some(placement) = &site.placement { dt { "Place on the map" } dd { "epoch " (placement.epoch) ", fit error " (format!("{:.3}", placement.fit_error)) } }
            @if let Some(verdict) = &site.verdict { dt { "Places" } dd { (if verdict.suspect { format!("several: {}", verdict.evidence) } else { "one".to_owned() }) } }
            @if site.circuit_open_since.is_some() { dt { "Circuit" } dd.bad { "open " (view.when(site.circuit_open_since)) ": no agent crawls it until " code { "landfall sites reopen " (site.name) } } }
        } }))
        (section("Measurements", &html! {
            @if site.measurements.is_empty() { p { "No prober has measured it yet." } }
            @else { (table("Measurements", &site.measurements, |row| Some(elements::path("/agents/", &row.prober)))) }
        }))
    };
    Ok(Page { title: site.name, section: "/batches", actions: html! {}, live })
}

fn explanation(explained: &ExplainResponse) -> Markup {
    html! {
        @if explained.tasks.is_empty() { p { "No batch contains it." } }
        @for task in &explained.tasks {
            h3 { "Batch " a href=(elements::path("/batches/", &task.batch)) { (task.batch) } ", round " (task.round) ": " (task.state) }
            @if !task.reason.is_empty() { p { (task.reason) } }
            @if task.choices.is_empty() && task.waits.is_empty() { p { "No agent has been chosen." } }
            @for choice in task.choices.iter().take(MOST_CHOICES) { (drawn(choice)) }
        }
    }
}

/// Explains a choice with a sentence, and with bars for the distances of its candidates.
fn drawn(choice: &ExplainedChoice) -> Markup {
    let distance = |one: &ExplainedCandidate| milliseconds(one.measured.or(one.predicted));
    let most = choice.candidates.iter().filter_map(distance).fold(1.0, f64::max);
    let bar = |one: &ExplainedCandidate| Bar {
        name: one.agent.clone(),
        class: if one.agent == choice.agent { "chosen" } else { "other" }.to_owned(),
        value: distance(one),
    };
    let shown: Vec<Bar> = choice.candidates.iter().map(bar).collect();
    html! {
        p { a href=(elements::path("/agents/", &choice.agent)) { (choice.agent) } " was " (choice.because) " (" (choice.strategy) ", " (elements::view().when(choice.chosen_at)) ")." }
        @if !choice.note.is_empty() { p.soft { (choice.note) } }
        @if !shown.is_empty() {
            (elements::chart("Round trips of the candidates", &bars("Round trips of the candidates to this site", &Axis::linear("round trip, ms (measured, else predicted)", most), &shown)))
        }
        @for excluded in &choice.excluded { p.soft { "Excluded, because each " (excluded.why) ": " (excluded.agents.join(", ")) } }
    }
}
