//! The page of all batches; the page of one batch, with its buttons; and the page of one site: what
//! is known about it, and why its agents were chosen.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use landfall_proto::json::milliseconds;
use landfall_proto::v1::site_service_server::SiteService as _;
use landfall_proto::v1::{
    BatchProgress, CancelTasksRequest, Ending, ExplainRequest, ExplainResponse, ExplainedCandidate, ExplainedChoice,
    ListBatchesRequest, RetryTasksRequest, ShowBatchRequest, ShowSiteRequest,
};
use maud::{Markup, html};
use tonic::Request;

use super::overview_and_trends;
use crate::cli::batches::wait_and_progress::left_cell;
use crate::cli::output::{bytes_cell, number};
use crate::cli::sites::show_and_explain::globe_cell;
use crate::plot::{Axis, Bar, bars};
use crate::web::Web;
use crate::web::page_layout::{self, FormCode, Page, PageError, buttons, section, table};
use crate::web::page_names_and_cache::outcome;

/// Maximum number of batches on the page.
const MOST: u64 = 200;

pub(in crate::web) async fn batches(web: &Web) -> Result<Page, PageError> {
    let request = ListBatchesRequest { limit: MOST, ..ListBatchesRequest::default() };
    let listed = web.services.list_batches(Request::new(request)).await?.into_inner();
    let live = section(
        "Batches, the newest first",
        &html! {
            @if listed.batches.is_empty() { p { "No batches yet: " code { "landfall sites submit FILE --batch NAME" } } }
            @else { (table("Batches", &listed.batches, |batch| Some(page_layout::path("/batches/", &batch.name)))) }
            @if listed.more > 0 { p { "And " (number(listed.more)) " more: " code { "landfall batches list" } } }
        },
    );
    Ok(Page { title: "Batches".to_owned(), section: "/batches", actions: html! {}, live })
}

pub(in crate::web) async fn batch(web: &Web, name: &str) -> Result<Page, PageError> {
    let request = ShowBatchRequest { batch: name.to_owned() };
    let shown = web.services.show_batch(Request::new(request)).await?.into_inner();
    let progress = shown.progress.unwrap_or_default();
    let minutes = overview_and_trends::minutes(web, Some(&shown.name)).await?;
    let live = html! {
        (section("Progress", &states(&progress, &shown.strategy)))
        (section("Throughput", &overview_and_trends::chart("Throughput of this batch", &minutes)))
        (section("Why sites failed or were cancelled", &endings(&shown.endings)))
    };
    Ok(Page { title: shown.name, section: "/batches", actions: html! {}, live })
}

fn states(progress: &BatchProgress, strategy: &str) -> Markup {
    let states = [
        ("complete", progress.complete),
        ("truncated", progress.truncated),
        ("failed", progress.failed),
        ("cancelled", progress.cancelled),
        ("being crawled", progress.leased),
        ("at an agent", progress.assigned),
        ("located", progress.located),
        ("being measured", progress.measuring),
        ("submitted", progress.submitted),
    ];
    let all: u64 = states.iter().map(|(_, sites)| sites).sum();
    let share = |sites: u64| if all == 0 { 0.0 } else { page_layout::float(sites) / page_layout::float(all) };
    let left = progress
        .estimate
        .as_ref()
        .map_or_else(|| "every site has ended".to_owned(), |left| format!("{} left", left_cell(left)));
    html! {
        p { b { (number(all)) " sites" } ", " (left) "; strategy " code { (strategy) } "; "
            (number(progress.pages)) " pages, " (bytes_cell(progress.bytes)) " fetched." }
        @if !progress.waiting_for.is_empty() { p { "Sites wait: " (progress.waiting_for) } }
        ul.progress { @for (state, sites) in states.into_iter().filter(|(_, sites)| *sites > 0) {
            li { (state) " " (page_layout::share_bar(share(sites), &format!("{state}: {}", number(sites)))) " " (number(sites)) }
        } }
    }
}

fn endings(endings: &[Ending]) -> Markup {
    use landfall_proto::json::Word as _;
    html! {
        @if endings.is_empty() { p { "No site failed or was cancelled." } }
        @else { div.scroll tabindex="0" role="region" aria-label="Reasons" { table {
            thead { tr { th scope="col" { "kind" } th.n scope="col" { "sites" } th scope="col" { "for example" } th scope="col" { "reason" } } }
            tbody { @for ending in endings { tr {
                td { (ending.kind().word_or_unknown()) }
                td.n { (number(ending.tasks)) }
                td { a href=(page_layout::path("/site?name=", &ending.site)) { (ending.site) } }
                td { (ending.reason) }
            } } }
        } } }
    }
}

