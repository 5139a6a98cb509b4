//! The page of one agent: its state, leases, refused messages and newest events.

use landfall_proto::json::{moment, rfc3339};
use landfall_proto::v1::fleet_service_server::FleetService as _;
use landfall_proto::v1::{Agent, Event, ShowAgentRequest};
use maud::{Markup, html};
use tonic::Request;

use crate::cli::agents::service::service;
use crate::cli::output::View;
use crate::web::Web;
use crate::web::elements::{self, section, table};
use crate::web::error::PageError;
use crate::web::page_frame::Page;

pub(super) async fn page(web: &Web, name: &str) -> Result<Page, PageError> {
    let shown =
        web.desks.fleet.show_agent(Request::new(ShowAgentRequest { name: name.to_owned() })).await?.into_inner();
    let agent = shown.agent.unwrap_or_default();
    let live = html! {
        (section("State", &html! {
            p { b { (service(&agent)) } }
            dl { @for (label, value) in facts(&agent, &elements::view()) { dt { (label) } dd { (value) } } }
        }))
        (section("Leases", &html! {
            @if shown.leases.is_empty() { p { "It holds no lease." } }
            @else { (table("Leases", &shown.leases, |lease| Some(elements::path("/site?name=", &lease.site)))) }
        }))
        @if !shown.refusals.is_empty() { (section("Refused messages", &table("Refused messages", &shown.refusals, |_| None))) }
        (section("Newest events", &events(&shown.events)))
    };
    Ok(Page { title: agent.name, section: "/fleet", actions: html! {}, live })
}

/// The facts about an agent that the list of agents leaves out.
fn facts(agent: &Agent, view: &View) -> Vec<(&'static str, String)> {
    let facts = [
        ("Place", [&agent.city, &agent.carrier, &agent.country].map(String::as_str).join(", ")),
        ("Slots", format!("{} of {} taken, {} tasks waiting", agent.leased, agent.capacity, agent.waiting)),
        ("Landmark", if agent.landmark { "yes".to_owned() } else { String::new() }),
        ("Seen", view.when(agent.seen_at)),
        ("Version", agent.version.clone()),
        ("Beacon", agent.beacon_url.clone()),
        ("Measured by", format!("{} other agents", agent.reached_by)),
        ("Tags", agent.tags.join(" ")),
        ("Quarantined", agent.quarantined.clone()),
        ("Draining since", agent.draining_since.map(|since| view.when(Some(since))).unwrap_or_default()),
    ];
    facts.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// A list of events, the newest first.
fn events(events: &[Event]) -> Markup {
    html! {
        @if events.is_empty() { p { "There are no events." } }
        ul.events { @for event in events.iter().rev() { li {
            @if let Some(at) = moment(event.at) { time datetime=(rfc3339(at)) { (elements::view().when(event.at)) } " " }
            b { (event.noun) " " (event.what) }
            @if !event.site.is_empty() { " " a href=(elements::path("/site?name=", &event.site)) { (event.site) } }
            @if !event.cause.is_empty() { span.soft { " " (event.cause) } }
        } } }
    }
}
