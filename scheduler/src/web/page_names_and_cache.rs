//! Names each page, and reads a page's name from a path and query. Keeps pages that take long to
//! draw, so that a page drawn once serves many viewers. The struct `Web` holds these pages and the
//! other data that all handlers share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use tokio_util::sync::CancellationToken;

use super::page_layout::{Form, Page, PageError, see_other};
use super::pages::map_errors::EpochErrors;
use crate::Scheduler;
use crate::grpc::OperatorServices;

/// The data that all handlers share. Clones are cheap.
#[derive(Debug, Clone)]
pub(crate) struct Web {
    pub(super) scheduler: Scheduler,
    pub(super) services: OperatorServices,
    /// Whether browsers connect over TLS. Without TLS, the scheduler listens on loopback only.
    pub(super) tls: bool,
    pub(super) kept: Arc<KeptPages>,
    /// The most recently computed errors of the map.
    pub(super) map_errors: Arc<tokio::sync::Mutex<Option<EpochErrors>>>,
    pub(super) shutdown: CancellationToken,
}

impl Web {
    pub(crate) fn new(
        scheduler: Scheduler,
        services: OperatorServices,
        tls: bool,
        shutdown: CancellationToken,
    ) -> Self {
        let (kept, map_errors) = (Arc::default(), Arc::default());
        Self { scheduler, services, tls, kept, map_errors, shutdown }
    }
}

/// Answers an action that an operator took on a page: shows the page again, or the error.
pub(super) fn outcome(web: &Web, acted: Result<(), tonic::Status>, page: &str, action: &str) -> Response {
    web.kept.clear();
    match acted {
        Ok(()) => see_other(&format!("{page}?done={action}")),
        Err(status) => PageError::from(status).into_response(),
    }
}

/// A page, identified by its path and query.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum PageName {
    Overview,
    Map { epoch: String, globe: bool },
    Fleet,
    Agent(String),
    Batches,
    Batch(String),
    Site(String),
    Trends,
}

impl PageName {
    pub(super) fn of(uri: &Uri) -> Option<Self> {
        let query = Form::of_query(uri);
        let named = |name: &str| percent_decoded(name);
        match uri.path().trim_matches('/').split('/').collect::<Vec<_>>().as_slice() {
            [""] => Some(Self::Overview),
            ["map"] => {
                Some(Self::Map { epoch: query.field("epoch").to_owned(), globe: query.field("view") == "globe" })
            }
            ["fleet"] => Some(Self::Fleet),
            ["agents", name] => named(name).map(Self::Agent),
            ["batches"] => Some(Self::Batches),
            ["batches", name] => named(name).map(Self::Batch),
            ["site"] => Some(Self::Site(query.field("name").to_owned())),
            ["trends"] => Some(Self::Trends),
            _ => None,
        }
    }
}

/// Decodes `%XX`; `None` if a code is invalid or the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Maximum number of pages that are kept, and of pages that are watched at once.
pub(super) const MOST_PAGES: usize = 50;
/// A page that is drawn in less than this time is not kept, but drawn at every request.
const QUICK: Duration = Duration::from_millis(50);
/// A slow page is kept for its drawing time multiplied by this number, so that drawing a page takes
/// at most half a per cent of a core.
const KEPT: u32 = 200;
/// Maximum time for which a page is kept. Without a limit, a page drawn while the database is slow
/// could be shown for an hour.
const LONGEST: Duration = Duration::from_secs(60);

/// The cache entry of a page; `None` before the page is drawn. Locked while the page is drawn.
type Place = Arc<tokio::sync::Mutex<Option<KeptPage>>>;

#[derive(Debug)]
struct KeptPage {
    page: Page,
    /// When the drawing began.
    begun: Instant,
    until: Instant,
}

#[derive(Debug, Default)]
pub(super) struct KeptPages {
    places: Mutex<HashMap<PageName, Place>>,
}

