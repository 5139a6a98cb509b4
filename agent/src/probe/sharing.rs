//! Decides whether one site's measurement also holds for another site. This module is pure.
//!
//! All sites at one address have the same network path, and the round trip measures this path. So a
//! prober reuses a recent measurement with the same address, port, scheme and metric. Every prober
//! resolves names itself and shares only its own measurements, because a name may resolve to
//! different addresses in different cities.
//!
//! However, a server may take longer for one name than for another. So a fraction (`CHECKED_SHARE`)
//! of the sites that could share a measurement is measured anyway, and the two measurements are
//! compared. If the measurements disagree, nothing at this address is shared for `OFF_FOR`.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::weighted_mean::weighted_mean;
use super::{HostMeasurement, Metric};
use crate::net::age_ordered_map::AgeOrderedMap;
use crate::net::origin::Scheme;

/// The fraction of shareable measurements that are checked: one in fifty. If nine probers measure
/// ten sites at an address, each prober could share nine measurements, so 81 could be shared in
/// total. The probability that at least one of the 81 is checked is 80 %, and a check detects a
/// server that treats its names differently. Checking costs 2 % of the requests that sharing saves.
const CHECKED_SHARE: f64 = 0.02;
/// Maximum difference between two measurements of the same round trip, as a fraction of the larger.
/// Each measurement has a standard error of 2 % (`sample_schedule`), so two correct measurements
/// exceed this difference only about once in a few thousand cases.
const TOLERANCE: f64 = 0.1;
/// A difference of up to this much is always tolerated. At a nearby server, two sites' response
/// times may differ by this much, and by more than [`TOLERANCE`], although the network path is the
/// same.
const TOLERATED: Duration = Duration::from_millis(2);
/// Time for which nothing is shared at an address after measurements of its sites disagreed.
const OFF_FOR: Duration = Duration::from_secs(3600);
/// Maximum number of stored measurements, of about 500 bytes each. The oldest are evicted first.
const REMEMBERED: usize = 16_384;

/// Identifies what was measured. Sites with equal keys can share a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MeasurementKey {
    pub address: IpAddr,
    pub port: u16,
    pub scheme: Scheme,
    pub metric: Metric,
}

/// How to get the measurement of a site.
#[derive(Debug, Clone)]
pub enum SharingAdvice {
    Measure,
    /// Measure the site although this measurement could be shared, and compare both measurements.
    Check(HostMeasurement),
    /// Share this measurement; the duration is its age.
    Share(HostMeasurement, Duration),
}

/// The recent measurements of one prober.
#[derive(Debug, Default)]
pub struct MeasurementSharing {
    known: AgeOrderedMap<MeasurementKey, Instant, HostMeasurement>,
    /// Addresses whose sites' measurements disagreed, with the time of the disagreement.
    off: AgeOrderedMap<IpAddr, Instant, ()>,
}

impl MeasurementSharing {
    /// Decides how to get the measurement of a site with this key. `draw` is a uniform random
    /// number from 0 to 1 that decides whether to check. If `max_age` is `None`, nothing is shared.
    pub fn advise(&self, key: &MeasurementKey, max_age: Option<Duration>, draw: f64, now: Instant) -> SharingAdvice {
        let (Some(max_age), Some((at, probed))) = (max_age, self.known.get(key)) else { return SharingAdvice::Measure };
        let age = now.saturating_duration_since(at);
        let off = self.off.get(&key.address).is_some_and(|(at, ())| now.saturating_duration_since(at) < OFF_FOR);
        if off || age > max_age {
            SharingAdvice::Measure
        } else if draw < CHECKED_SHARE {
            SharingAdvice::Check(probed.clone())
        } else {
            SharingAdvice::Share(probed.clone(), age)
        }
    }

    pub fn learn(&mut self, key: MeasurementKey, probed: HostMeasurement, now: Instant) {
        self.known.insert(key, now, probed);
        while self.known.len() > REMEMBERED {
            self.known.pop_oldest();
        }
        while self.off.oldest().is_some_and(|at| now.saturating_duration_since(at) >= OFF_FOR) {
            self.off.pop_oldest();
        }
    }

    /// Compares a new measurement with the measurement that could have been shared. If the
    /// measurements disagree, nothing at the address is shared for `OFF_FOR`.
    pub fn compare(
        &mut self,
        key: &MeasurementKey,
        shared: &HostMeasurement,
        seen: &HostMeasurement,
        now: Instant,
    ) -> bool {
        let agreed = agree(&shared.samples, &seen.samples);
        if !agreed {
            self.off.insert(key.address, now, ());
        }
        agreed
    }
}

