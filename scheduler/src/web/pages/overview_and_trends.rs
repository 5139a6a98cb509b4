//! The overview page: the state of the whole system, and what needs attention. The page of trends:
//! throughput and the map's accuracy over time.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use landfall_proto::v1::embedding_service_server::EmbeddingService as _;
use landfall_proto::v1::status_service_server::StatusService as _;
use landfall_proto::v1::{Attention, BatchStatus, Epoch, ListEpochsRequest, ShowStatusRequest, ShowStatusResponse};
use maud::{Markup, html};
use serde::Serialize;
use tonic::Request;

use crate::cli::output::{View, number};
use crate::cli::status::{database_line, fleet_line, landmarks_line, map_line, scheduler_line};
use crate::machine::clock::now;
use crate::plot::{Axis, Curve, lines};
use crate::store::batches;
use crate::store::reports::throughput::{CrawledStretch, crawled};
use crate::web::Web;
use crate::web::page_layout::{self, Page, PageError, float, section, table};

pub(in crate::web) async fn overview(web: &Web) -> Result<Page, PageError> {
    let status = web.services.show_status(Request::new(ShowStatusRequest { batches: 0 })).await?.into_inner();
    let live = html! {
        (tiles(&status))
        (section("Needs attention", &attention(&status.attention)))
        (section("Batches with open sites", &batches(&status)))
        (section("System", &system(&status, &page_layout::view())))
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
        (page_layout::tile("agents", &number(agents.into()), &fleet_line(status.fleet.as_ref())))
        (page_layout::tile("sites being crawled", &number(fleet.leases), &format!("in {} slots", number(fleet.slots))))
        (page_layout::tile("open sites", &number(sites.saturating_sub(ended)), &format!("of {} in open batches", number(sites))))
        (page_layout::tile("sites a minute", &format!("{:.1}", rate(|batch| batch.sites_per_minute)), &format!("{:.1} MB a minute", rate(|batch| batch.megabytes_per_minute))))
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
    let share = if batch.sites == 0 { 1.0 } else { page_layout::float(batch.ended) / page_layout::float(batch.sites) };
    let text = format!("{} of {}", number(batch.ended), number(batch.sites));
    html! { (page_layout::share_bar(share, &text)) " " (text) }
}

fn batches(status: &ShowStatusResponse) -> Markup {
    html! {
        @if status.batches.is_empty() { p { "No site waits or is being crawled. Submit a list: " code { "landfall sites submit FILE --batch NAME" } } }
        @else {
            ul.progress { @for batch in &status.batches { li { a href=(page_layout::path("/batches/", &batch.name)) { (batch.name) } " " (progress(batch)) } } }
            (page_layout::table("Batches", &status.batches, |batch| Some(page_layout::path("/batches/", &batch.name))))
        }
        @if status.more_batches > 0 { p { a href="/batches" { "And " (number(status.more_batches)) " more" } } }
    }
}

fn system(status: &ShowStatusResponse, view: &View) -> Markup {
    html! { dl {
        @for scheduler in &status.schedulers {
            dt { "Scheduler" } dd { (scheduler_line(scheduler, status, view)) }
        }
        dt { "Database" } dd { (database_line(status.database.as_ref(), view)) }
        dt { "Landmarks" } dd { (landmarks_line(status.landmarks.as_ref())) }
        dt { "Map" } dd { a href="/map" { (map_line(status.map.as_ref(), view)) } }
    } }
}

/// The time span that the chart of rates covers. The chart has one value for each interval of
/// [`STRETCH`].
const PAST: Duration = Duration::from_secs(6 * 3600);
const STRETCH: Duration = Duration::from_secs(180);
/// Maximum number of epochs in the chart, and in the table.
const EPOCHS: u32 = 200;
const LISTED_EPOCHS: usize = 20;

/// The mean number of crawls, pages and megabytes per minute in one interval of [`STRETCH`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(in crate::web) struct Rate {
    from: DateTime<Utc>,
    sites_per_minute: f64,
    pages_per_minute: f64,
    megabytes_per_minute: f64,
}

/// The rates of a batch, or of all batches, over the last hours. Intervals without crawls
/// have zero rates.
pub(in crate::web) async fn minutes(web: &Web, batch: Option<&str>) -> Result<Vec<Rate>, PageError> {
    let mut conn = web.scheduler.operators.read("draw rates").await?;
    let batch = match batch {
        None => None,
        Some(name) => match batches::by_name(&mut conn, name).await? {
            Some(batch) => Some(batch.id),
            None => return Err(PageError::from(tonic::Status::not_found(format!("no batch is called '{name}'")))),
        },
    };
    Ok(rates(&crawled(&mut conn, batch, PAST, STRETCH).await?, now()))
}

