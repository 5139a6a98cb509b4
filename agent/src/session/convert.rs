//! Converts the protocol's leases, permits, checkpoints, outcomes and measurement orders, and the
//! reports on them. Limits what an order may ask for, and the messages of reports, because sites
//! influence them. This module is pure.

use std::net::IpAddr;
use std::time::Duration;

use landfall_proto::v1::measurement_failure::Reason;
use landfall_proto::v1::measurement_report::Result as Reported;
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::{
    BlockedBy, Budget, CrawlCheckpoint, CrawlOrder, CrawlRateState, DistanceMetric, LeaseRelease, MeasureOrder,
    Measurement, MeasurementFailure, MeasurementReport, OutcomeKind, OutcomeReport, PermitRequest, Postponed, Trouble,
    measure_order,
};

use crate::crawl;
use crate::disk::crawl_files::LeaseKey;
use crate::net::user_agent::{Product, UserAgent};
use crate::probe::locked_measurement::{OrderOutcome, OrderResult};
use crate::probe::weighted_mean::weighted_mean;
use crate::probe::{AddressLock, ConnectFailure, HostMeasurement, Metric, ProbeError, ProbeOrder, Target};

pub(super) fn release(key: LeaseKey) -> Up {
    crashed(key, "")
}

pub(super) fn crashed(key: LeaseKey, crash: &str) -> Up {
    lease_release(key, sentence(crash), None)
}

/// The message that returns a lease because its site requires the given pause.
pub(super) fn paused(key: LeaseKey, pause: Duration) -> Up {
    lease_release(key, String::new(), to_wire(pause))
}

fn lease_release(key: LeaseKey, crash: String, not_before: Option<prost_types::Duration>) -> Up {
    let LeaseKey { task_id, token, history } = key;
    Up::Release(LeaseRelease { task_id, token, history, crash, not_before })
}

pub(super) fn permit_request(key: LeaseKey, address: IpAddr) -> Up {
    let LeaseKey { task_id, token, history } = key;
    Up::Permit(PermitRequest { task_id, token, history, address: address.to_string() })
}

/// A lease whose order was validated.
pub(super) struct GrantedLease {
    pub(super) job: crawl::Job,
    /// Whether the crawl's pages are to be stored. The value has no effect if this agent stores no
    /// pages.
    pub(super) store: bool,
    /// The product name in the user agent; `None` means the default.
    pub(super) product: Option<Product>,
    /// A user agent with another contact URL; `None` means the default.
    pub(super) user_agent: Option<UserAgent>,
}

