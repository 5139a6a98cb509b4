//! Between the wire's messages and the agent's own words. Pure.

use std::time::Duration;

use landfall_proto::v1::measurement_failure::Reason;
use landfall_proto::v1::measurement_report::Result as Reported;
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::{
    Budget, CrawlOrder, DistanceMetric, LeaseRelease, MeasureOrder, Measurement, MeasurementFailure, MeasurementReport,
    OutcomeKind, OutcomeReport, SiteTarget, measure_order,
};

use crate::crawl;
use crate::origin::Origin;
use crate::outbox::LeaseKey;
use crate::probe::weighted_mean::weighted_mean;
use crate::probe::{Metric, Order, ProbeError, Probed, Target};

/// Samples of one order at most.
const MAX_SAMPLES: u32 = 1000;
/// How long one sample may take when the order does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// An order that is not understood.
#[derive(Debug)]
pub(super) struct Failure(pub(super) String);

/// Reads an order to measure.
pub(super) fn measurement(order: MeasureOrder) -> Result<(Target, Order), Failure> {
    let metric = match order.metric() {
        DistanceMetric::Ttfb => Metric::Ttfb,
        DistanceMetric::Connect => Metric::Connect,
        DistanceMetric::Icmp => Metric::Icmp,
        DistanceMetric::Unspecified => return Err(Failure("the metric is not known".to_owned())),
    };
    if !(1..=MAX_SAMPLES).contains(&order.samples) {
        return Err(Failure(format!("{} samples are not 1 to {MAX_SAMPLES}", order.samples)));
    }
    let target = match order.target {
        Some(measure_order::Target::Site(site)) => match settled_origin(&site) {
            Some(origin) => Ok(Target::settled(origin)),
            None => Target::site(&site.name),
        },
        Some(measure_order::Target::Beacon(beacon)) => Target::beacon(&beacon.url),
        None => return Err(Failure("the order has no target".to_owned())),
    };
    let target = target.map_err(|error| Failure(error.to_string()))?;
    let interval = duration(order.interval).unwrap_or_default();
    let timeout = duration(order.timeout).filter(|timeout| !timeout.is_zero()).unwrap_or(DEFAULT_TIMEOUT);
    Ok((target, Order { metric, samples: order.samples, interval, timeout }))
}

fn settled_origin(site: &SiteTarget) -> Option<Origin> {
    site.origin.parse().ok()
}

fn duration(wire: Option<prost_types::Duration>) -> Option<Duration> {
    wire.and_then(|wire| Duration::try_from(wire).ok())
}

fn to_wire(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

/// Reports what a prober saw.
pub(super) fn measured(order_id: i64, target: &Target, result: Result<Probed, ProbeError>) -> MeasurementReport {
    let probed = match result {
        Ok(probed) => probed,
        Err(error) => return failed(order_id, reason(&error), &error.to_string()),
    };
    let Some(summary) = weighted_mean(&probed.samples) else {
        return failed(order_id, Reason::Timeout, "no sample was answered");
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
    }
}

/// Reports that nothing could be measured.
pub(super) fn failed(order_id: i64, reason: Reason, message: &str) -> MeasurementReport {
    let failure = MeasurementFailure { reason: reason.into(), message: message.to_owned() };
    MeasurementReport { order_id, result: Some(Reported::Failure(failure)), ..MeasurementReport::default() }
}

const fn reason(error: &ProbeError) -> Reason {
    match error {
        ProbeError::Dns(_) => Reason::Dns,
        ProbeError::Guard(_) => Reason::Guard,
        ProbeError::Connect { .. } => Reason::Connect,
        ProbeError::Tls { .. } => Reason::Tls,
        ProbeError::Timeout(_) => Reason::Timeout,
        ProbeError::Protocol { .. } => Reason::Protocol,
        ProbeError::NotPermitted(_) => Reason::Metric,
        ProbeError::BadOrder(_) => Reason::Order,
    }
}

/// Hands a lease back.
pub(super) fn release(key: LeaseKey) -> Up {
    Up::Release(LeaseRelease { task_id: key.task_id, token: key.token })
}

/// Reads a granted lease; `None` when it names no site or no whole policy.
pub(super) fn job(order: CrawlOrder) -> Option<crawl::Job> {
    let (site, policy) = (order.site?, order.policy?);
    let origin = settled_origin(&site);
    Some(crawl::Job {
        name: site.name,
        origin,
        policy: crawl::Policy {
            max_pages: policy.max_pages?.max(1),
            max_bytes: policy.max_bytes?.max(1),
            max_depth: policy.max_depth?,
            max_duration: duration(policy.max_duration)?,
            request_interval: duration(policy.request_interval)?,
        },
    })
}

/// Reports the end of a crawl.
pub(super) fn outcome(key: LeaseKey, outcome: crawl::Outcome) -> OutcomeReport {
    let (kind, budget) = match outcome.kind {
        crawl::Kind::Complete => (OutcomeKind::Complete, Budget::Unspecified),
        crawl::Kind::Truncated(crawl::Budget::Pages) => (OutcomeKind::Truncated, Budget::Pages),
        crawl::Kind::Truncated(crawl::Budget::Bytes) => (OutcomeKind::Truncated, Budget::Bytes),
        crawl::Kind::Truncated(crawl::Budget::Depth) => (OutcomeKind::Truncated, Budget::Depth),
        crawl::Kind::Truncated(crawl::Budget::Duration) => (OutcomeKind::Truncated, Budget::Duration),
        crawl::Kind::Blocked => (OutcomeKind::Blocked, Budget::Unspecified),
        crawl::Kind::Unreachable => (OutcomeKind::Unreachable, Budget::Unspecified),
    };
    OutcomeReport {
        task_id: key.task_id,
        token: key.token,
        kind: kind.into(),
        budget: budget.into(),
        pages: outcome.pages,
        bytes: outcome.bytes,
        errors: outcome.errors,
        started_at: Some(outcome.started_at.into()),
        duration: to_wire(outcome.duration),
        rtt: outcome.rtt.and_then(to_wire),
        origin: outcome.origin.unwrap_or_default(),
        message: outcome.message,
    }
}
