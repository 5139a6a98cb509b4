//! The actions that an operator can take on a page: the buttons, and the requests that they send.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use landfall_proto::v1::fleet_service_server::FleetService as _;
use landfall_proto::v1::site_service_server::SiteService as _;
use landfall_proto::v1::{
    CancelTasksRequest, DrainAgentRequest, ResumeAgentRequest, RetryTasksRequest, TrustAgentRequest,
};
use maud::{Markup, html};
use tonic::Request;

use crate::web::error::PageError;
use crate::web::form::FormCode;
use crate::web::page_name::PageName;
use crate::web::sign_in::see_other;
use crate::web::{Web, elements};

/// The buttons of a page. `done` is the action that led to this page, if any.
pub(super) fn of(name: &PageName, form: &FormCode, done: &str) -> Markup {
    let actions: (&str, &str, &[(&str, &str, &str)]) = match name {
        PageName::Agent(name) => (
            "/agents/",
            name,
            &[
                ("drain", "Drain", "It gets no more work, and finishes its leases."),
                ("resume", "Resume", "It gets work again."),
                ("trust", "Trust", "Its measurements are used again; it measures anew."),
            ],
        ),
        PageName::Batch(name) => (
            "/batches/",
            name,
            &[
                ("retry", "Retry failed sites", "Every failed site gets a new round."),
                ("cancel", "Cancel", "Sites that have not ended are cancelled. This cannot be undone."),
            ],
        ),
        _ => return html! {},
    };
    let (head, name, actions) = actions;
    let path = elements::path(head, name);
    html! {
        @if let Some((_, title, _)) = actions.iter().find(|(action, ..)| *action == done) {
            p.done role="status" { "Done: " (title.to_lowercase()) "." }
        }
        div.actions { @for (action, title, detail) in actions {
            form method="post" action={ (path) "/" (action) } data-confirm={ (title) ": " (name) "? " (detail) } {
                (form.field())
                button type="submit" title=(detail) class=[(*action == "cancel").then_some("danger")] { (title) }
            }
        } }
    }
}

/// Performs an action on an agent, then shows the agent's page.
pub(in crate::web) async fn agent(State(web): State<Web>, Path((name, action)): Path<(String, String)>) -> Response {
    let fleet = &web.desks.fleet;
    let acted = match action.as_str() {
        "drain" => fleet.drain_agent(Request::new(DrainAgentRequest { name: name.clone() })).await.map(drop),
        "resume" => fleet.resume_agent(Request::new(ResumeAgentRequest { name: name.clone() })).await.map(drop),
        "trust" => fleet.trust_agent(Request::new(TrustAgentRequest { name: name.clone() })).await.map(drop),
        _ => return PageError::unknown().into_response(),
    };
    outcome(&web, acted, &elements::path("/agents/", &name), &action)
}

/// Performs an action on a batch, then shows the batch's page.
pub(in crate::web) async fn batch(State(web): State<Web>, Path((name, action)): Path<(String, String)>) -> Response {
    let sites = &web.desks.sites;
    let acted = match action.as_str() {
        "retry" => {
            let request = RetryTasksRequest { batch: name.clone(), failed: true, ..RetryTasksRequest::default() };
            sites.retry_tasks(Request::new(request)).await.map(drop)
        }
        "cancel" => {
            let request = CancelTasksRequest { batch: name.clone(), all: true, ..CancelTasksRequest::default() };
            sites.cancel_tasks(Request::new(request)).await.map(drop)
        }
        _ => return PageError::unknown().into_response(),
    };
    outcome(&web, acted, &elements::path("/batches/", &name), &action)
}

fn outcome(web: &Web, acted: Result<(), tonic::Status>, page: &str, action: &str) -> Response {
    web.kept.clear();
    match acted {
        Ok(()) => see_other(&format!("{page}?done={action}")),
        Err(status) => PageError::from(status).into_response(),
    }
}
