//! Measures sites by address: one order at a time may use an address, and its measurement can be
//! shared with the address's other sites, as [`super::sharing`] decides.
//!
//! The scheduler takes turns over all agents, and an order names the address at which it may be
//! carried out ([`super::Turn`]). If the name resolves elsewhere, the prober reports that address
//! and sends nothing to it; the scheduler orders the site again on its turn. So many names that
//! resolve to one machine do not cause one request a second each there. An order whose address is
//! in use on this agent waits a little, then does the same.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;

use super::sharing::{Advice, Place, Sharing, draw};
use super::{Order, Pace, ProbeError, Probed, Target, http, measure_paced, sample_found, settle};
use crate::net::context::Context;
use crate::net::origin::Origin;

/// How long an order waits for its address. By then the next order to a machine of few sites has
/// its turn, and the other orders are reported to the scheduler before they expire.
const WAIT: Duration = Duration::from_secs(5);
/// Number of turns above which unused ones are removed.
const SWEPT_BEYOND: usize = 4096;

/// The addresses one agent measures. Outlives sessions.
#[derive(Debug)]
pub struct Addresses {
    wait: Duration,
    /// Recent measurements; never held across an await.
    sharing: Mutex<Sharing>,
    /// The turn of each address; never held across an await.
    turns: Mutex<HashMap<IpAddr, Weak<tokio::sync::Mutex<()>>>>,
}

#[derive(Debug)]
pub struct Visit {
    pub result: Result<Finding, ProbeError>,
    /// Requests sent and connections tried for it.
    pub requests: u32,
}

#[derive(Debug)]
pub enum Finding {
    /// It was measured; if a shared measurement would have sufficed, whether the two agree.
    Measured(Probed, Option<bool>),
    Shared {
        /// With this site's origin, and the other's samples.
        probed: Probed,
        from: Origin,
        age: Duration,
    },
    /// It is not this order's turn at the address.
    Postponed {
        address: IpAddr,
        /// The site's origin, if it was found.
        origin: Option<Origin>,
    },
}

impl Default for Addresses {
    fn default() -> Self {
        Self { wait: WAIT, sharing: Mutex::default(), turns: Mutex::default() }
    }
}

impl Addresses {
    pub async fn visit(&self, context: &Context, target: &Target, order: &Order, number: i64) -> Visit {
        let mut pace = Pace::new(order.interval);
        let result = if target.is_beacon() {
            let measured = measure_paced(context, target, order, &mut pace, &mut |_| {}).await;
            measured.map(|probed| Finding::Measured(probed, None))
        } else {
            self.visit_site(context, target, order, draw(number), &mut pace).await
        };
        Visit { result, requests: pace.sent() }
    }

    async fn visit_site(
        &self,
        context: &Context,
        target: &Target,
        order: &Order,
        draw: f64,
        pace: &mut Pace,
    ) -> Result<Finding, ProbeError> {
        let target = &target.clone().with_first(order.turn.address());
        let first = target.candidates[0].clone();
        let first = http::Endpoint::resolve(context, &context.guard, first, target, order.timeout).await?;
        let address = first.address();
        if !order.turn.is_at(address) {
            return Ok(Finding::Postponed { address, origin: None });
        }
        let Some(turn) = self.turn(address).await else { return Ok(Finding::Postponed { address, origin: None }) };
        if let Some(origin) = target.settled_origin() {
            let place = place_of(origin, address, order);
            let advice = self.advise(&place, order, draw);
            if let Advice::Share(probed, age) = advice {
                return Ok(shared(probed, age, origin, address, None));
            }
            // The resolver has the name cached from the lookup just before.
            let probed = measure_paced(context, target, order, pace, &mut |_| {}).await?;
            return Ok(self.measured(place, probed, advice));
        }
        let found = settle::find(context, target, order.timeout, pace, &mut |_| {}).await?;
        let (origin, settled_at) = (found.endpoint.origin.clone(), found.endpoint.address());
        let _turn = if settled_at == address {
            turn
        } else if !order.turn.is_at(settled_at) {
            return Ok(Finding::Postponed { address: settled_at, origin: Some(origin) });
        } else {
            // Release it first: two orders that each hold an address and want the other's would
            // deadlock.
            drop(turn);
            match self.turn(settled_at).await {
                Some(turn) => turn,
                None => return Ok(Finding::Postponed { address: settled_at, origin: Some(origin) }),
            }
        };
        let place = place_of(&origin, settled_at, order);
        let advice = self.advise(&place, order, draw);
        if let Advice::Share(probed, age) = advice {
            return Ok(shared(probed, age, &origin, settled_at, Some(&found)));
        }
        let probed = sample_found(found, order, pace, &mut |_| {}).await?;
        Ok(self.measured(place, probed, advice))
    }

