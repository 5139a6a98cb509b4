//! Decides how a crawl ends: complete, truncated by a budget, unreachable, or paused because the
//! site requires a long pause.

use super::visit_pages::Walk;
use crate::crawl::budget::Budget;
use crate::crawl::fetch::failure_cause::Trouble;
use crate::crawl::lease_return::is_worth_handing_back;
use crate::crawl::outcome::WalkEnd;

impl Walk<'_> {
    pub(super) fn end_of_frontier(&self) -> WalkEnd {
        if self.ledger.page_cut {
            WalkEnd::Cut(Budget::Bytes)
        } else if self.frontier.totals().dropped {
            WalkEnd::Cut(Budget::Pages)
        } else if self.frontier.has_beyond() {
            WalkEnd::Cut(Budget::Depth)
        } else if self.ledger.pages == 0 {
            let nothing = || (Trouble::Other, format!("{} returned no page", self.site.root()));
            let (trouble, reason) = self.ledger.first_error.clone().unwrap_or_else(nothing);
            WalkEnd::Unreachable(trouble, reason)
        } else {
            WalkEnd::Exhausted
        }
    }

    /// How a crawl ends at its deadline. If the crawl has fetched no page and met at least one
    /// error, the site is unreachable.
    pub(super) fn out_of_time(&self) -> WalkEnd {
        match &self.ledger.first_error {
            Some((trouble, error)) if self.ledger.pages == 0 => WalkEnd::Unreachable(*trouble, error.clone()),
            _ => WalkEnd::Cut(Budget::Duration),
        }
    }

    /// Returns `WalkEnd::Paused` if the site requires a long pause.
    pub(super) fn check_pause(&self) -> Result<(), WalkEnd> {
        let pause = self.fetcher.politeness_state().pause;
        match self.hands_back_before {
            Some(deadline) if is_worth_handing_back(pause, deadline) => Err(WalkEnd::Paused(pause)),
            _ => Ok(()),
        }
    }
}
