//! The page of the fleet, and the page of one agent.

use landfall_proto::v1::fleet_service_server::FleetService as _;
use landfall_proto::v1::{Agent, ListAgentsRequest, ShowAgentRequest};
use maud::html;
use tonic::Request;

use crate::cli::agents::service::service;
use crate::cli::output::{View, number};
use crate::web::Web;
use crate::web::elements::{self, section, table};
use crate::web::error::PageError;
use crate::web::page_frame::Page;

/// Maximum number of agents on the page. Each agent adds some 450 bytes to the page.
const MOST: u64 = 500;

pub(super) async fn page(web: &Web) -> Result<Page, PageError> {
    let request = ListAgentsRequest { limit: MOST, ..ListAgentsRequest::default() };
    let listed = web.desks.fleet.list_agents(Request::new(request)).await?.into_inner();
    let live = html! {
        (section("Load", &html! { ul.progress.columns { @for agent in &listed.agents { (load(agent)) } } }))
        (section("Agents", &html! {
            @if listed.agents.is_empty() { p { "No agents yet: " code { "landfall agents enrol --city CITY --carrier CARRIER" } } }
            @else { (table("Agents", &listed.agents, |agent| Some(elements::path("/agents/", &agent.name)))) }
            @if listed.more > 0 { p { "And " (number(listed.more)) " more: " code { "landfall agents list" } } }
        }))
    };
    Ok(Page { title: "Fleet".to_owned(), section: "/fleet", actions: html! {}, live })
}

/// A bar that shows how many of an agent's slots are used.
fn load(agent: &Agent) -> maud::Markup {
    let share = if agent.capacity == 0 { 0.0 } else { f64::from(agent.leased) / f64::from(agent.capacity) };
    let text = format!("{} of {} slots, {} waiting", agent.leased, agent.capacity, agent.waiting);
    html! { li { a href=(elements::path("/agents/", &agent.name)) { (agent.name) } " " (elements::share_bar(share, &text)) " " span.soft { (text) } } }
}

pub(super) async fn agent(web: &Web, name: &str) -> Result<Page, PageError> {
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
        (section("Newest events", &elements::events(&shown.events)))
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