impl KeptPages {
    /// The cache entry of a page. Returns `None` if [`MOST_PAGES`] other pages are being drawn or
    /// still kept.
    fn place(&self, name: &PageName) -> Option<Place> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if !places.contains_key(name) && places.len() >= MOST_PAGES {
            let now = Instant::now();
            // A locked cache entry belongs to a page that is being drawn.
            places.retain(|_, place| {
                place.try_lock().map_or(true, |kept| kept.as_ref().is_some_and(|kept| now < kept.until))
            });
            if places.len() >= MOST_PAGES {
                return None;
            }
        }
        Some(Arc::clone(places.entry(name.clone()).or_default()))
    }

    /// Removes all pages, because an operator has changed something that they show.
    pub(super) fn clear(&self) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the kept page, or else awaits `drawing`. Requests that arrive while the page is
    /// drawn share the next drawing.
    pub(super) async fn page(
        &self,
        name: &PageName,
        drawing: impl Future<Output = Result<Page, PageError>>,
    ) -> Result<Page, PageError> {
        let arrived = Instant::now();
        let Some(place) = self.place(name) else { return drawing.await };
        let mut kept = place.lock().await;
        let begun = Instant::now();
        if let Some(known) = kept.as_ref().filter(|known| begun < known.until || arrived <= known.begun) {
            return Ok(known.page.clone());
        }
        let page = drawing.await?;
        *kept = Some(KeptPage { page: page.clone(), begun, until: begun + kept_for(begun.elapsed()) });
        Ok(page)
    }
}

/// How long a page is kept, given how long drawing it took.
fn kept_for(took: Duration) -> Duration {
    if took < QUICK { Duration::ZERO } else { took.saturating_mul(KEPT).min(LONGEST) }
}

#[cfg(test)]
mod tests {
    use maud::html;

    use super::*;

    #[test]
    fn a_page_is_found_by_its_path_and_query() {
        let of = |path: &str| PageName::of(&path.parse().unwrap());
        assert_eq!(of("/"), Some(PageName::Overview));
        assert_eq!(of("/agents/%E7%A7%8B%2F1"), Some(PageName::Agent("秋/1".to_owned())));
        assert_eq!(of("/map?epoch=7&view=globe"), Some(PageName::Map { epoch: "7".to_owned(), globe: true }));
        assert_eq!(of("/site?name=https%3A%2F%2Fa.cn"), Some(PageName::Site("https://a.cn".to_owned())));
        for unknown in ["/x", "/agents", "/agents/%F", "/agents/%FF", "/agents/a/b", "/batches/a/cancel"] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
    }

    fn agent(number: usize) -> PageName {
        PageName::Agent(number.to_string())
    }

    #[test]
    fn slow_pages_are_kept_but_never_for_long() {
        assert_eq!(kept_for(Duration::from_millis(49)), Duration::ZERO);
        assert_eq!(kept_for(Duration::from_millis(200)), Duration::from_secs(40));
        for slow in [Duration::from_secs(30), Duration::MAX] {
            assert_eq!(kept_for(slow), LONGEST);
        }
    }

    #[test]
    fn the_number_of_pages_is_limited_and_unknown_ones_displace_none() {
        let kept = KeptPages::default();
        let fleet = kept.place(&PageName::Fleet).unwrap();
        let (page, now) =
            (Page { title: String::new(), section: "", actions: html! {}, live: html! {} }, Instant::now());
        *fleet.try_lock().unwrap() = Some(KeptPage { page, begun: now, until: now + LONGEST });
        // Pages that do not exist are never drawn, so their cache entries stay `None`.
        for number in 0..3 * MOST_PAGES {
            assert!(kept.place(&agent(number)).is_some());
            assert!(kept.places.lock().unwrap().len() <= MOST_PAGES);
        }
        assert!(Arc::ptr_eq(&fleet, &kept.place(&PageName::Fleet).unwrap()));
        kept.clear();
        assert!(!Arc::ptr_eq(&fleet, &kept.place(&PageName::Fleet).unwrap()));
        kept.clear();
        let places: Vec<Place> = (0..MOST_PAGES).map(|number| kept.place(&agent(number)).unwrap()).collect();
        let drawing: Vec<_> = places.iter().map(|place| place.try_lock().unwrap()).collect();
        assert!(kept.place(&PageName::Fleet).is_none(), "all places are being drawn");
        drop(drawing);
        assert!(kept.place(&PageName::Fleet).is_some());
    }
}
