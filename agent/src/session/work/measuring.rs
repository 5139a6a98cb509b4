//! Orders to measure: each carried out once, so many at a time, and answered.

use std::sync::Arc;

use landfall_proto::v1::measurement_failure::Reason;
use landfall_proto::v1::{MeasureOrder, MeasurementReport};
use tokio::task::JoinSet;

use super::super::measured::Measured;
use super::super::wire::{self, Failure};
use super::Work;

/// Orders held at all.
const MAX_ORDERS: usize = 2048;

impl Work {
    /// Carries an order to measure out; what cannot be is answered at once.
    pub(in crate::session) fn measure(&mut self, order: MeasureOrder) -> Option<MeasurementReport> {
        let order_id = order.order_id;
        let Some(context) = self.context.clone() else {
            return Some(wire::failed(order_id, Reason::NoContactUrl, "no contact URL is configured"));
        };
        if self.orders.values().any(|held| *held == order_id) {
            return None;
        }
        if self.orders.len() >= MAX_ORDERS {
            return Some(wire::failed(order_id, Reason::Order, "too many orders at once"));
        }
        let (target, order) = match wire::measurement(order) {
            Ok(order) => order,
            Err(Failure(reason)) => return Some(wire::failed(order_id, Reason::Order, &reason)),
        };
        let places = if target.is_beacon() { &self.beacon_places } else { &self.site_places };
        let (places, addresses) = (Arc::clone(places), Arc::clone(&self.addresses));
        let measuring = self.measures.spawn(async move {
            let _place = places.acquire().await.expect("the semaphore is never closed");
            let visit = addresses.visit(&context, &target, &order, order_id).await;
            Measured::new(order_id, &target, visit)
        });
        self.orders.insert(measuring.id(), order_id);
        None
    }

    /// What a measurement that ended has to report.
    pub(super) fn measurement_ended(
        &mut self,
        joined: Result<(tokio::task::Id, Measured), tokio::task::JoinError>,
    ) -> Option<MeasurementReport> {
        match joined {
            Ok((id, measured)) => {
                self.orders.remove(&id);
                Some(measured.report(&mut self.warned))
            }
            Err(error) => {
                let order_id = self.orders.remove(&error.id())?;
                tracing::error!(%error, order.id = order_id, "a measurement panicked");
                Some(wire::failed(order_id, Reason::Order, "the measurement failed for a mistake of the agent's"))
            }
        }
    }

    /// Drops the measurements of a session that ended: the next one orders them anew.
    pub(in crate::session) fn abandon_orders(&mut self) {
        self.measures.abort_all();
        self.measures = JoinSet::new();
        self.orders.clear();
    }
}
