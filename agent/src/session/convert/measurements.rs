//! Converts measurement orders and the reports on them, and limits what an order may ask for. This
//! module is pure.

use std::time::Duration;

use landfall_proto::v1::measurement_failure::Reason;
use landfall_proto::v1::measurement_report::Result as Reported;
use landfall_proto::v1::{
    DistanceMetric, MeasureOrder, Measurement, MeasurementFailure, MeasurementReport, Postponed, measure_order,
};

use super::durations::{duration, to_wire};
use super::sentence::sentence;
use crate::probe::locked_measurement::{OrderOutcome, OrderResult};
use crate::probe::weighted_mean::weighted_mean;
use crate::probe::{AddressLock, ConnectFailure, HostMeasurement, Metric, ProbeError, ProbeOrder, Target};

const MAX_SAMPLES: u32 = 1000;
/// Time limit for one sample if the order sets none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum interval and time limit of an order. An order with longer values would only keep other
/// orders waiting.
const LONGEST: Duration = Duration::from_secs(86_400);

#[derive(Debug)]
pub(in crate::session) struct InvalidOrder(pub(in crate::session) String);

pub(in crate::session) fn measurement(order: MeasureOrder) -> Result<(Target, ProbeOrder), InvalidOrder> {
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

pub(in crate::session) fn measured(order_id: i64, target: &Target, result: OrderResult) -> MeasurementReport {
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
            failed(order_id, Reason::Guard, &refused.with_remedy())
        }
        Err(error) => failed(order_id, reason(&error), &error.to_string()),
    };
    MeasurementReport { requests: result.requests, ..report }
}

fn probed_report(order_id: i64, target: &Target, probed: HostMeasurement) -> MeasurementReport {
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
        ..MeasurementReport::default()
    }
}

pub(in crate::session) fn failed(order_id: i64, reason: Reason, message: &str) -> MeasurementReport {
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

#[cfg(test)]
mod tests {
    use landfall_proto::v1::SiteTarget;

    use super::*;

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
    fn seconds(seconds: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos: 0 })
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
}
