//! Measures sites by address. An order is carried out only at an address whose lock it holds.
//! [`super::sharing`] decides whether the order's measurement also holds for other sites at the
//! address.
//!
//! If the site's name resolves to another address, the prober reports that address and sends
//! nothing to it. The scheduler orders the measurement again when the lock on that address is free.
//! If another order on this agent uses the address for too long, the prober reports the address,
//! and the scheduler orders the measurement again later.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::address_locks::AddressLocks;
use super::measure_host::{self, measure_paced, sample_settled};
use super::sharing::{MeasurementKey, MeasurementSharing, SharingAdvice, draw};
use super::{HostMeasurement, ProbeError, ProbeOrder, RequestPacer, Target, http};
use crate::net::origin::Origin;
use crate::net::request_context::RequestContext;

/// The addresses that one agent measures, kept across its sessions.
#[derive(Debug, Default)]
pub struct Addresses {
    /// The recent measurements. This lock is never held across an await.
    sharing: Mutex<MeasurementSharing>,
    locks: AddressLocks,
}

#[derive(Debug)]
pub struct OrderResult {
    pub outcome: Result<OrderOutcome, ProbeError>,
    /// Number of requests that the order sent and connections that it attempted.
    pub requests: u32,
}

#[derive(Debug)]
pub enum OrderOutcome {
    /// The site was measured. If another site's measurement could have been shared, the flag shows
    /// whether both measurements agree.
    Measured(HostMeasurement, Option<bool>),
    Shared {
        /// The measurement: this site's origin with the other site's samples.
        probed: HostMeasurement,
        from: Origin,
        age: Duration,
    },
    /// The order does not hold the lock on the address, so nothing was measured.
    Postponed {
        address: IpAddr,
        /// Absent if the site's origin was not found.
        origin: Option<Origin>,
    },
}

impl Addresses {
    pub async fn measure(
        &self,
        context: &RequestContext,
        target: &Target,
        order: &ProbeOrder,
        number: i64,
    ) -> OrderResult {
        let mut pacer = RequestPacer::new(order.interval);
        let outcome = if target.is_beacon() {
            let measured = measure_paced(context, target, order, &mut pacer, &mut |_| {}).await;
            measured.map(|probed| OrderOutcome::Measured(probed, None))
        } else {
            self.measure_site(context, target, order, draw(number), &mut pacer).await
        };
        OrderResult { outcome, requests: pacer.sent() }
    }

    async fn measure_site(
        &self,
        context: &RequestContext,
        target: &Target,
        order: &ProbeOrder,
        draw: f64,
        pacer: &mut RequestPacer,
    ) -> Result<OrderOutcome, ProbeError> {
        let target = &target.clone().with_first(order.lock.address());
        let first = target.candidates[0].clone();
        let first = http::Endpoint::resolve(context, &context.guard, first, target, order.timeout).await?;
        let address = first.address();
        if !order.lock.is_at(address) {
            return Ok(OrderOutcome::Postponed { address, origin: None });
        }
        let Some(lock) = self.locks.lock(address).await else {
            return Ok(OrderOutcome::Postponed { address, origin: None });
        };
        if let Some(origin) = measure_host::settled_origin(target) {
            let key = measurement_key(origin, address, order);
            let advice = self.advise(&key, order, draw);
            if let SharingAdvice::Share(probed, age) = advice {
                return Ok(shared(probed, age, origin, address, None));
            }
            // `measure_paced` resolves the name again, but usually from the resolver's cache.
            let probed = measure_paced(context, target, order, pacer, &mut |_| {}).await?;
            return Ok(self.measured(key, probed, advice));
        }
        let found = measure_host::find_origin(context, target, order.timeout, pacer, &mut |_| {}).await?;
        let (origin, settled_at) = (found.endpoint.origin.clone(), found.endpoint.address());
        let _turn = if settled_at == address {
            lock
        } else if !order.lock.is_at(settled_at) {
            return Ok(OrderOutcome::Postponed { address: settled_at, origin: Some(origin) });
        } else {
            // Release the first lock before waiting for the second, because two orders that wait
            // for each other's address would deadlock.
            drop(lock);
            match self.locks.lock(settled_at).await {
                Some(lock) => lock,
                None => return Ok(OrderOutcome::Postponed { address: settled_at, origin: Some(origin) }),
            }
        };
        let key = measurement_key(&origin, settled_at, order);
        let advice = self.advise(&key, order, draw);
        if let SharingAdvice::Share(probed, age) = advice {
            return Ok(shared(probed, age, &origin, settled_at, Some(&found)));
        }
        let probed = sample_settled(found, order, pacer, &mut |_| {}).await?;
        Ok(self.measured(key, probed, advice))
    }