fn agree(a: &[Duration], b: &[Duration]) -> bool {
    let (Some(a), Some(b)) = (weighted_mean(a), weighted_mean(b)) else { return false };
    a.rtt.abs_diff(b.rtt) <= TOLERATED.max(a.rtt.max(b.rtt).mul_f64(TOLERANCE))
}

/// A uniform pseudo-random number from 0 to 1, computed from an order's number (the finaliser of
/// splitmix64, Steele et al. 2014). So a repeated order leads to the same decision, to share or to
/// check.
pub fn draw(order: i64) -> f64 {
    let mut bits = order.cast_unsigned().wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let upper = u32::try_from((bits ^ (bits >> 31)) >> 32).unwrap_or(u32::MAX);
    f64::from(upper) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Phases;

    const MINUTE: Duration = Duration::from_secs(60);
    /// A value of `draw` that leads to sharing, not to a check.
    const SHARES: f64 = 0.5;

    fn key(address: &str, port: u16) -> MeasurementKey {
        MeasurementKey { address: address.parse().unwrap(), port, scheme: Scheme::Https, metric: Metric::Ttfb }
    }

    fn probed(millis: u64) -> HostMeasurement {
        HostMeasurement {
            origin: Some("https://a.cn".parse().unwrap()),
            address: "192.0.2.1".parse().unwrap(),
            phases: Phases::default(),
            samples: vec![Duration::from_millis(millis); 3],
            lost: 0,
        }
    }

    #[test]
    fn a_fresh_measurement_is_shared_for_its_address_port_and_scheme() {
        let (mut sharing, now) = (MeasurementSharing::default(), Instant::now());
        let here = key("192.0.2.1", 443);
        sharing.learn(here, probed(50), now);
        let advise = |key: &MeasurementKey, after, max_age| sharing.advise(key, max_age, SHARES, now + after);
        assert!(matches!(advise(&here, MINUTE, Some(MINUTE)), SharingAdvice::Share(_, age) if age == MINUTE));
        for (key, after, max_age) in [
            (here, 2 * MINUTE, Some(MINUTE)),
            (here, Duration::ZERO, None),
            (key("192.0.2.1", 8443), Duration::ZERO, Some(MINUTE)),
            (key("192.0.2.2", 443), Duration::ZERO, Some(MINUTE)),
            (MeasurementKey { scheme: Scheme::Http, ..here }, Duration::ZERO, Some(MINUTE)),
            (MeasurementKey { metric: Metric::Icmp, ..here }, Duration::ZERO, Some(MINUTE)),
        ] {
            assert!(matches!(advise(&key, after, max_age), SharingAdvice::Measure), "{key:?}");
        }
    }

    #[test]
    fn sites_that_disagree_end_the_sharing_of_their_address_for_an_hour() {
        let (mut sharing, now) = (MeasurementSharing::default(), Instant::now());
        let here = key("192.0.2.1", 443);
        sharing.learn(here, probed(50), now);
        let SharingAdvice::Check(shared) = sharing.advise(&here, Some(MINUTE), 0.0, now) else { panic!("no check") };
        assert!(sharing.compare(&here, &shared, &probed(54), now), "within 10 %");
        assert!(!sharing.compare(&here, &shared, &probed(90), now));
        sharing.learn(here, probed(90), now + OFF_FOR - MINUTE);
        assert!(matches!(sharing.advise(&here, Some(MINUTE), SHARES, now + OFF_FOR - MINUTE), SharingAdvice::Measure));
        sharing.learn(here, probed(90), now + OFF_FOR);
        assert!(matches!(sharing.advise(&here, Some(MINUTE), SHARES, now + OFF_FOR), SharingAdvice::Share(..)));
    }

    #[test]
    fn near_sites_may_differ_by_two_milliseconds() {
        let agree = |a, b| agree(&probed(a).samples, &probed(b).samples);
        assert!(agree(1, 3) && !agree(1, 4));
        assert!(agree(200, 182) && !agree(200, 179));
    }

    #[test]
    fn the_stored_measurements_are_bounded_and_the_oldest_is_evicted() {
        let (mut sharing, now) = (MeasurementSharing::default(), Instant::now());
        let port = |index: usize| key("192.0.2.1", u16::try_from(index).unwrap());
        for index in 0..=REMEMBERED {
            sharing.learn(port(index), probed(1), now + Duration::from_millis(u64::try_from(index).unwrap()));
        }
        assert_eq!(sharing.known.len(), REMEMBERED);
        assert!(sharing.known.get(&port(0)).is_none() && sharing.known.get(&port(REMEMBERED)).is_some());
    }

    #[test]
    fn one_order_in_fifty_is_checked() {
        let checked = (1..=10_000).filter(|order| draw(*order) < CHECKED_SHARE).count();
        assert!((150..=250).contains(&checked), "{checked}");
    }
}
