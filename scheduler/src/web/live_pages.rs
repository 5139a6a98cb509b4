//! Draws the page that an address names, adds the buttons for a signed-in operator, and updates
//! open pages with server-sent events.
//!
//! Each watched page is drawn once per [`PERIOD`] for all its viewers, and only while it has
//! viewers. A page that takes long to draw is drawn less often ([`super::page_names_and_cache`]).

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::{StatusCode, Uri};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use maud::html;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;

use super::Web;
use super::page_layout::{Form, Page, PageError, Visitor};
use super::page_names_and_cache::{MOST_PAGES, PageName};
use super::pages::{agents, batches_and_sites, map, overview_and_trends};

pub(in crate::web) async fn show(State(web): State<Web>, Extension(visitor): Extension<Visitor>, uri: Uri) -> Response {
    let Some(name) = PageName::of(&uri) else { return PageError::unknown().into_response() };
    match page(&web, &name).await {
        Ok(mut page) => {
            if let Visitor::Operator(form) = &visitor {
                let query = Form::of_query(&uri);
                page.actions = match &name {
                    PageName::Agent(name) => agents::agent_buttons(name, form, query.field("done")),
                    PageName::Batch(name) => batches_and_sites::batch_buttons(name, form, query.field("done")),
                    _ => html! {},
                };
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
        PageName::Overview => overview_and_trends::overview(web).await,
        PageName::Map { epoch, globe } => map::page(web, epoch, *globe).await,
        PageName::Fleet => agents::fleet(web).await,
        PageName::Agent(name) => agents::agent(web, name).await,
        PageName::Batches => batches_and_sites::batches(web).await,
        PageName::Batch(name) => batches_and_sites::batch(web, name).await,
        PageName::Site(name) => batches_and_sites::site(web, name).await,
        PageName::Trends => overview_and_trends::trends(web).await,
    }
}

/// The interval at which a watched page is drawn.
const PERIOD: Duration = Duration::from_secs(2);
/// Time after which a browser must connect again, so that its cookie is checked again.
const RECHECK: Duration = Duration::from_secs(600);
/// Maximum number of viewers of all watched pages together.
const MOST_VIEWERS: usize = 1_000;

/// The content of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    /// The page has not been drawn yet.
    New,
    Drawn(Arc<str>),
    /// The database does not answer.
    Lost,
    /// The object that the page shows does not exist, or was removed.
    Gone,
}

/// The watched pages, each with the sender of its content.
#[derive(Debug, Default)]
struct Hub {
    pages: Mutex<HashMap<PageName, watch::Sender<Content>>>,
}

impl Hub {
    /// Adds a viewer of a page. For the first viewer, also returns the sender of the
    /// page's content.
    fn watch(&self, name: &PageName) -> Result<(watch::Receiver<Content>, Option<watch::Sender<Content>>), PageError> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let viewers: usize = pages.values().map(watch::Sender::receiver_count).sum();
        let is_new = !pages.contains_key(name);
        if viewers >= MOST_VIEWERS || is_new && pages.len() >= MOST_PAGES {
            return Err(PageError::new(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open: reload later"));
        }
        let sender = pages.entry(name.clone()).or_insert_with(|| watch::Sender::new(Content::New));
        Ok((sender.subscribe(), is_new.then(|| sender.clone())))
    }

    fn forget(&self, name: &PageName) {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Removes a page if it has no viewers. Returns whether it was removed.
    fn leave(&self, name: &PageName) -> bool {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let left = pages.get(name).is_none_or(|sender| sender.receiver_count() == 0);
        if left {
            pages.remove(name);
        }
        left
    }
}

/// The data that viewers share. Clones are cheap.
#[derive(Debug, Clone)]
pub(super) struct Live {
    web: Web,
    hub: Arc<Hub>,
}

impl Live {
    pub(super) fn new(web: Web) -> Self {
        Self { web, hub: Arc::default() }
    }
}

/// Draws a page repeatedly until it has no viewers, or its object no longer exists.
async fn redraw(Live { web, hub }: Live, name: PageName, sender: watch::Sender<Content>) {
    while !hub.leave(&name) {
        let drawing = web.scheduler.wakes.database.while_it_answers(page(&web, &name)).await;
        let content = match drawing {
            Some(Ok(page)) => Content::Drawn(page.live.into_string().into()),
            Some(Err(error)) if error.code() == StatusCode::NOT_FOUND => Content::Gone,
            Some(Err(_)) | None => Content::Lost,
        };
        let gone = content == Content::Gone;
        sender.send_if_modified(|known| {
            let is_new = *known != content;
            *known = content;
            is_new
        });
        if gone {
            hub.forget(&name);
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = web.shutdown.cancelled() => return,
        }
    }
}

/// Sends a page's content whenever it changes: event `page` with the HTML, `lost` if the database
/// does not answer, or `gone` if the page's object no longer exists.
pub(super) async fn follow(State(live): State<Live>, uri: Uri) -> Response {
    let Some(name) = Form::of_query(&uri).field("page").parse::<Uri>().ok().and_then(|page| PageName::of(&page)) else {
        return PageError::unknown().into_response();
    };
    match live.hub.watch(&name) {
        Err(error) => error.into_response(),
        Ok((receiver, first)) => {
            if let Some(sender) = first {
                let live = live.clone();
                tokio::spawn(async move {
                    let drawing = tokio::spawn(redraw(live.clone(), name.clone(), sender));
                    // After a panic, the page is removed from the hub. Its viewers connect again,
                    // and a new async task draws the page.
                    if drawing.await.is_err() {
                        live.hub.forget(&name);
                    }
                });
            }
            Sse::new(events(live.web, receiver)).into_response()
        }
    }
}

fn events(web: Web, receiver: watch::Receiver<Content>) -> impl Stream<Item = Result<Event, Infallible>> {
    let contents = WatchStream::new(receiver).filter_map(async |content| match content {
        Content::New => None,
        Content::Drawn(content) => Some(Ok(Event::default().event("page").data(content))),
        Content::Lost => Some(Ok(Event::default().event("lost").data(""))),
        Content::Gone => Some(Ok(Event::default().event("gone").data(""))),
    });
    // Tells the browser how soon to connect again. This event is sent at once, so it also shows the
    // browser that the connection works.
    let begin = futures_util::stream::once(async { Ok(Event::default().retry(PERIOD)) });
    let end = async move {
        tokio::select! {
            () = web.shutdown.cancelled() => {}
            () = tokio::time::sleep(RECHECK) => {}
        }
    };
    begin.chain(contents).take_until(end)
}
