//! The page of all batches, and the page of one batch.

use landfall_proto::v1::site_service_server::SiteService as _;
use landfall_proto::v1::{BatchProgress, Ending, ListBatchesRequest, ShowBatchRequest};
use maud::{Markup, html};
use tonic::Request;

use crate::cli::batches::progress_text::left_cell;
use crate::cli::output::{bytes_cell, number};
use crate::web::Web;
use crate::web::elements::{self, section, table};
use crate::web::error::PageError;
use crate::web::page_frame::Page;

use super::trends;

/// Maximum number of batches on the page.
const MOST: u64 = 200;

pub(super) async fn page(web: &Web) -> Result<Page, PageError> {
    let request = ListBatchesRequest { limit: MOST, ..ListBatchesRequest::default() };
    let listed = web.desks.sites.list_batches(Request::new(request)).await?.into_inner();
    let live = section(
        "Batches, the newest first",
        &html! {
            @if listed.batches.is_empty() { p { "No batches yet: " code { "landfall sites submit FILE --batch NAME" } } }
            @else { (table("Batches", &listed.batches, |batch| Some(elements::path("/batches/", &batch.name)))) }
            @if listed.more > 0 { p { "And " (number(listed.more)) " more: " code { "landfall batches list" } } }
        },
    );
    Ok(Page { title: "Batches".to_owned(), section: "/batches", actions: html! {}, live })
}

pub(super) async fn batch(web: &Web, name: &str) -> Result<Page, PageError> {
    let request = ShowBatchRequest { batch: name.to_owned() };
    let shown = web.desks.sites.show_batch(Request::new(request)).await?.into_inner();
    let progress = shown.progress.unwrap_or_default();
    let minutes = trends::minutes(web, Some(&shown.name)).await?;
    let live = html! {
        (section("Progress", &states(&progress, &shown.strategy)))
        (section("Throughput", &trends::chart("Throughput of this batch", &minutes)))
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
    let share = |sites: u64| if all == 0 { 0.0 } else { elements::float(sites) / elements::float(all) };
    let left = progress
        .estimate
        .as_ref()
        .map_or_else(|| "every site has ended".to_owned(), |left| format!("{} left", left_cell(left)));
    html! {
        p { b { (number(all)) " sites" } ", " (left) "; strategy " code { (strategy) } "; "
            (number(progress.pages)) " pages, " (bytes_cell(progress.bytes)) " fetched." }
        @if !progress.waiting_for.is_empty() { p { "Sites wait: " (progress.waiting_for) } }
        ul.progress { @for (state, sites) in states.into_iter().filter(|(_, sites)| *sites > 0) {
            li { (state) " " (elements::share_bar(share(sites), &format!("{state}: {}", number(sites)))) " " (number(sites)) }
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
                td { a href=(elements::path("/site?name=", &ending.site)) { (ending.site) } }
                td { (ending.reason) }
            } } }
        } } }
    }
}
