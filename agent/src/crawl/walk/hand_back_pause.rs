//! Decides for which pauses a crawl is returned to the scheduler, so that its slot is free during
//! the pause.

use std::time::Duration;

use tokio::time::Instant;

use super::Walk;
use crate::crawl::outcome::WalkEnd;

/// Minimum pause for which a crawl is returned to the scheduler. A shorter pause is not worth a
/// handover, which takes a few seconds.
pub(in crate::crawl) const MIN_HANDED_BACK_PAUSE: Duration = Duration::from_secs(30);

/// Whether a pause is long enough to free the slot, and ends before the crawl's deadline.
fn is_worth_handing_back(pause: Duration, deadline: Instant) -> bool {
    pause >= MIN_HANDED_BACK_PAUSE && Instant::now() + pause < deadline
}

impl Walk<'_> {
    /// Returns `WalkEnd::Paused` if the site requires a long pause.
    pub(super) fn check_pause(&self) -> Result<(), WalkEnd> {
        let pause = self.fetcher.politeness_state().pause;
        match self.hands_back_before {
            Some(deadline) if is_worth_handing_back(pause, deadline) => Err(WalkEnd::Paused(pause)),
            _ => Ok(()),
        }
    }
}
