//! The orders to measure sites and beacons, and an agent's reports of measurements, which are
//! recorded, and announced to the jobs that use them.

use futures_util::FutureExt as _;
use landfall_proto::v1;

use super::fields::respond;
use super::patience::Unhandled;
use super::received::MeasurementAnswer;
use super::session::Session;
use crate::config::{ConfirmConfig, MeasureConfig};
use crate::grpc::operator::convert::duration;
use crate::store::measurements;
use crate::store::measurements::orders::{Order, OrderTarget};

impl Session {
    pub(super) async fn record_measurement(&mut self, answer: &MeasurementAnswer) -> Result<(), Unhandled> {
        let recording = self.db.tx("record a measurement", |tx| {
            measurements::record(tx, self.agent, answer.order, &answer.report).boxed()
        });
        let recorded = recording.await?;
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