    fn advise(&self, place: &Place, order: &Order, draw: f64) -> Advice {
        self.sharing().advise(place, order.share_max_age, draw, Instant::now())
    }

    fn measured(&self, mut place: Place, probed: Probed, advice: Advice) -> Finding {
        let now = Instant::now();
        let mut sharing = self.sharing();
        // The first address may have been silent, and another one connected.
        place.address = probed.address;
        let agreed = match advice {
            Advice::Check(shared) => Some(sharing.compare(&place, &shared, &probed, now)),
            Advice::Measure | Advice::Share(..) => None,
        };
        sharing.learn(place, probed.clone(), now);
        Finding::Measured(probed, agreed)
    }

    fn sharing(&self) -> std::sync::MutexGuard<'_, Sharing> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn at an address; `None` when it does not come in time.
    async fn turn(&self, address: IpAddr) -> Option<OwnedMutexGuard<()>> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            if turns.len() > SWEPT_BEYOND {
                turns.retain(|_, turn| turn.strong_count() > 0);
            }
            let turn = turns.get(&address).and_then(Weak::upgrade).unwrap_or_default();
            turns.insert(address, Arc::downgrade(&turn));
            turn
        };
        tokio::time::timeout(self.wait, turn.lock_owned()).await.ok()
    }
}

const fn place_of(origin: &Origin, address: IpAddr, order: &Order) -> Place {
    Place { address, port: origin.port, scheme: origin.scheme, metric: order.metric }
}

