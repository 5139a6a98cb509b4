//! Keeps pages that take long to draw, so that a page drawn once serves many viewers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::PageError;
use super::page_frame::Page;
use super::page_name::PageName;

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
