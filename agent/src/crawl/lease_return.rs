//! Decides when a crawl returns its lease: the pause after its last request, the time limit for
//! storing its pages, and the pauses of a site for which the crawl is returned to the scheduler, so
//! that its slot is free meanwhile.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::frontier::Frontier;
use super::frontier::checkpoint::Checkpoint;

/// Maximum time that a crawl keeps its slot after its last request, so that the site's next crawl
/// does not start within the request interval. If the interval is longer than this maximum, the
/// first request of the site's next crawl may come too early. One early request hardly burdens the
/// server.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// Maximum time that a stopped crawl waits for its pages to be stored. A stopping agent waits for
/// its crawls slightly longer than `STORE_TIMEOUT`.
const STORE_TIMEOUT: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(5) };
/// Minimum pause for which a crawl is returned to the scheduler. A shorter pause is not worth a
/// handover, which takes a few seconds.
const MIN_HANDED_BACK_PAUSE: Duration = Duration::from_secs(30);

/// The time that a crawl waits after its last request before it returns its lease.
pub(super) fn rest_after_last_request(request_interval: Duration) -> Duration {
    request_interval.min(LONGEST_REST)
}

/// Waits until a time, or until the crawl is stopped.
pub(super) async fn rest(until: Option<Instant>, stop: &CancellationToken) {
    if let Some(until) = until {
        stop.run_until_cancelled(sleep_until(until)).await;
    }
}

/// The checkpoint of a stopped crawl. A page counts as visited only once it is stored. If storing
/// takes too long, there is no checkpoint.
pub(super) async fn checkpoint_in_time(frontier: &mut Frontier) -> Option<Checkpoint> {
    timeout(STORE_TIMEOUT, frontier.checkpoint()).await.ok()?.ok()
}

/// Whether a pause is long enough to free the slot.
pub(super) fn is_long_enough_to_hand_back(pause: Duration) -> bool {
    pause >= MIN_HANDED_BACK_PAUSE
}

/// Whether a pause is long enough to free the slot, and ends before the crawl's deadline.
pub(super) fn is_worth_handing_back(pause: Duration, deadline: Instant) -> bool {
    is_long_enough_to_hand_back(pause) && Instant::now() + pause < deadline
}
