//! Decides how many paths of a site may wait in the queue.

/// Maximum number of queued paths, whatever the page budget. Each path takes a few hundred bytes on
/// disk and 22 bytes of memory.
const MAX_WAITING: u64 = 4_000_000;

/// Maximum number of queued paths of a crawl with this page budget.
pub(super) fn capacity(max_pages: u32) -> u64 {
    // A failed request uses up a path but yields no page, so a crawl may need more paths than its
    // page budget.
    let wanted = u64::from(max_pages).saturating_mul(4).saturating_add(1000);
    wanted.min(MAX_WAITING)
}
