//! Keeps the pages that take long to draw, so that many viewers cost no more than one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Web;
use super::error::PageError;
use super::layout::Page;
use super::pages::{self, PageName};

/// A page that takes less time to draw than this is drawn at every request.
const QUICK: Duration = Duration::from_millis(50);
/// A page is kept for this many times the time that drawing it took, so that drawing a page takes
/// at most one per cent of a core.
const KEPT: u32 = 100;
/// Maximum number of kept pages. A limit is needed because visitors can request the map of every
/// stored epoch.
const MOST_PAGES: usize = 20;

/// The place where a page is kept. The place is locked while the page is drawn.
type Place = Arc<tokio::sync::Mutex<Option<KeptPage>>>;

#[derive(Debug)]
struct KeptPage {
    page: Page,
    until: Instant,
}

#[derive(Debug, Default)]
pub(super) struct KeptPages {
    places: Mutex<HashMap<PageName, Place>>,
}

impl KeptPages {
    fn place(&self, name: &PageName) -> Place {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if !places.contains_key(name) && places.len() >= MOST_PAGES {
            places.clear();
        }
        Arc::clone(places.entry(name.clone()).or_default())
    }

    /// Removes all pages, because an operator has changed something that they show.
    pub(super) fn clear(&self) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Draws a page, or returns the kept one. Requests for a page that is being drawn wait for it.
pub(super) async fn page(web: &Web, name: &PageName) -> Result<Page, PageError> {
    if !name.is_large() {
        return pages::page(web, name).await;
    }
    let place = web.kept.place(name);
    let mut kept = place.lock().await;
    let now = Instant::now();
    if let Some(known) = kept.as_ref().filter(|known| now < known.until) {
        return Ok(known.page.clone());
    }
    let page = pages::page(web, name).await?;
    let took = now.elapsed();
    *kept = (took >= QUICK).then(|| KeptPage { page: page.clone(), until: now + took * KEPT });
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_separate_places_and_their_number_is_limited() {
        let kept = KeptPages::default();
        let fleet = kept.place(&PageName::Fleet);
        assert!(Arc::ptr_eq(&fleet, &kept.place(&PageName::Fleet)));
        assert!(!Arc::ptr_eq(&fleet, &kept.place(&PageName::Overview)));
        for epoch in 0..2 * MOST_PAGES {
            kept.place(&PageName::Map { epoch: epoch.to_string(), globe: false });
            assert!(kept.places.lock().unwrap().len() <= MOST_PAGES);
        }
        kept.clear();
        assert!(!Arc::ptr_eq(&fleet, &kept.place(&PageName::Fleet)));
    }
}
