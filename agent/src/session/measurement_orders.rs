//! Carries out measurement orders, a limited number at a time, and reports each order exactly once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use landfall_proto::v1::measurement_failure::Reason;
use landfall_proto::v1::{MeasureOrder, MeasurementReport};
use tokio::sync::Semaphore;
use tokio::task::{self, JoinError, JoinSet};

use super::convert::{self, InvalidOrder};
use crate::net::guard::RefusedAddress;
use crate::net::request_context::RequestContext;
use crate::probe::ProbeError;
use crate::probe::locked_measurement::Addresses;

const MAX_ORDERS: usize = 2048;
/// Maximum number of concurrent orders to measure sites. The number is large because most of the
/// orders only wait for the time of their next request.
const SITE_ORDERS: usize = 512;
/// Maximum number of concurrent orders to measure beacons. The number is small because concurrent
/// measurements disturb each other.
const BEACON_ORDERS: usize = 4;

/// The report on an order, and the address of a beacon if the guard refused it.
type MeasuredOrder = (MeasurementReport, Option<RefusedAddress>);

/// The measurement orders that the agent carries out.
#[derive(Debug)]
pub(super) struct MeasurementOrders {
    measures: JoinSet<MeasuredOrder>,
    /// The number of the order that each tokio task in `measures` carries out. The number is needed
    /// to report the order if the tokio task panics.
    numbers: HashMap<task::Id, i64>,
    site_places: Arc<Semaphore>,
    beacon_places: Arc<Semaphore>,
    /// The reasons for refusing a beacon that have already been logged as warnings.
    warned: HashSet<&'static str>,
    /// The addresses that orders measure. The addresses are kept for the orders of later sessions.
    addresses: Arc<Addresses>,
}

impl Default for MeasurementOrders {
    fn default() -> Self {
        Self {
            measures: JoinSet::new(),
            numbers: HashMap::new(),
            site_places: Arc::new(Semaphore::new(SITE_ORDERS)),
            beacon_places: Arc::new(Semaphore::new(BEACON_ORDERS)),
            warned: HashSet::new(),
            addresses: Arc::default(),
        }
    }
}

impl MeasurementOrders {
    /// Starts to carry out an order. Returns a report if the order cannot be carried out. `context`
    /// is `None` if no contact URL is configured.
    pub(super) fn begin(
        &mut self,
        order: MeasureOrder,
        context: Option<Arc<RequestContext>>,
    ) -> Option<MeasurementReport> {
        let order_id = order.order_id;
        let Some(context) = context else {
            return Some(convert::not_measured(order_id, Reason::NoContactUrl, "no contact URL is configured"));
        };
        if self.numbers.values().any(|held| *held == order_id) {
            return None;
        }
        if self.numbers.len() >= MAX_ORDERS {
            return Some(convert::not_measured(order_id, Reason::Order, "too many orders at once"));
        }
        let (target, order) = match convert::measurement(order) {
            Ok(order) => order,
            Err(InvalidOrder(reason)) => return Some(convert::not_measured(order_id, Reason::Order, &reason)),
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
            (convert::measured(order_id, &target, result), refused_beacon)
        });
        self.numbers.insert(measuring.id(), order_id);
        None
    }

    /// Waits for the next report on an order; `None` if there are no orders. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<MeasurementReport> {
        loop {
            let joined = self.measures.join_next_with_id().await?;
            if let Some(report) = self.ended(joined) {
                return Some(report);
            }
        }
    }

    fn ended(&mut self, joined: Result<(task::Id, MeasuredOrder), JoinError>) -> Option<MeasurementReport> {
        match joined {
            Ok((id, (report, refused_beacon))) => {
                self.numbers.remove(&id);
                // Log at most one warning per reason.
                if let Some(refused) = refused_beacon.filter(|refused| self.warned.insert(refused.why)) {
                    tracing::warn!("cannot measure another agent's beacon: {}", refused.with_remedy());
                }
                Some(report)
            }
            Err(error) => {
                let order_id = self.numbers.remove(&error.id())?;
                tracing::error!(%error, order.id = order_id, "a measurement panicked");
                Some(convert::not_measured(
                    order_id,
                    Reason::Order,
                    "the measurement failed because of an error in the agent",
                ))
            }
        }
    }

    /// Drops the measurements of an ended session. The scheduler orders them again in the next
    /// session.
    pub(super) fn abandon(&mut self) {
        self.measures.abort_all();
        self.measures = JoinSet::new();
        self.numbers.clear();
    }
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::measurement_report::Result as Reported;
    use landfall_proto::v1::{BeaconTarget, measure_order};

    use super::*;
    use crate::net::user_agent::UserAgent;
    use crate::session::tests::request_base;

    #[tokio::test]
    async fn a_refused_beacon_is_reported_with_a_remedy_and_logged_once() {
        let mut orders = MeasurementOrders::default();
        let context = Arc::new(request_base(&[]).context(UserAgent::new("https://example.org/bot").unwrap()));
        for (order_id, address) in [(1, "198.18.0.5"), (2, "198.19.0.5")] {
            let beacon = BeaconTarget { agent_id: 9, url: format!("http://{address}:7180/") };
            let interval = Some(prost_types::Duration::default());
            let target = Some(measure_order::Target::Beacon(beacon));
            let order = MeasureOrder { order_id, target, samples: 1, interval, metric: 1, ..MeasureOrder::default() };
            assert_eq!(orders.begin(order, Some(Arc::clone(&context))), None);
            let report = orders.next().await.unwrap();
            let Some(Reported::Failure(failure)) = report.result else { panic!("{report:?}") };
            assert_eq!(failure.reason(), Reason::Guard, "{failure:?}");
            let message = &failure.message;
            assert!(message.contains(address) && message.contains("allow_net = [\"198.18.0.0/15\"]"), "{message}");
        }
        assert_eq!(orders.warned.len(), 1);
    }

    #[tokio::test]
    async fn a_measurement_that_panics_is_reported_and_its_order_removed() {
        let mut orders = MeasurementOrders::default();
        let measuring = orders.measures.spawn(async { panic!("on purpose") });
        orders.numbers.insert(measuring.id(), 7);
        let report = orders.next().await.unwrap();
        assert!(matches!((report.order_id, report.result), (7, Some(Reported::Failure(_)))));
        assert!(orders.numbers.is_empty());
    }
}
