//! Carries out measurement orders, a limited number at a time, and reports each order exactly once.

use std::sync::Arc;

use landfall_proto::v1::measurement_failure::Reason;
use landfall_proto::v1::{MeasureOrder, MeasurementReport};
use tokio::task::JoinSet;

use super::Work;
use crate::net::guard::RefusedAddress;
use crate::probe::ProbeError;
use crate::session::convert::measurements::{self, InvalidOrder};

const MAX_ORDERS: usize = 2048;
/// Maximum number of concurrent orders to measure sites. It is large because most of the orders
/// only wait for the time of their next request.
pub(super) const SITE_ORDERS: usize = 512;
/// Maximum number of concurrent orders to measure beacons. It is small because concurrent
/// measurements disturb each other.
pub(super) const BEACON_ORDERS: usize = 4;

/// The report on an order, and the address of a beacon if the guard refused it.
pub(super) type MeasuredOrder = (MeasurementReport, Option<RefusedAddress>);

impl Work {
    /// Starts to carry out a measurement order. Returns a report if the order cannot be carried
    /// out.
    pub(in crate::session) fn measure(&mut self, order: MeasureOrder) -> Option<MeasurementReport> {
        let order_id = order.order_id;
        let Some(context) = self.context.clone() else {
            return Some(measurements::failed(order_id, Reason::NoContactUrl, "no contact URL is configured"));
        };
        if self.orders.values().any(|held| *held == order_id) {
            return None;
        }
        if self.orders.len() >= MAX_ORDERS {
            return Some(measurements::failed(order_id, Reason::Order, "too many orders at once"));
        }
        let (target, order) = match measurements::measurement(order) {
            Ok(order) => order,
            Err(InvalidOrder(reason)) => return Some(measurements::failed(order_id, Reason::Order, &reason)),
        };
        let places = if target.is_beacon() { &self.beacon_places } else { &self.site_places };
        let (places, addresses) = (Arc::clone(places), Arc::clone(&self.addresses));
        let measuring = self.measures.spawn(async move {
            let _place = places.acquire().await.expect("the semaphore is never closed");
            let result = addresses.measure(&context, &target, &order, order_id).await;
            let refused_beacon = match &result.outcome {
                Err(ProbeError::Guard(refused)) if target.is_beacon() => Some(*refused),
                _ => None,
            };
            (measurements::measured(order_id, &target, result), refused_beacon)
        });
        self.orders.insert(measuring.id(), order_id);
        None
    }

    /// The report on a measurement that ended.
    pub(super) fn measurement_ended(
        &mut self,
        joined: Result<(tokio::task::Id, MeasuredOrder), tokio::task::JoinError>,
    ) -> Option<MeasurementReport> {
        match joined {
            Ok((id, (report, refused_beacon))) => {
                self.orders.remove(&id);
                // Log at most one warning per reason.
                if let Some(refused) = refused_beacon.filter(|refused| self.warned.insert(refused.why)) {
                    tracing::warn!("cannot measure another agent's beacon: {}", refused.with_remedy());
                }
                Some(report)
            }
            Err(error) => {
                let order_id = self.orders.remove(&error.id())?;
                tracing::error!(%error, order.id = order_id, "a measurement panicked");
                Some(measurements::failed(
                    order_id,
                    Reason::Order,
                    "the measurement failed because of an error in the agent",
                ))
            }
        }
    }

    /// Drops the measurements of an ended session. The scheduler orders them again in the next
    /// session.
    pub(in crate::session) fn abandon_orders(&mut self) {
        self.measures.abort_all();
        self.measures = JoinSet::new();
        self.orders.clear();
    }
}