    fn advise(&self, key: &MeasurementKey, order: &ProbeOrder, draw: f64) -> SharingAdvice {
        self.sharing().advise(key, order.share_max_age, draw, Instant::now())
    }

    fn measured(&self, mut key: MeasurementKey, probed: HostMeasurement, advice: SharingAdvice) -> OrderOutcome {
        let now = Instant::now();
        let mut sharing = self.sharing();
        // If the first address did not respond, the measurement used another address.
        key.address = probed.address;
        let agreed = match advice {
            SharingAdvice::Check(shared) => Some(sharing.compare(&key, &shared, &probed, now)),
            SharingAdvice::Measure | SharingAdvice::Share(..) => None,
        };
        sharing.learn(key, probed.clone(), now);
        OrderOutcome::Measured(probed, agreed)
    }

    fn sharing(&self) -> std::sync::MutexGuard<'_, MeasurementSharing> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn measurement_key(origin: &Origin, address: IpAddr, order: &ProbeOrder) -> MeasurementKey {
    MeasurementKey { address, port: origin.port, scheme: origin.scheme, metric: order.metric }
}

/// A measurement with another site's samples. If this site was contacted too, the phases are those
/// of its own connection.
fn shared(
    other: HostMeasurement,
    age: Duration,
    origin: &Origin,
    address: IpAddr,
    found: Option<&measure_host::SettledEndpoint<'_>>,
) -> OrderOutcome {
    let from = other.origin.unwrap_or_else(|| origin.clone());
    let phases = found.map(|found| found.phases).unwrap_or_default();
    let probed =
        HostMeasurement { origin: Some(origin.clone()), address, phases, samples: other.samples, lost: other.lost };
    OrderOutcome::Shared { probed, from, age }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::probe::AddressLock;
    use crate::testing::{SeenRequest, TestNames, TestServer, ok_after, redirect};

    const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
    const THERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
    const NAMES: [(&str, Ipv4Addr); 5] = [
        ("a.example.com", HERE),
        ("b.example.com", HERE),
        ("moved.example.com", THERE),
        ("both.example.com", HERE),
        ("both.example.com", THERE),
    ];
    /// The number of an order for which [`draw`] leads to sharing, not to a check.
    const SHARES: i64 = 1;
    const MINUTE: Duration = Duration::from_secs(60);

    async fn context() -> RequestContext {
        TestNames::start(&NAMES).await.context(&["127.0.0.0/8"])
    }

    fn order() -> ProbeOrder {
        ProbeOrder { share_max_age: Some(MINUTE), ..crate::probe::tests::order(4) }
    }

    async fn server(millis: u64) -> TestServer {
        TestServer::start(move |_| ok_after(millis)).await
    }

    fn origin(host: &str, server: &TestServer) -> Origin {
        format!("http://{host}:{}", server.addr.port()).parse().unwrap()
    }

    fn check() -> i64 {
        (1..).find(|number| draw(*number) < 0.01).unwrap()
    }

    #[tokio::test]
    async fn a_settled_second_site_at_an_address_gets_no_request() {
        let (context, server, addresses) = (context().await, server(5).await, Addresses::default());
        let (a, b) = (origin("a.example.com", &server), origin("b.example.com", &server));
        let first = addresses.measure(&context, &Target::settled(a.clone()), &order(), SHARES).await;
        assert!(matches!(first.outcome, Ok(OrderOutcome::Measured(_, None))), "{first:?}");
        assert_eq!((first.requests, server.requests().len()), (5, 5), "one thrown away and four samples");

        let second = addresses.measure(&context, &Target::settled(b.clone()), &order(), SHARES).await;
        let Ok(OrderOutcome::Shared { probed, from, .. }) = second.outcome else { panic!("{second:?}") };
        assert_eq!((probed.origin, from, probed.samples.len()), (Some(b.clone()), a, 4));
        assert_eq!((second.requests, server.requests().len()), (0, 5));

        let fresh = ProbeOrder { share_max_age: None, ..order() };
        let third = addresses.measure(&context, &Target::settled(b), &fresh, SHARES).await;
        assert!(matches!(third.outcome, Ok(OrderOutcome::Measured(..))), "{third:?}");
    }

    #[tokio::test]
    async fn an_unsettled_site_gets_only_the_settling_request() {
        let (context, server, addresses) = (context().await, server(5).await, Addresses::default());
        let a = Target::settled(origin("a.example.com", &server));
        addresses.measure(&context, &a, &order(), SHARES).await;
        let b = Target::site(&origin("b.example.com", &server).to_string()).unwrap();
        let result = addresses.measure(&context, &b, &order(), SHARES).await;
        let Ok(OrderOutcome::Shared { probed, .. }) = result.outcome else { panic!("{result:?}") };
        assert_eq!(probed.origin, Some(origin("b.example.com", &server)));
        assert!(probed.phases.connect.is_some(), "its own connection was timed");
        assert_eq!((result.requests, server.requests().len()), (1, 6));
    }

    #[tokio::test]
    async fn a_site_slower_than_its_neighbour_ends_the_sharing() {
        let slow_b = TestServer::plain(|seen: &SeenRequest| {
            ok_after(if seen.head.contains("host: b.example.com") { 60 } else { 5 })
        });
        let (context, server, addresses) = (context().await, slow_b.await, Addresses::default());
        let (a, b) = (origin("a.example.com", &server), origin("b.example.com", &server));
        addresses.measure(&context, &Target::settled(a.clone()), &order(), SHARES).await;
        let checked = addresses.measure(&context, &Target::settled(b), &order(), check()).await;
        assert!(matches!(checked.outcome, Ok(OrderOutcome::Measured(_, Some(false)))), "{checked:?}");
        let after = addresses.measure(&context, &Target::settled(a), &order(), SHARES).await;
        assert!(matches!(after.outcome, Ok(OrderOutcome::Measured(_, None))), "nothing is shared there now: {after:?}");
    }

    #[tokio::test]
    async fn orders_to_one_address_take_turns() {
        let (context, server, addresses) = (context().await, server(2).await, Addresses::default());
        let order = ProbeOrder { share_max_age: None, ..order() };
        let results = ["a.example.com", "b.example.com", "127.0.0.1"].map(|host| {
            let target = Target::settled(origin(host, &server));
            let (addresses, context) = (&addresses, &context);
            async move { addresses.measure(context, &target, &order, SHARES).await }
        });
        let [a, b, c] = results;
        let (a, b, c) = tokio::join!(a, b, c);
        assert!(a.outcome.is_ok() && b.outcome.is_ok() && c.outcome.is_ok());
        let connections: Vec<usize> = server.requests().iter().map(|seen| seen.connection).collect();
        assert!(connections.is_sorted(), "one site after the other: {connections:?}");
    }

    fn order_at(lock: AddressLock) -> ProbeOrder {
        ProbeOrder { lock, ..order() }
    }

    #[tokio::test]
    async fn an_order_without_a_lock_resolves_the_name_and_sends_nothing() {
        let (context, server, addresses) = (context().await, server(1).await, Addresses::default());
        for name in ["a.example.com".to_owned(), origin("b.example.com", &server).to_string(), "127.0.0.1".to_owned()] {
            let target = Target::site(&name).unwrap();
            let result = addresses.measure(&context, &target, &order_at(AddressLock::Nowhere), SHARES).await;
            let postponed =
                matches!(result.outcome, Ok(OrderOutcome::Postponed { address, origin: None }) if address == HERE);
            assert!(postponed, "{result:?}");
            assert_eq!((result.requests, server.requests().len()), (0, 0));
        }
        let unknown = Target::site("nobody.example.com").unwrap();
        let result = addresses.measure(&context, &unknown, &order_at(AddressLock::Nowhere), SHARES).await;
        assert!(matches!(result.outcome, Err(ProbeError::Dns(_))), "{result:?}");
        let private = Target::site("10.0.0.1").unwrap();
        let result = addresses.measure(&context, &private, &order_at(AddressLock::Nowhere), SHARES).await;
        assert!(matches!(result.outcome, Err(ProbeError::Guard(_))), "{result:?}");
    }

    #[tokio::test]
    async fn an_order_is_carried_out_only_at_the_address_it_has_locked() {
        let (context, here, addresses) = (context().await, server(1).await, Addresses::default());
        let result = async |host: &str, lock: Ipv4Addr| {
            let target = Target::settled(origin(host, &here));
            addresses.measure(&context, &target, &order_at(AddressLock::At(lock.into())), SHARES).await
        };
        let elsewhere = result("a.example.com", THERE).await;
        let led_here =
            matches!(elsewhere.outcome, Ok(OrderOutcome::Postponed { address, origin: None }) if address == HERE);
        assert!(led_here && elsewhere.requests == 0 && here.requests().is_empty(), "{elsewhere:?}");
        assert!(matches!(result("a.example.com", HERE).await.outcome, Ok(OrderOutcome::Measured(..))));

        // If the name has several addresses, the prober tries the locked address first.
        let there = TestServer::start_at((THERE, 0), |_| ok_after(0)).await.unwrap();
        for (lock, server) in [(HERE, &here), (THERE, &there)] {
            let target = Target::settled(origin("both.example.com", server));
            let result = addresses.measure(&context, &target, &order_at(AddressLock::At(lock.into())), check()).await;
            assert!(matches!(result.outcome, Ok(OrderOutcome::Measured(probed, _)) if probed.address == lock));
        }
    }

    #[tokio::test]
    async fn a_site_that_settles_at_another_address_needs_that_addresss_lock() {
        let there = TestServer::start_at((THERE, 0), |_| ok_after(0)).await.unwrap();
        let moved = origin("moved.example.com", &there);
        let to = moved.to_string();
        let here = TestServer::start(move |_| redirect(&to)).await;
        let (context, addresses) = (context().await, Addresses::default());
        let target = Target::site(&origin("a.example.com", &here).to_string()).unwrap();
        let result = addresses.measure(&context, &target, &order_at(AddressLock::At(HERE.into())), SHARES).await;
        let Ok(OrderOutcome::Postponed { address, origin }) = result.outcome else { panic!("{result:?}") };
        assert_eq!((address, origin), (IpAddr::from(THERE), Some(moved.clone())));
        assert_eq!(
            (result.requests, here.requests().len(), there.requests().len()),
            (2, 1, 1),
            "one to find that it answers"
        );
        let result = addresses
            .measure(&context, &Target::settled(moved), &order_at(AddressLock::At(THERE.into())), SHARES)
            .await;
        assert!(matches!(result.outcome, Ok(OrderOutcome::Measured(..))), "{result:?}");
    }

    #[tokio::test]
    async fn an_address_that_stays_locked_is_reported_and_nothing_is_sent() {
        let (context, server) = (context().await, server(1).await);
        let mut addresses = Addresses::default();
        addresses.locks.wait = Duration::from_millis(20);
        let taken = addresses.locks.lock(server.addr.ip()).await;
        let target = Target::settled(origin("127.0.0.1", &server));
        let result = addresses.measure(&context, &target, &order(), SHARES).await;
        assert!(matches!(result.outcome, Ok(OrderOutcome::Postponed { address, .. }) if address == server.addr.ip()));
        assert_eq!((result.requests, server.requests().len()), (0, 0));
        drop(taken);
    }
}