/// Validates the order of a granted lease. Returns `None` if its site or policy is missing or
/// invalid.
pub(super) fn granted(order: CrawlOrder) -> Option<GrantedLease> {
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

pub(super) fn checkpoint(key: LeaseKey, snapshot: crawl::CrawlSnapshot) -> CrawlCheckpoint {
    let crawl::CrawlSnapshot { checkpoint, rate_state, last_error } = snapshot;
    let crawl::RateState { interval, pause, turned_away, failed_in_a_row, recent_requests, recent_errors } = rate_state;
    CrawlCheckpoint {
        task_id: key.task_id,
        token: key.token,
        history: key.history,
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

pub(super) fn outcome(key: LeaseKey, outcome: crawl::Outcome) -> OutcomeReport {
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
        history: key.history,
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

const MAX_SAMPLES: u32 = 1000;
/// Time limit for one sample if the order sets none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum interval and time limit of an order. An order with longer values would only keep other
/// orders waiting.
const LONGEST: Duration = Duration::from_secs(86_400);

#[derive(Debug)]
pub(super) struct InvalidOrder(pub(super) String);

pub(super) fn measurement(order: MeasureOrder) -> Result<(Target, ProbeOrder), InvalidOrder> {
    let metric = match order.metric() {
        DistanceMetric::Ttfb => Metric::Ttfb,
        DistanceMetric::Connect => Metric::Connect,
        DistanceMetric::Icmp => Metric::Icmp,
        DistanceMetric::Unspecified => return Err(InvalidOrder("the order's metric is unknown".to_owned())),
    };
    if !(1..=MAX_SAMPLES).contains(&order.samples) {
        return Err(InvalidOrder(format!("{} samples are not in 1 to {MAX_SAMPLES}", order.samples)));
    }
    let target = match order.target {
        Some(measure_order::Target::Site(site)) => match site.origin.parse() {
            Ok(origin) => Ok(Target::settled(origin)),
            Err(_) => Target::site(&site.name),
        },
        Some(measure_order::Target::Beacon(beacon)) => Target::beacon(&beacon.url),
        None => return Err(InvalidOrder("the order has no target".to_owned())),
    };
    let target = target.map_err(|error| InvalidOrder(error.to_string()))?;
    // The interval is required, because an absent interval must not be read as zero.
    let interval = duration(order.interval).filter(|interval| *interval <= LONGEST);
    let interval = interval.ok_or_else(|| InvalidOrder(format!("the order's interval is not 0 s to {LONGEST:?}")))?;
    let timeout = duration(order.timeout).filter(|timeout| !timeout.is_zero()).unwrap_or(DEFAULT_TIMEOUT).min(LONGEST);
    let share_max_age = duration(order.share_max_age);
    let lock = lock(order.resolve_only, &order.address)?;
    let (samples, least_samples) = (order.samples, order.least_samples);
    Ok((target, ProbeOrder { metric, samples, least_samples, share_max_age, interval, timeout, lock }))
}

fn lock(resolve_only: bool, address: &str) -> Result<AddressLock, InvalidOrder> {
    match (resolve_only, address) {
        (true, _) => Ok(AddressLock::Nowhere),
        (false, "") => Ok(AddressLock::Anywhere),
        (false, address) => {
            address.parse().map(AddressLock::At).map_err(|_| InvalidOrder("the order's address is invalid".to_owned()))
        }
    }
}

pub(super) fn measured(order_id: i64, target: &Target, result: OrderResult) -> MeasurementReport {
    let report = match result.outcome {
        Ok(OrderOutcome::Measured(probed, agreed)) => {
            MeasurementReport { agreed, ..probed_report(order_id, target, probed) }
        }
        Ok(OrderOutcome::Shared { probed, from, age }) => MeasurementReport {
            shared_from: from.to_string(),
            age: to_wire(age),
            ..probed_report(order_id, target, probed)
        },
        Ok(OrderOutcome::Postponed { address, origin }) => MeasurementReport {
            order_id,
            result: Some(Reported::Postponed(Postponed {})),
            origin: origin.map(|origin| origin.to_string()).unwrap_or_default(),
            address: address.to_string(),
            ..MeasurementReport::default()
        },
        Err(ProbeError::Guard(refused)) if target.is_beacon() => {
            not_measured(order_id, Reason::Guard, &refused.with_remedy())
        }
        Err(error) => not_measured(order_id, reason(&error), &error.to_string()),
    };
    MeasurementReport { requests: result.requests, ..report }
}

fn probed_report(order_id: i64, target: &Target, probed: HostMeasurement) -> MeasurementReport {
    let Some(summary) = weighted_mean(&probed.samples) else {
        return not_measured(order_id, Reason::Timeout, "no sample was answered");
    };
    let origin = probed.origin.filter(|_| !target.is_beacon()).map(|origin| origin.to_string());
    MeasurementReport {
        order_id,
        result: Some(Reported::Measurement(Measurement {
            rtt: to_wire(summary.rtt),
            min: to_wire(summary.min),
            median: to_wire(summary.median),
            spread: to_wire(summary.spread),
            count: u32::try_from(probed.samples.len()).unwrap_or(u32::MAX),
            lost: probed.lost,
            dns: probed.phases.dns.and_then(to_wire),
            connect: probed.phases.connect.and_then(to_wire),
            tls: probed.phases.tls.and_then(to_wire),
        })),
        origin: origin.unwrap_or_default(),
        address: probed.address.to_string(),
        ..MeasurementReport::default()
    }
}

pub(super) fn not_measured(order_id: i64, reason: Reason, message: &str) -> MeasurementReport {
    let failure = MeasurementFailure { reason: reason.into(), message: sentence(message) };
    MeasurementReport { order_id, result: Some(Reported::Failure(failure)), ..MeasurementReport::default() }
}

const fn reason(error: &ProbeError) -> Reason {
    match error {
        ProbeError::Dns(_) => Reason::Dns,
        ProbeError::Guard(_) => Reason::Guard,
        ProbeError::Connect { cause: ConnectFailure::Refused, .. } => Reason::Refused,
        ProbeError::Connect { cause: ConnectFailure::TimedOut, .. } => Reason::ConnectTimeout,
        ProbeError::Connect { cause: ConnectFailure::Failed, .. } => Reason::Connect,
        ProbeError::Tls { .. } => Reason::Tls,
        ProbeError::Timeout(_) => Reason::Timeout,
        ProbeError::Protocol { .. } => Reason::Protocol,
        ProbeError::NotPermitted(_) => Reason::Metric,
        ProbeError::BadOrder(_) => Reason::Order,
    }
}

/// Maximum length of a message in a report, in bytes. The length is limited because sites influence
/// messages: for example, a redirect target may be 64 KiB long.
const MAX_SENTENCE: usize = 500;

/// Makes a message safe to store and print, because a site may have influenced it.
fn sentence(text: &str) -> String {
    let mut kept = String::new();
    for character in text.chars().filter(|character| !character.is_control()) {
        if kept.len() + character.len_utf8() > MAX_SENTENCE {
            kept.push('…');
            break;
        }
        kept.push(character);
    }
    kept
}

pub(super) fn duration(wire: Option<prost_types::Duration>) -> Option<Duration> {
    wire.and_then(|wire| Duration::try_from(wire).ok())
}

fn to_wire(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
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
    fn a_large_site_keeps_its_origin_its_size_and_its_shorter_interval() {
        let mut order = crawl_order(CrawlPolicy { shortest_interval: seconds(0), ..CrawlPolicy::default() });
        order.last_pages = Some(100_000);
        order.site.as_mut().unwrap().origin = "http://example.cn:8080".to_owned();
        let job = granted(order).unwrap().job;
        assert_eq!((job.last_pages, job.origin), (Some(100_000), "http://example.cn:8080".parse().ok()));
        let crawl::Policy { request_interval, shortest_interval, .. } = job.policy;
        assert_eq!((request_interval, shortest_interval), (Duration::from_secs(5), Duration::ZERO));
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

    fn order(samples: u32, interval: Option<prost_types::Duration>) -> MeasureOrder {
        let site = SiteTarget { site_id: 1, name: "example.cn".to_owned(), origin: String::new() };
        MeasureOrder {
            order_id: 1,
            target: Some(measure_order::Target::Site(site)),
            samples,
            interval,
            timeout: Some(prost_types::Duration { seconds: i64::MAX, nanos: 0 }),
            metric: DistanceMetric::Ttfb.into(),
            least_samples: None,
            share_max_age: None,
            resolve_only: false,
            address: String::new(),
        }
    }
    #[test]
    fn invalid_orders_are_refused() {
        let (_, read) = measurement(order(5, seconds(1))).unwrap();
        assert_eq!((read.interval, read.timeout), (Duration::from_secs(1), LONGEST));
        assert!(measurement(order(5, seconds(0))).is_ok(), "beacons may be asked without a pause");
        for absurd in [
            order(0, seconds(1)),
            order(u32::MAX, seconds(1)),
            order(5, seconds(365 * 86_400)),
            order(5, seconds(-1)),
            order(5, None),
            MeasureOrder { address: "elsewhere".to_owned(), ..order(5, seconds(1)) },
        ] {
            assert!(measurement(absurd.clone()).is_err(), "{absurd:?}");
        }
    }

    #[test]
    fn an_orders_address_lock_is_read() {
        let lock = |resolve_only, address: &str| {
            let order = MeasureOrder { resolve_only, address: address.to_owned(), ..order(5, seconds(1)) };
            measurement(order).unwrap().1.lock
        };
        assert_eq!(lock(false, ""), AddressLock::Anywhere, "a scheduler that does not know of turns");
        assert_eq!(lock(true, ""), AddressLock::Nowhere);
        assert_eq!(lock(false, "2001:db8::1"), AddressLock::At("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn a_sentence_from_a_site_is_bounded() {
        assert_eq!(sentence("no answer\0\n"), "no answer");
        let long = sentence(&"é".repeat(40_000));
        assert!(long.len() <= MAX_SENTENCE + '…'.len_utf8() && long.ends_with("é…"), "{}", long.len());
    }
}
