//! The page of the fleet, with the slots that each agent uses, and the page of one agent, with its
//! buttons: its state, leases, refused messages and newest events.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use landfall_proto::json::{moment, rfc3339};
use landfall_proto::v1::fleet_service_server::FleetService as _;
use landfall_proto::v1::{
    Agent, DrainAgentRequest, Event, ListAgentsRequest, ResumeAgentRequest, ShowAgentRequest, TrustAgentRequest,
};
use maud::{Markup, html};
use tonic::Request;

use crate::cli::agents::list_and_show::service;
use crate::cli::output::{View, number};
use crate::web::Web;
use crate::web::page_layout::{self, FormCode, Page, PageError, buttons, section, table};
use crate::web::page_names_and_cache::outcome;

/// Maximum number of agents on the page. Each agent adds some 450 bytes to the page.
const MOST: u64 = 500;

pub(in crate::web) async fn fleet(web: &Web) -> Result<Page, PageError> {
    let request = ListAgentsRequest { limit: MOST, ..ListAgentsRequest::default() };
    let listed = web.services.list_agents(Request::new(request)).await?.into_inner();
    let live = html! {
        (section("Load", &html! { ul.progress.columns { @for agent in &listed.agents { (load(agent)) } } }))
        (section("Agents", &html! {
            @if listed.agents.is_empty() { p { "No agents yet: " code { "landfall agents enrol --city CITY --carrier CARRIER" } } }
            @else { (table("Agents", &listed.agents, |agent| Some(page_layout::path("/agents/", &agent.name)))) }
            @if listed.more > 0 { p { "And " (number(listed.more)) " more: " code { "landfall agents list" } } }
        }))
    };
    Ok(Page { title: "Fleet".to_owned(), section: "/fleet", actions: html! {}, live })
}

/// A bar that shows how many of an agent's slots are used.
fn load(agent: &Agent) -> maud::Markup {
    let share = if agent.capacity == 0 { 0.0 } else { f64::from(agent.leased) / f64::from(agent.capacity) };
    let text = format!("{} of {} slots, {} waiting", agent.leased, agent.capacity, agent.waiting);
    html! { li { a href=(page_layout::path("/agents/", &agent.name)) { (agent.name) } " " (page_layout::share_bar(share, &text)) " " span.soft { (text) } } }
}

pub(in crate::web) async fn agent(web: &Web, name: &str) -> Result<Page, PageError> {
    let shown = web.services.show_agent(Request::new(ShowAgentRequest { name: name.to_owned() })).await?.into_inner();
    let agent = shown.agent.unwrap_or_default();
    let live = html! {
        (section("State", &html! {
            p { b { (service(&agent)) } }
            dl { @for (label, value) in facts(&agent, &page_layout::view()) { dt { (label) } dd { (value) } } }
        }))
        (section("Leases", &html! {
            @if shown.leases.is_empty() { p { "It holds no lease." } }
            @else { (table("Leases", &shown.leases, |lease| Some(page_layout::path("/site?name=", &lease.site)))) }
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
            @if let Some(at) = moment(event.at) { time datetime=(rfc3339(at)) { (page_layout::view().when(event.at)) } " " }
            b { (event.noun) " " (event.what) }
            @if !event.site.is_empty() { " " a href=(page_layout::path("/site?name=", &event.site)) { (event.site) } }
            @if !event.cause.is_empty() { span.soft { " " (event.cause) } }
        } } }
    }
}

/// The buttons of an agent's page. `done` is the action that led to this page, if any.
pub(in crate::web) fn agent_buttons(name: &str, form: &FormCode, done: &str) -> Markup {
    let known = [
        ("drain", "Drain", "It gets no more work, and finishes its leases."),
        ("resume", "Resume", "It gets work again."),
        ("trust", "Trust", "Its measurements are used again; it measures anew."),
    ];
    buttons(&page_layout::path("/agents/", name), name, &known, form, done)
}

/// Performs an action on an agent, then shows the agent's page.
pub(in crate::web) async fn act_on_agent(
    State(web): State<Web>,
    Path((name, action)): Path<(String, String)>,
) -> Response {
    let services = &web.services;
    let acted = match action.as_str() {
        "drain" => services.drain_agent(Request::new(DrainAgentRequest { name: name.clone() })).await.map(drop),
        "resume" => services.resume_agent(Request::new(ResumeAgentRequest { name: name.clone() })).await.map(drop),
        "trust" => services.trust_agent(Request::new(TrustAgentRequest { name: name.clone() })).await.map(drop),
        _ => return PageError::unknown().into_response(),
    };
    outcome(&web, acted, &page_layout::path("/agents/", &name), &action)
}