/// Computes the rates of all intervals between the first crawl and now, including intervals
/// without crawls.
fn rates(stretches: &[CrawledStretch], now: DateTime<Utc>) -> Vec<Rate> {
    let minutes = STRETCH.as_secs_f64() / 60.0;
    let Some(first) = stretches.first() else { return Vec::new() };
    let length = TimeDelta::from_std(STRETCH).unwrap_or(TimeDelta::minutes(1));
    let (mut from, mut filled, mut rest) = (first.from, Vec::new(), stretches.iter().peekable());
    // The current interval is left out: it has not ended, so its rate would be too low.
    while from + length <= now && filled.len() <= 2 * usize::try_from(PAST.as_secs() / STRETCH.as_secs()).unwrap_or(0) {
        let crawls = rest.next_if(|stretch| stretch.from <= from);
        filled.push(Rate {
            from,
            sites_per_minute: crawls.map_or(0.0, |crawls| float(crawls.crawls) / minutes),
            pages_per_minute: crawls.map_or(0.0, |crawls| float(crawls.pages) / minutes),
            megabytes_per_minute: crawls.map_or(0.0, |crawls| crawls.bytes / 1e6 / minutes),
        });
        from += length;
    }
    filled
}

pub(super) fn chart(title: &str, rates: &[Rate]) -> Markup {
    let (Some(first), Some(last)) = (rates.first(), rates.last()) else {
        return html! { p {
            "Nothing to draw: no crawl ended within the last six hours, or the three minutes of the first point are not over."
        } };
    };
    let minutes = |rate: &Rate| (rate.from - first.from).as_seconds_f64() / 60.0;
    let most = |of: fn(&Rate) -> f64| rates.iter().map(of).fold(1.0, f64::max);
    let curve = |name: &str, class: &str, of: fn(&Rate) -> f64| Curve {
        name: name.to_owned(),
        class: class.to_owned(),
        points: rates.iter().map(|rate| (minutes(rate), of(rate))).collect(),
        marked: rates.len() == 1,
    };
    let across = || Axis::linear(format!("minutes since {} UTC", first.from.format("%H:%M")), minutes(last).max(1.0));
    let drawn = |class: &str, label: &str, of: fn(&Rate) -> f64| {
        page_layout::chart(label, &lines(title, &across(), &Axis::linear(label, most(of)), &[curve(label, class, of)]))
    };
    html! {
        (drawn("c0", "sites a minute", |rate| rate.sites_per_minute))
        (drawn("c3", "MB a minute", |rate| rate.megabytes_per_minute))
    }
}

pub(in crate::web) async fn trends(web: &Web) -> Result<Page, PageError> {
    let rates = minutes(web, None).await?;
    let request = ListEpochsRequest { limit: EPOCHS, ..ListEpochsRequest::default() };
    let epochs = web.services.list_epochs(Request::new(request)).await?.into_inner().epochs;
    let newest = epochs.iter().take(LISTED_EPOCHS).cloned().collect::<Vec<_>>();
    let live = html! {
        (section("Throughput of all batches", &chart("Throughput of all batches", &rates)))
        (section("Accuracy of the map", &accuracy(&epochs)))
        (section("Newest epochs", &html! {
            @if newest.is_empty() { p { "No map has been fitted yet." } }
            @else { (table("Epochs", &newest, |epoch| Some(format!("/map?epoch={}", epoch.epoch)))) }
        }))
    };
    Ok(Page { title: "Trends".to_owned(), section: "/trends", actions: html! {}, live })
}

/// Draws a chart that shows, for each epoch's map, the median error of the predicted round trips
/// between agents.
fn accuracy(epochs: &[Epoch]) -> Markup {
    let per_cent = |epoch: &Epoch| epoch.mesh_error.map(|error| error.exp_m1() * 100.0);
    let points = epochs.iter().rev().enumerate().filter_map(|(index, epoch)| Some((index + 1, per_cent(epoch)?)));
    let points: Vec<(f64, f64)> = points.map(|(index, error)| (crate::model::stats::count(index), error)).collect();
    match points[..] {
        [] => return html! { p { "No map with measured round trips has been fitted yet." } },
        [(_, error)] => {
            return html! { p { "One map has been fitted; the median error of its predicted round trips is " (format!("{error:.1}")) " %." } };
        }
        _ => {}
    }
    let most = points.iter().map(|(_, error)| *error).fold(1.0, f64::max);
    let curve = Curve {
        name: "median error of predicted round trips, %".to_owned(),
        class: "c1".to_owned(),
        marked: points.len() < 50,
        points,
    };
    let across = Axis::counted("fits of the map, from the oldest shown", epochs.len());
    let drawn = lines("Median error of the map by epoch", &across, &Axis::linear("median error, %", most), &[curve]);
    page_layout::chart("Median error of the map by epoch", &drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_zero_and_the_unfinished_stretch_is_omitted() {
        let at = |minutes: i64| DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes);
        let stretch = |minutes, crawls| CrawledStretch { from: at(minutes), crawls, pages: 2 * crawls, bytes: 6e6 };
        let rates = rates(&[stretch(0, 30), stretch(9, 3), stretch(12, 99)], at(14));
        let found: Vec<(i64, f64)> =
            rates.iter().map(|rate| (rate.from.timestamp() / 60, rate.sites_per_minute)).collect();
        assert_eq!(found, [(0, 10.0), (3, 0.0), (6, 0.0), (9, 1.0)]);
        assert!((rates[0].megabytes_per_minute - 2.0).abs() < 1e-9);
        assert_eq!(super::rates(&[], at(14)), []);
    }
}
