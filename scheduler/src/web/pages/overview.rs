//! The overview page: the state of the whole system, and what needs attention.

use landfall_proto::v1::status_service_server::StatusService as _;
use landfall_proto::v1::{Attention, BatchStatus, ShowStatusRequest, ShowStatusResponse};
use maud::{Markup, html};
use tonic::Request;

use crate::cli::output::{View, bytes_cell, number};
use crate::cli::status::{fleet_line, landmarks_line, map_line, scheduler_line};
use crate::web::Web;
use crate::web::elements::{self, section};
use crate::web::error::PageError;
use crate::web::page_frame::Page;

pub(super) async fn page(web: &Web) -> Result<Page, PageError> {
    let status = web.desks.status.show_status(Request::new(ShowStatusRequest { batches: 0 })).await?.into_inner();
    let live = html! {
        (tiles(&status))
        (section("Needs attention", &attention(&status.attention)))
        (section("Batches with open sites", &batches(&status)))
        (section("System", &system(&status, &elements::view())))
    };
    Ok(Page { title: "Overview".to_owned(), section: "/", actions: html! {}, live })
}

fn tiles(status: &ShowStatusResponse) -> Markup {
    let fleet = status.fleet.clone().unwrap_or_default();
    let agents: u32 = fleet.agents.iter().map(|count| count.agents).sum();
    let (sites, ended) = status.batches.iter().fold((0, 0), |sum, batch| (sum.0 + batch.sites, sum.1 + batch.ended));
    let rate =
        |of: fn(&BatchStatus) -> Option<f64>| status.batches.iter().filter_map(of).fold(0.0, |sum, rate| sum + rate);
    html! { div.tiles {
        (elements::tile("agents", &number(agents.into()), &fleet_line(status.fleet.as_ref())))
        (elements::tile("sites being crawled", &number(fleet.leases), &format!("in {} slots", number(fleet.slots))))
        (elements::tile("open sites", &number(sites.saturating_sub(ended)), &format!("of {} in open batches", number(sites))))
        (elements::tile("sites a minute", &format!("{:.1}", rate(|batch| batch.sites_per_minute)), &format!("{:.1} MB a minute", rate(|batch| batch.megabytes_per_minute))))
    } }
}

fn attention(found: &[Attention]) -> Markup {
    html! {
        @if found.is_empty() { p.good { "Nothing needs attention." } }
        ul.attention { @for one in found {
            li class=[one.urgent.then_some("urgent")] {
                @if one.urgent { strong { "Urgent: " } }
                (one.message) " " code { (one.command) }
            }
        } }
    }
}

/// A bar that shows the share of a batch's sites that have ended, with a text.
pub(super) fn progress(batch: &BatchStatus) -> Markup {
    let share = if batch.sites == 0 { 1.0 } else { elements::float(batch.ended) / elements::float(batch.sites) };
    let text = format!("{} of {}", number(batch.ended), number(batch.sites));
    html! { (elements::share_bar(share, &text)) " " (text) }
}

fn batches(status: &ShowStatusResponse) -> Markup {
    html! {
        @if status.batches.is_empty() { p { "No site waits or is being crawled. Submit a list: " code { "landfall sites submit FILE --batch NAME" } } }
        @else {
            ul.progress { @for batch in &status.batches { li { a href=(elements::path("/batches/", &batch.name)) { (batch.name) } " " (progress(batch)) } } }
            (elements::table("Batches", &status.batches, |batch| Some(elements::path("/batches/", &batch.name))))
        }
        @if status.more_batches > 0 { p { a href="/batches" { "And " (number(status.more_batches)) " more" } } }
    }
}

fn system(status: &ShowStatusResponse, view: &View) -> Markup {
    html! { dl {
        @for scheduler in &status.schedulers {
            dt { "Scheduler" } dd { (scheduler_line(scheduler, status.schedulers.len() > 1, scheduler.url == status.answering_url, view)) }
        }
        @if let Some(database) = &status.database { dt { "Database" } dd { "PostgreSQL " (database.version) ", " (bytes_cell(database.size_bytes)) } }
        dt { "Landmarks" } dd { (landmarks_line(status.landmarks.as_ref())) }
        dt { "Map" } dd { a href="/map" { (map_line(status.map.as_ref(), view)) } }
    } }
}
