//! Converts leases, permits, checkpoints and the outcomes of crawls. This module is pure.

use std::net::IpAddr;
use std::time::Duration;

use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::{
    BlockedBy, Budget, CrawlCheckpoint, CrawlOrder, CrawlRateState, LeaseRelease, OutcomeKind, OutcomeReport,
    PermitRequest, Trouble,
};

use super::durations::{duration, to_wire};
use super::sentence::sentence;
use crate::crawl;
use crate::disk::lease_key::LeaseKey;
use crate::net::user_agent::{Product, UserAgent};

pub(in crate::session) fn release(key: LeaseKey) -> Up {
    crashed(key, "")
}

pub(in crate::session) fn crashed(key: LeaseKey, crash: &str) -> Up {
    Up::Release(LeaseRelease { task_id: key.task_id, token: key.token, crash: sentence(crash), not_before: None })
}

/// The message that returns a lease because its site requires the given pause.
pub(in crate::session) fn paused(key: LeaseKey, pause: Duration) -> Up {
    let not_before = to_wire(pause);
    Up::Release(LeaseRelease { task_id: key.task_id, token: key.token, crash: String::new(), not_before })
}

pub(in crate::session) fn permit_request(key: LeaseKey, address: IpAddr) -> Up {
    Up::Permit(PermitRequest { task_id: key.task_id, token: key.token, address: address.to_string() })
}

/// A lease whose order was validated.
pub(in crate::session) struct GrantedLease {
    pub(in crate::session) job: crawl::Job,
    /// Whether the crawl's pages are to be stored. The value has no effect if this agent stores no
    /// pages.
    pub(in crate::session) store: bool,
    /// The product name in the user agent; `None` means the default.
    pub(in crate::session) product: Option<Product>,
    /// A user agent with another contact URL; `None` means the default.
    pub(in crate::session) user_agent: Option<UserAgent>,
}

/// Validates the order of a granted lease. Returns `None` if its site or policy is missing or
/// invalid.
pub(in crate::session) fn granted(order: CrawlOrder) -> Option<GrantedLease> {
    let (site, policy) = (order.site?, order.policy?);
    let origin = site.origin.parse().ok();
    let request_interval = duration(policy.request_interval)?;
    let shortest_interval = duration(policy.shortest_interval).unwrap_or(request_interval);
    if shortest_interval > request_interval {
        return None;
    }
    let mut paths = crawl::PathFilter::ALL;
    paths.include(&policy.include.unwrap_or_default().patterns).ok()?;
    paths.exclude(&policy.exclude.unwrap_or_default().patterns).ok()?;
    let contact = policy.contact_url.filter(|url| !url.is_empty());
    let job = crawl::Job {
        name: site.name,
        origin,
        policy: crawl::Policy {
            max_pages: policy.max_pages?.max(1),
            max_bytes: policy.max_bytes?.max(1),
            max_depth: policy.max_depth?,
            max_duration: duration(policy.max_duration)?,
            request_interval,
            shortest_interval,
            max_hosts: policy.max_hosts.unwrap_or(0).min(crawl::MAX_HOSTS),
            sitemaps: policy.sitemaps.unwrap_or(true),
            paths,
        },
        last_pages: order.last_pages,
    };
    let user_agent = contact.map(|url| UserAgent::new(&url)).transpose().ok()?;
    let name = policy.user_agent.filter(|name| !name.is_empty());
    let product = name.map(|name| name.parse()).transpose().ok()?;
    Some(GrantedLease { job, store: policy.store.unwrap_or(true), product, user_agent })
}

pub(in crate::session) fn checkpoint(key: LeaseKey, snapshot: crawl::CrawlSnapshot) -> CrawlCheckpoint {
    let crawl::CrawlSnapshot { checkpoint, rate_state, last_error } = snapshot;
    let crawl::RateState { interval, pause, turned_away, failed_in_a_row, recent_requests, recent_errors } = rate_state;
    CrawlCheckpoint {
        task_id: key.task_id,
        token: key.token,
        pages: checkpoint.pages,
        state: checkpoint.bytes,
        rate_state: Some(CrawlRateState {
            interval: to_wire(interval),
            pause: Some(pause).filter(|pause| !pause.is_zero()).and_then(to_wire),
            turned_away,
            failed_in_a_row,
            recent_requests,
            recent_errors,
            last_error: sentence(&last_error),
        }),
    }
}

