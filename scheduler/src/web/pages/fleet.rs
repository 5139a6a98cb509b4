//! The page of the fleet: how many slots each agent uses, and the list of agents.

use landfall_proto::v1::fleet_service_server::FleetService as _;
use landfall_proto::v1::{Agent, ListAgentsRequest};
use maud::html;
use tonic::Request;

use crate::cli::output::number;
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
