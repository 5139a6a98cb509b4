//! The orders to measure sites and beacons, and an agent's reports of measurements, which are
//! validated, recorded, and announced to the jobs that use them.

use std::time::Duration;

use landfall_proto::v1;
use tonic::Status;

use super::session::{Session, clip, respond, rtt};
use crate::config::{ConfirmConfig, MeasureConfig};
use crate::grpc::operator::convert::{duration, plain};
use crate::model::OrderId;
use crate::store;
use crate::store::measurements::orders::{Order, OrderTarget};
use crate::store::measurements::results_and_failures::Failure;
use crate::store::measurements::{self, Measured, MeasurementReport, ReportContent};

/// Maximum age of a measurement that a prober reuses for another site.
const OLDEST_SHARED: Duration = Duration::from_secs(24 * 3600);

/// A parsed measurement report.
#[derive(Debug)]
struct MeasurementAnswer {
    order: OrderId,
    report: MeasurementReport,
}

impl Session {
    pub(super) async fn record_measurement(&mut self, report: v1::MeasurementReport) -> Result<(), Status> {
        let answer = measurement(report)?;
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let recorded = measurements::record(&mut tx, self.agent, answer.order, &answer.report).await?;
        store::commit(tx).await?;
        let wakes = &self.scheduler.wakes;
        match recorded {
            measurements::ReportTarget::Site(_) => {
                wakes.measure.notify_one();
                wakes.locate.notify_one();
                wakes.confirm.notify_one();
            }
            measurements::ReportTarget::Beacon(_) => {
                wakes.measure.notify_one();
                wakes.fit.notify_one();
            }
            measurements::ReportTarget::Unknown => {
                tracing::debug!(agent.name = self.name, order.id = %answer.order, "a report on an order that is not open");
            }
        }
        Ok(())
    }
}

fn measurement(report: v1::MeasurementReport) -> Result<MeasurementAnswer, Status> {
    use v1::measurement_report::Result as Reported;
    let finding = match report.result {
        None => return Err(Status::invalid_argument("result: missing")),
        Some(Reported::Postponed(v1::Postponed {})) => ReportContent::Postponed,
        Some(Reported::Failure(said)) => ReportContent::Measured { result: Err(failure(said)), agreed: None },
        Some(Reported::Measurement(measurement)) => match (measured(&measurement), report.shared_from) {
            // An implausible round trip is stored as a failed measurement; it does not end the
            // session.
            (Err(field), _) => {
                let failure = Failure::from(format!("the prober's report: {field}").as_str());
                ReportContent::Measured { result: Err(failure), agreed: None }
            }
            (Ok(measured), from) if from.is_empty() => {
                ReportContent::Measured { result: Ok(measured), agreed: report.agreed }
            }
            (Ok(measured), from) => {
                let age = plain(report.age).unwrap_or_default().min(OLDEST_SHARED);
                ReportContent::Shared { measured, from: clip(from), age }
            }
        },
    };
    Ok(MeasurementAnswer {
        order: OrderId::new(report.order_id),
        report: MeasurementReport {
            finding,
            origin: Some(clip(report.origin)).filter(|origin| !origin.is_empty()),
            address: report.address.parse().ok(),
            requests: report.requests,
        },
    })
}

/// Converts a measurement. An error names the invalid field.
fn measured(measurement: &v1::Measurement) -> Result<Measured, String> {
    let trip = |field: &str, value: Option<prost_types::Duration>| {
        let Some(given) = value else { return Err(format!("{field}: missing")) };
        rtt(value).ok_or_else(|| {
            format!("{field}: {} s and {} ns is not above 0 and at most 10 minutes", given.seconds, given.nanos)
        })
    };
    Ok(Measured {
        rtt: trip("rtt", measurement.rtt)?,
        min: trip("min", measurement.min)?,
        median: trip("median", measurement.median)?,
        spread: plain(measurement.spread).ok_or("spread: missing or negative")?,
        answered: measurement.count,
        lost: measurement.lost,
    })
}

fn failure(failure: v1::MeasurementFailure) -> Failure {
    Failure { cause: failure.reason().into(), said: clip(failure.message) }
}

/// The order to measure a site or a beacon.
pub(super) fn measure_order(order: Order, config: &MeasureConfig, confirm: &ConfirmConfig) -> v1::SessionResponse {
    let common = v1::MeasureOrder {
        order_id: order.id.get(),
        timeout: Some(duration(config.sample_timeout)),
        metric: v1::DistanceMetric::from(config.metric).into(),
        ..v1::MeasureOrder::default()
    };
    let order = match order.target {
        OrderTarget::Site { id, name, origin, locked, may_share } => v1::MeasureOrder {
            target: Some(v1::measure_order::Target::Site(v1::SiteTarget {
                site_id: id.get(),
                name,
                origin: origin.unwrap_or_default(),
            })),
            samples: if order.confirming { confirm.samples } else { config.site_samples },
            interval: Some(duration(config.site_interval)),
            least_samples: Some(config.site_least_samples),
            share_max_age: (may_share && !config.share_max_age.is_zero()).then(|| duration(config.share_max_age)),
            resolve_only: locked.is_none(),
            address: locked.map(|address| address.to_string()).unwrap_or_default(),
            ..common
        },
        OrderTarget::Beacon { agent, url } => v1::MeasureOrder {
            target: Some(v1::measure_order::Target::Beacon(v1::BeaconTarget { agent_id: agent.get(), url })),
            samples: config.mesh_samples,
            interval: Some(duration(config.mesh_interval)),
            ..common
        },
    };
    respond(v1::session_response::Message::Measure(order))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unbelievable_round_trip_is_a_failure_that_names_the_field() {
        let seconds = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
        let honest = v1::Measurement {
            rtt: seconds(0, 1_000),
            min: seconds(0, 1_000),
            median: seconds(0, 1_000),
            spread: seconds(0, 0),
            count: 5,
            ..v1::Measurement::default()
        };
        let result = |reported: v1::Measurement| {
            let result = Some(v1::measurement_report::Result::Measurement(reported));
            let report = v1::MeasurementReport { order_id: 1, result, ..v1::MeasurementReport::default() };
            match measurement(report).expect("understood").report.finding {
                ReportContent::Measured { result, .. } => result,
                other => panic!("neither measured nor failed: {other:?}"),
            }
        };
        assert!(result(honest).is_ok());
        for (broken, said) in [
            (v1::Measurement { rtt: seconds(0, 0), ..honest }, "rtt: 0 s and 0 ns is not above 0"),
            (v1::Measurement { rtt: seconds(-1, 0), ..honest }, "rtt: -1 s and 0 ns is not above 0"),
            (v1::Measurement { rtt: seconds(601, 0), ..honest }, "rtt: 601 s and 0 ns is not above 0"),
            (v1::Measurement { rtt: None, ..honest }, "rtt: missing"),
            (v1::Measurement { min: seconds(0, -1), ..honest }, "min: 0 s and -1 ns is not above 0"),
            (v1::Measurement { median: seconds(0, 0), ..honest }, "median: 0 s and 0 ns is not above 0"),
            (v1::Measurement { spread: seconds(0, -5), ..honest }, "spread: missing or negative"),
        ] {
            let failure = result(broken).expect_err("refused");
            assert!(failure.to_string().starts_with(&format!("the prober's report: {said}")), "{failure}");
        }
    }
}