/// Another site's samples for this one, with its own cold phases if it was contacted.
fn shared(
    other: Probed,
    age: Duration,
    origin: &Origin,
    address: IpAddr,
    found: Option<&settle::Found<'_>>,
) -> Finding {
    let from = other.origin.unwrap_or_else(|| origin.clone());
    let phases = found.map(|found| found.phases).unwrap_or_default();
    let probed = Probed { origin: Some(origin.clone()), address, phases, samples: other.samples, lost: other.lost };
    Finding::Shared { probed, from, age }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::probe::{Metric, Turn};
    use crate::testing::{Seen, TestNames, TestServer, ok_after, redirect};

    const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
    const THERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
    const NAMES: [(&str, Ipv4Addr); 5] = [
        ("a.example.com", HERE),
        ("b.example.com", HERE),
        ("moved.example.com", THERE),
        ("both.example.com", HERE),
        ("both.example.com", THERE),
    ];
    /// Order numbers that share, and that check.
    const SHARES: i64 = 1;
    const MINUTE: Duration = Duration::from_secs(60);

    async fn context() -> Context {
        TestNames::start(&NAMES).await.context(&["127.0.0.0/8"])
    }

    fn order() -> Order {
        Order {
            metric: Metric::Ttfb,
            samples: 4,
            least_samples: None,
            share_max_age: Some(MINUTE),
            interval: Duration::ZERO,
            timeout: Duration::from_secs(5),
            turn: Turn::Anywhere,
        }
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
    async fn a_second_site_at_an_address_is_asked_nothing_once_it_is_settled() {
        let (context, server, addresses) = (context().await, server(5).await, Addresses::default());
        let (a, b) = (origin("a.example.com", &server), origin("b.example.com", &server));
        let first = addresses.visit(&context, &Target::settled(a.clone()), &order(), SHARES).await;
        assert!(matches!(first.result, Ok(Finding::Measured(_, None))), "{first:?}");
        assert_eq!((first.requests, server.seen().len()), (5, 5), "one thrown away and four samples");

        let second = addresses.visit(&context, &Target::settled(b.clone()), &order(), SHARES).await;
        let Ok(Finding::Shared { probed, from, .. }) = second.result else { panic!("{second:?}") };
        assert_eq!((probed.origin, from, probed.samples.len()), (Some(b.clone()), a, 4));
        assert_eq!((second.requests, server.seen().len()), (0, 5));

        let fresh = Order { share_max_age: None, ..order() };
        let third = addresses.visit(&context, &Target::settled(b), &fresh, SHARES).await;
        assert!(matches!(third.result, Ok(Finding::Measured(..))), "{third:?}");
    }

    #[tokio::test]
    async fn a_site_still_to_be_settled_is_asked_only_where_it_is() {
        let (context, server, addresses) = (context().await, server(5).await, Addresses::default());
        let a = Target::settled(origin("a.example.com", &server));
        addresses.visit(&context, &a, &order(), SHARES).await;
        let b = Target::site(&origin("b.example.com", &server).to_string()).unwrap();
        let visit = addresses.visit(&context, &b, &order(), SHARES).await;
        let Ok(Finding::Shared { probed, .. }) = visit.result else { panic!("{visit:?}") };
        assert_eq!(probed.origin, Some(origin("b.example.com", &server)));
        assert!(probed.phases.connect.is_some(), "its own connection was timed");
        assert_eq!((visit.requests, server.seen().len()), (1, 6));
    }

    #[tokio::test]
    async fn a_site_slower_than_its_neighbour_is_found_out_and_ends_the_sharing() {
        let slow_b =
            TestServer::plain(|seen: &Seen| ok_after(if seen.head.contains("host: b.example.com") { 60 } else { 5 }));
        let (context, server, addresses) = (context().await, slow_b.await, Addresses::default());
        let (a, b) = (origin("a.example.com", &server), origin("b.example.com", &server));
        addresses.visit(&context, &Target::settled(a.clone()), &order(), SHARES).await;
        let checked = addresses.visit(&context, &Target::settled(b), &order(), check()).await;
        assert!(matches!(checked.result, Ok(Finding::Measured(_, Some(false)))), "{checked:?}");
        let after = addresses.visit(&context, &Target::settled(a), &order(), SHARES).await;
        assert!(matches!(after.result, Ok(Finding::Measured(_, None))), "nothing is shared there now: {after:?}");
    }

    #[tokio::test]
    async fn orders_to_one_address_take_turns() {
        let (context, server, addresses) = (context().await, server(2).await, Addresses::default());
        let order = Order { share_max_age: None, ..order() };
        let visits = ["a.example.com", "b.example.com", "127.0.0.1"].map(|host| {
            let target = Target::settled(origin(host, &server));
            let (addresses, context) = (&addresses, &context);
            async move { addresses.visit(context, &target, &order, SHARES).await }
        });
        let [a, b, c] = visits;
        let (a, b, c) = tokio::join!(a, b, c);
        assert!(a.result.is_ok() && b.result.is_ok() && c.result.is_ok());
        let connections: Vec<usize> = server.seen().iter().map(|seen| seen.connection).collect();
        assert!(connections.is_sorted(), "one site after the other: {connections:?}");
    }

    fn order_at(turn: Turn) -> Order {
        Order { turn, ..order() }
    }

    #[tokio::test]
    async fn an_order_without_a_turn_finds_the_address_out_and_sends_nothing() {
        let (context, server, addresses) = (context().await, server(1).await, Addresses::default());
        for name in ["a.example.com".to_owned(), origin("b.example.com", &server).to_string(), "127.0.0.1".to_owned()] {
            let target = Target::site(&name).unwrap();
            let visit = addresses.visit(&context, &target, &order_at(Turn::Nowhere), SHARES).await;
            let postponed = matches!(visit.result, Ok(Finding::Postponed { address, origin: None }) if address == HERE);
            assert!(postponed, "{visit:?}");
            assert_eq!((visit.requests, server.seen().len()), (0, 0));
        }
        let unknown = Target::site("nobody.example.com").unwrap();
        let visit = addresses.visit(&context, &unknown, &order_at(Turn::Nowhere), SHARES).await;
        assert!(matches!(visit.result, Err(ProbeError::Dns(_))), "{visit:?}");
        let private = Target::site("10.0.0.1").unwrap();
        let visit = addresses.visit(&context, &private, &order_at(Turn::Nowhere), SHARES).await;
        assert!(matches!(visit.result, Err(ProbeError::Guard(_))), "{visit:?}");
    }

    #[tokio::test]
    async fn an_order_is_carried_out_at_the_address_it_has_the_turn_of_and_nowhere_else() {
        let (context, here, addresses) = (context().await, server(1).await, Addresses::default());
        let visit = async |host: &str, turn: Ipv4Addr| {
            let target = Target::settled(origin(host, &here));
            addresses.visit(&context, &target, &order_at(Turn::At(turn.into())), SHARES).await
        };
        let elsewhere = visit("a.example.com", THERE).await;
        let led_here = matches!(elsewhere.result, Ok(Finding::Postponed { address, origin: None }) if address == HERE);
        assert!(led_here && elsewhere.requests == 0 && here.seen().is_empty(), "{elsewhere:?}");
        assert!(matches!(visit("a.example.com", HERE).await.result, Ok(Finding::Measured(..))));

        // Of several addresses, the one named by the turn comes first.
        let there = TestServer::start_at((THERE, 0), |_| ok_after(0)).await.unwrap();
        for (turn, server) in [(HERE, &here), (THERE, &there)] {
            let target = Target::settled(origin("both.example.com", server));
            let visit = addresses.visit(&context, &target, &order_at(Turn::At(turn.into())), check()).await;
            assert!(matches!(visit.result, Ok(Finding::Measured(probed, _)) if probed.address == turn));
        }
    }

    #[tokio::test]
    async fn a_site_that_settles_at_another_address_is_measured_when_it_is_its_turn_there() {
        let there = TestServer::start_at((THERE, 0), |_| ok_after(0)).await.unwrap();
        let moved = origin("moved.example.com", &there);
        let to = moved.to_string();
        let here = TestServer::start(move |_| redirect(&to)).await;
        let (context, addresses) = (context().await, Addresses::default());
        let target = Target::site(&origin("a.example.com", &here).to_string()).unwrap();
        let visit = addresses.visit(&context, &target, &order_at(Turn::At(HERE.into())), SHARES).await;
        let Ok(Finding::Postponed { address, origin }) = visit.result else { panic!("{visit:?}") };
        assert_eq!((address, origin), (IpAddr::from(THERE), Some(moved.clone())));
        assert_eq!((visit.requests, here.seen().len(), there.seen().len()), (2, 1, 1), "one to find that it answers");
        let visit = addresses.visit(&context, &Target::settled(moved), &order_at(Turn::At(THERE.into())), SHARES).await;
        assert!(matches!(visit.result, Ok(Finding::Measured(..))), "{visit:?}");
    }

    #[tokio::test]
    async fn an_address_that_stays_taken_is_reported_and_nothing_is_sent() {
        let (context, server) = (context().await, server(1).await);
        let addresses = Addresses { wait: Duration::from_millis(20), ..Addresses::default() };
        let taken = addresses.turn(server.addr.ip()).await;
        let target = Target::settled(origin("127.0.0.1", &server));
        let visit = addresses.visit(&context, &target, &order(), SHARES).await;
        assert!(matches!(visit.result, Ok(Finding::Postponed { address, .. }) if address == server.addr.ip()));
        assert_eq!((visit.requests, server.seen().len()), (0, 0));
        drop(taken);
    }
}
