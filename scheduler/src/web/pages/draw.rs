//! Draws the page that an address names, adds the buttons for a signed-in operator, and keeps pages
//! that take long to draw.

use axum::extract::{Extension, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};

use super::{agent, batches, buttons, fleet, map, overview, site, trends};
use crate::web::Web;
use crate::web::error::PageError;
use crate::web::form::{Form, Visitor};
use crate::web::page_frame::Page;
use crate::web::page_name::PageName;

pub(in crate::web) async fn show(State(web): State<Web>, Extension(visitor): Extension<Visitor>, uri: Uri) -> Response {
    let Some(name) = PageName::of(&uri) else { return PageError::unknown().into_response() };
    match page(&web, &name).await {
        Ok(mut page) => {
            if let Visitor::Operator(form) = &visitor {
                page.actions = buttons::of(&name, form, Form::of_query(&uri).field("done"));
            }
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            page.document(&visitor, path).into_response()
        }
        Err(error) => error.into_response(),
    }
}

/// Returns a page without the operators' buttons: the kept page, or a new drawing.
pub(in crate::web) async fn page(web: &Web, name: &PageName) -> Result<Page, PageError> {
    web.kept.page(name, draw(web, name)).await
}

async fn draw(web: &Web, name: &PageName) -> Result<Page, PageError> {
    match name {
        PageName::Overview => overview::page(web).await,
        PageName::Map { epoch, globe } => map::page(web, epoch, *globe).await,
        PageName::Fleet => fleet::page(web).await,
        PageName::Agent(name) => agent::page(web, name).await,
        PageName::Batches => batches::page(web).await,
        PageName::Batch(name) => batches::batch(web, name).await,
        PageName::Site(name) => site::page(web, name).await,
        PageName::Trends => trends::page(web).await,
    }
}