/// The buttons of a batch's page. `done` is the action that led to this page, if any.
pub(in crate::web) fn batch_buttons(name: &str, form: &FormCode, done: &str) -> Markup {
    let known = [
        ("retry", "Retry failed sites", "Every failed site gets a new round."),
        ("cancel", "Cancel", "Sites that have not ended are cancelled. This cannot be undone."),
    ];
    buttons(&page_layout::path("/batches/", name), name, &known, form, done)
}

/// Performs an action on a batch, then shows the batch's page.
pub(in crate::web) async fn act_on_batch(
    State(web): State<Web>,
    Path((name, action)): Path<(String, String)>,
) -> Response {
    let services = &web.services;
    let acted = match action.as_str() {
        "retry" => {
            let request = RetryTasksRequest { batch: name.clone(), failed: true, ..RetryTasksRequest::default() };
            services.retry_tasks(Request::new(request)).await.map(drop)
        }
        "cancel" => {
            let request = CancelTasksRequest { batch: name.clone(), all: true, ..CancelTasksRequest::default() };
            services.cancel_tasks(Request::new(request)).await.map(drop)
        }
        _ => return PageError::unknown().into_response(),
    };
    outcome(&web, acted, &page_layout::path("/batches/", &name), &action)
}

/// Maximum number of choices shown. `landfall explain` shows all.
const MOST_CHOICES: usize = 5;

pub(in crate::web) async fn site(web: &Web, name: &str) -> Result<Page, PageError> {
    let site = web.services.show_site(Request::new(ShowSiteRequest { site: name.to_owned() })).await?.into_inner();
    let request = ExplainRequest { site: site.name.clone(), ..ExplainRequest::default() };
    let explained = web.services.explain(Request::new(request)).await?.into_inner();
    let view = page_layout::view();
    let live = html! {
        (section("Why its agent", &explanation(&explained)))
        (section("What is known", &html! { dl {
            dt { "Origin" } dd { (if site.origin.is_empty() { "not known yet" } else { &site.origin }) }
            @if !site.alias_of.is_empty() { dt { "The same site as" } dd { a href=(page_layout::path("/site?name=", &site.alias_of)) { (site.alias_of) } } }
            dt { "Position" } dd { (globe_cell(site.position.as_ref())) }
            @if let Some(placement) = &site.placement { dt { "Place on the map" } dd { "epoch " (placement.epoch) ", fit error " (format!("{:.3}", placement.fit_error)) } }
            @if let Some(verdict) = &site.verdict { dt { "Places" } dd { (if verdict.suspect { format!("several: {}", verdict.evidence) } else { "one".to_owned() }) } }
            @if site.circuit_open_since.is_some() { dt { "Circuit" } dd.bad { "open " (view.when(site.circuit_open_since)) ": no agent crawls it until " code { "landfall sites reopen " (site.name) } } }
        } }))
        (section("Measurements", &html! {
            @if site.measurements.is_empty() { p { "No prober has measured it yet." } }
            @else { (table("Measurements", &site.measurements, |row| Some(page_layout::path("/agents/", &row.prober)))) }
        }))
    };
    Ok(Page { title: site.name, section: "/batches", actions: html! {}, live })
}

fn explanation(explained: &ExplainResponse) -> Markup {
    html! {
        @if explained.tasks.is_empty() { p { "No batch contains it." } }
        @for task in &explained.tasks {
            h3 { "Batch " a href=(page_layout::path("/batches/", &task.batch)) { (task.batch) } ", round " (task.round) ": " (task.state) }
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
        p { a href=(page_layout::path("/agents/", &choice.agent)) { (choice.agent) } " was " (choice.because) " (" (choice.strategy) ", " (page_layout::view().when(choice.chosen_at)) ")." }
        @if !choice.note.is_empty() { p.soft { (choice.note) } }
        @if !shown.is_empty() {
            (page_layout::chart("Round trips of the candidates", &bars("Round trips of the candidates to this site", &Axis::linear("round trip, ms (measured, else predicted)", most), &shown)))
        }
        @for excluded in &choice.excluded { p.soft { "Excluded, because each " (excluded.why) ": " (excluded.agents.join(", ")) } }
    }
}
