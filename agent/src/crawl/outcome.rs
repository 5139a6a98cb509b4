//! The outcome of a crawl, and the other ways in which a crawl ends. Decides which failures end a
//! crawl, and when a crawl returns its lease instead. For example, a site that returned no page
//! before the time limit is unreachable.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::fetch::Fetcher;
use super::fetch::failure_cause::Trouble;
use super::fetch::site_address::{AddressError, NotPermitted};
use super::frontier::Frontier;
use super::frontier::checkpoint::Checkpoint;
use super::frontier::crawl_storage::CrawlSnapshot;
use super::policy_and_budget::{Budget, Job, Ledger, Stopwatch};
use crate::net::guard::ResolveError;
use crate::net::origin::Origin;
use crate::probe::ProbeError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeKind {
    /// All known paths within the limits were requested, although some requests may have failed.
    Complete,
    Truncated(Budget),
    Blocked(Blocker),
    /// The site returned no page.
    Unreachable,
}

/// What blocks the crawl of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// The site's robots.txt, or the failure to fetch it.
    Robots,
    Guard,
    /// Too many consecutive failed requests.
    Breaker,
}

impl Blocker {
    /// What blocks a site whose robots.txt could not be read: the open circuit if there is one,
    /// otherwise the unreadable robots.txt.
    pub(super) const fn of_robots(is_circuit_open: bool) -> Self {
        if is_circuit_open { Self::Breaker } else { Self::Robots }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub kind: OutcomeKind,
    /// Number of requests that this process sent; 0 if another crawler sent them.
    pub requests: u32,
    /// Number of complete pages with status 200.
    pub pages: u32,
    /// Decoded body bytes of pages, including cut pages but excluding error responses, redirects
    /// and robots.txt.
    pub bytes: u64,
    /// Number of failed requests: those with no response, a status of 400 or above, a body that was
    /// cut off or too large, or endless redirects.
    pub errors: u32,
    /// Number of pages fetched again because the previous agent's checkpoint could not contain its
    /// whole state.
    pub refetched: u32,
    /// Number of links not followed because they lead into a trap, such as paths with repeated
    /// segments or endless calendars.
    pub trapped: u32,
    /// The names of other sites to which pages link, spelled as in site lists.
    pub hosts: Vec<String>,
    pub started_at: SystemTime,
    pub duration: Duration,
    /// The median time to first byte of requests on warm connections; absent if there were no such
    /// requests.
    pub rtt: Option<Duration>,
    /// The site's origin; absent if it was not found.
    pub origin: Option<String>,
    /// Why the site was blocked or unreachable, in one sentence. For other outcomes, the first
    /// error; empty if there was none.
    pub message: String,
    /// Why the site was unreachable; absent otherwise.
    pub trouble: Option<Trouble>,
}

/// How a call of `crawl::run` ended.
#[derive(Debug)]
pub enum CrawlEnd {
    Outcome(Outcome),
    /// The crawl was stopped before its end, and can resume from this state.
    Stopped(Option<CrawlSnapshot>),
    /// The site requires a pause of this length. After the pause the crawl can resume from this
    /// state.
    Paused(Option<CrawlSnapshot>, Duration),
    /// The scheduler permits no further crawl of the site's address, and has ended the lease.
    NotPermitted,
    /// The crawler crashed, which says nothing about the site. The text is the reason, in one
    /// sentence. The scheduler limits how often the crawls of a site may crash.
    Crashed(String),
    /// The crawl cannot continue on this agent, for a reason that is not the site's fault.
    Broken(String),
}

/// What ended the visits to a site's pages, or the search for its origin.
pub(super) enum WalkEnd {
    Exhausted,
    /// The crawl has exhausted this budget.
    Cut(Budget),
    /// The crawl may not fetch anything. Contains what blocks it, and the reason.
    Blocked(Blocker, String),
    /// The crawl cannot fetch anything. Contains the cause and the message.
    Unreachable(Trouble, String),
    /// The frontier cannot be stored. Contains the reason.
    Broken(String),
    /// The site requires a pause that is long enough to free the slot for another crawl.
    Paused(Duration),
    /// The scheduler permits no further crawl of the address, and has ended the lease. Contains the
    /// reason.
    NotPermitted(String),
}

impl From<std::io::Error> for WalkEnd {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(format!("the crawl's queue: {error}"))
    }
}

impl From<AddressError> for WalkEnd {
    fn from(error: AddressError) -> Self {
        match error {
            AddressError::NotPermitted(NotPermitted(reason)) => Self::NotPermitted(reason),
            AddressError::Resolve(ResolveError::Refused(refused)) => Self::Blocked(Blocker::Guard, refused.to_string()),
            AddressError::Timeout { .. } => Self::Unreachable(Trouble::TimedOut, error.to_string()),
            AddressError::Resolve(ResolveError::Dns(error)) => {
                Self::Unreachable(Trouble::from(&error), error.to_string())
            }
        }
    }
}

impl From<ProbeError> for WalkEnd {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::Guard(refused) => Self::Blocked(Blocker::Guard, refused.to_string()),
            other => Self::Unreachable(Trouble::from(&other), other.to_string()),
        }
    }
}

impl CrawlEnd {
    /// How a crawl ended whose walk ended with `end`. Only a crawl by the agent's own crawler has a
    /// frontier.
    pub(super) fn of_walk(
        end: WalkEnd,
        job: &Job,
        ledger: Ledger,
        frontier: Option<&Frontier>,
        fetcher: Option<&Fetcher>,
        origin: Option<&Origin>,
        watch: Stopwatch,
    ) -> Self {
        let first_error = ledger.first_error.map(|(_, sentence)| sentence).unwrap_or_default();
        let mut trouble = None;
        let (kind, message) = match end {
            WalkEnd::Blocked(blocker, reason) => (OutcomeKind::Blocked(blocker), reason),
            WalkEnd::Unreachable(why, reason) => {
                trouble = Some(why);
                (OutcomeKind::Unreachable, reason)
            }
            WalkEnd::Cut(_) if !ledger.answered => {
                trouble = Some(Trouble::TimedOut);
                (OutcomeKind::Unreachable, format!("{}: no answer within {:?}", job.name, job.policy.max_duration))
            }
            WalkEnd::Cut(budget) => (OutcomeKind::Truncated(budget), first_error),
            WalkEnd::Exhausted => (OutcomeKind::Complete, first_error),
            WalkEnd::Broken(reason) => return Self::Broken(reason),
            WalkEnd::NotPermitted(reason) => {
                tracing::debug!(site = job.name, reason, "the crawl got no permit for its address");
                return Self::NotPermitted;
            }
            WalkEnd::Paused(pause) => return Self::Paused(None, pause),
        };
        Self::Outcome(Outcome {
            kind,
            requests: fetcher.map_or(0, Fetcher::requests),
            pages: ledger.pages,
            bytes: ledger.bytes,
            errors: ledger.errors,
            refetched: frontier.map_or(0, |frontier| frontier.totals().refetched),
            trapped: frontier.map_or(0, |frontier| frontier.totals().trapped),
            hosts: frontier.into_iter().flat_map(Frontier::hosts).cloned().collect(),
            started_at: watch.started_at(),
            duration: watch.elapsed(),
            rtt: fetcher.and_then(Fetcher::median_round_trip),
            origin: origin.map(Origin::to_string),
            message,
            trouble,
        })
    }
}

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