pub(in crate::session) fn outcome(key: LeaseKey, outcome: crawl::Outcome) -> OutcomeReport {
    let (kind, budget) = match outcome.kind {
        crawl::OutcomeKind::Complete => (OutcomeKind::Complete, Budget::Unspecified),
        crawl::OutcomeKind::Truncated(crawl::Budget::Pages) => (OutcomeKind::Truncated, Budget::Pages),
        crawl::OutcomeKind::Truncated(crawl::Budget::Bytes) => (OutcomeKind::Truncated, Budget::Bytes),
        crawl::OutcomeKind::Truncated(crawl::Budget::Depth) => (OutcomeKind::Truncated, Budget::Depth),
        crawl::OutcomeKind::Truncated(crawl::Budget::Duration) => (OutcomeKind::Truncated, Budget::Duration),
        crawl::OutcomeKind::Blocked(_) => (OutcomeKind::Blocked, Budget::Unspecified),
        crawl::OutcomeKind::Unreachable => (OutcomeKind::Unreachable, Budget::Unspecified),
    };
    let blocked_by = match outcome.kind {
        crawl::OutcomeKind::Blocked(crawl::Blocker::Robots) => BlockedBy::Robots,
        crawl::OutcomeKind::Blocked(crawl::Blocker::Guard) => BlockedBy::Guard,
        crawl::OutcomeKind::Blocked(crawl::Blocker::Breaker) => BlockedBy::Breaker,
        crawl::OutcomeKind::Complete | crawl::OutcomeKind::Truncated(_) | crawl::OutcomeKind::Unreachable => {
            BlockedBy::Unspecified
        }
    };
    OutcomeReport {
        task_id: key.task_id,
        token: key.token,
        kind: kind.into(),
        budget: budget.into(),
        blocked_by: blocked_by.into(),
        trouble: outcome.trouble.map_or(Trouble::Unspecified, trouble).into(),
        pages: outcome.pages,
        bytes: outcome.bytes,
        errors: outcome.errors,
        started_at: Some(outcome.started_at.into()),
        duration: to_wire(outcome.duration),
        rtt: outcome.rtt.and_then(to_wire),
        origin: outcome.origin.unwrap_or_default(),
        message: sentence(&outcome.message),
        refetched: outcome.refetched,
        trapped: outcome.trapped,
        hosts: outcome.hosts,
    }
}

const fn trouble(trouble: crawl::Trouble) -> Trouble {
    match trouble {
        crawl::Trouble::NameNotFound => Trouble::NameNotFound,
        crawl::Trouble::Refused => Trouble::ConnectionRefused,
        crawl::Trouble::NoConnection => Trouble::NoConnection,
        crawl::Trouble::TimedOut => Trouble::TimedOut,
        crawl::Trouble::Tls => Trouble::Tls,
        crawl::Trouble::Redirect => Trouble::Redirect,
        crawl::Trouble::ClientError => Trouble::Status4xx,
        crawl::Trouble::ServerError => Trouble::Status5xx,
        crawl::Trouble::BrokenAnswer => Trouble::BrokenAnswer,
        crawl::Trouble::Other => Trouble::Unspecified,
    }
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::{CrawlPolicy, PathPatterns, SiteTarget};

    use super::*;

    fn seconds(seconds: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos: 0 })
    }

    fn crawl_order(policy: CrawlPolicy) -> CrawlOrder {
        let site = SiteTarget { site_id: 1, name: "example.cn".to_owned(), origin: String::new() };
        let policy = CrawlPolicy {
            max_pages: Some(5),
            max_bytes: Some(5),
            max_depth: Some(5),
            max_hosts: Some(10),
            max_duration: seconds(5),
            request_interval: seconds(5),
            ..policy
        };
        CrawlOrder { site: Some(site), policy: Some(policy), ..CrawlOrder::default() }
    }

    #[test]
    fn fields_missing_from_an_older_scheduler_get_defaults() {
        let granted = granted(crawl_order(CrawlPolicy::default())).unwrap();
        assert_eq!(granted.job.policy.shortest_interval, Duration::from_secs(5));
        assert!(
            granted.job.policy.sitemaps && granted.store && granted.user_agent.is_none() && granted.product.is_none()
        );
        assert_eq!((granted.job.policy.paths, granted.job.last_pages), (crawl::PathFilter::ALL, None));
    }

    #[test]
    fn an_invalid_policy_is_refused_as_a_whole() {
        let patterns = |text: &str| Some(PathPatterns { patterns: vec![text.to_owned()] });
        let whole = CrawlPolicy {
            include: patterns("/a"),
            exclude: patterns("/a/b"),
            sitemaps: Some(false),
            store: Some(false),
            shortest_interval: seconds(1),
            contact_url: Some("https://example.org/study".to_owned()),
            user_agent: Some("StudyBot/1".to_owned()),
            ..CrawlPolicy::default()
        };
        let read = granted(crawl_order(whole.clone())).unwrap();
        assert!(!read.store && !read.job.policy.sitemaps && read.job.policy.paths != crawl::PathFilter::ALL);
        assert!(read.user_agent.unwrap().as_str().ends_with(" (+https://example.org/study)"));
        assert_eq!(read.product, "StudyBot/1".parse().ok());
        for wrong in [
            CrawlPolicy { include: patterns("a"), ..whole.clone() },
            CrawlPolicy { exclude: patterns(""), ..whole.clone() },
            CrawlPolicy { shortest_interval: seconds(6), ..whole.clone() },
            CrawlPolicy { contact_url: Some("nobody".to_owned()), ..whole.clone() },
            CrawlPolicy { user_agent: Some("Study Bot".to_owned()), ..whole },
        ] {
            assert!(granted(crawl_order(wrong.clone())).is_none(), "{wrong:?}");
        }
    }
}
