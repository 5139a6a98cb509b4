//! Learns from the crawls of one site about similar sites, and defines the crawl residual and the
//! weight that it keeps with age.
//!
//! Two sites that all probers measured at about the same distances are in about the same place, so
//! the map's errors for an agent's paths to the two sites are probably similar. The log residuals
//! of an agent's crawls are modelled as a Gaussian process over sites (Rasmussen and Williams,
//! "Gaussian processes for machine learning", 2006, section 2.2). Each agent has its own Gaussian
//! process.
//!
//! The covariance of two sites' residuals is `s² c exp(-m² / 2w²)`. Here `s²` is the variance of a
//! prediction, `m` is the root mean square difference of the log round trips of the probers that
//! measured both sites, `w` is `WIDTH` and `c` is `LIKENESS`. For two sites in one network, `m`
//! is assumed to be zero.
//!
//! The process also uses residuals of agents that were chosen because their prediction was short.
//! Selecting agents by short predictions would bias a mean over all sites. Between similar sites,
//! the selection does no harm: their predictions are about equally short, so their residuals have
//! about the same bias.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use nalgebra::{Cholesky, DMatrix, DVector};

use crate::gnp::FEWEST_LANDMARKS;
use crate::model::stats::count;
use crate::model::{AgentId, Rtt, SiteId};

/// The scale of similarity, as a root mean square difference of log round trips. At this difference
/// the similarity is 0.6. Repeated measurements of one host by one prober also differ by about 5 %.
const WIDTH: f64 = 0.05;
/// Sites that differ by more than this many times [`WIDTH`] are not similar.
const FARTHEST: f64 = 3.0;
/// The correlation of the residuals of two sites in the same place. This correlation is below 1,
/// because the sites' last miles differ.
const LIKENESS: f64 = 0.9;
/// Milliseconds added to round trips before their logarithms are taken, because differences between
/// short round trips come from the last mile.
const SOFTENING_MS: f64 = 5.0;
/// Maximum number of crawls of similar sites used for a pair of an agent and a site, the most
/// similar first, to limit the work per pair.
const MOST_CRAWLS: usize = 8;
/// Maximum number of crawls kept per agent, the newest first, to limit the work per site.
const MOST_OF_AN_AGENT: usize = 200;

/// The probers' measurements of a site, by which the site is compared with other sites.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Signature {
    /// For each prober, the logarithm of the round trip in milliseconds plus [`SOFTENING_MS`];
    /// sorted by prober.
    logs: Vec<(AgentId, f64)>,
}

impl Signature {
    pub(super) fn of(measured: &[(AgentId, Rtt)]) -> Self {
        let log = |(agent, rtt): &(AgentId, Rtt)| (*agent, (rtt.as_millis_f64() + SOFTENING_MS).ln());
        let mut logs: Vec<(AgentId, f64)> = measured.iter().map(log).collect();
        logs.sort_unstable_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        logs.dedup_by_key(|(agent, _)| *agent);
        Self { logs }
    }

    /// The similarity of two sites: 1 if their measurements are equal; 0 if the measurements differ
    /// too much or too few probers measured both sites.
    fn alike(&self, other: &Self) -> f64 {
        let nearly = (FARTHEST * WIDTH).powi(2);
        let (mut mine, mut theirs) = (self.logs.iter().peekable(), other.logs.iter().peekable());
        let most = count(self.logs.len().min(other.logs.len()).max(1)) * nearly;
        let (mut squares, mut both) = (0.0, 0);
        while let (Some((agent, log)), Some((their, their_log))) = (mine.peek(), theirs.peek()) {
            if agent < their {
                mine.next();
            } else if their < agent {
                theirs.next();
            } else {
                squares += (log - their_log).powi(2);
                // The sum of squares only grows, so no further prober can make the sites similar.
                if squares > most {
                    return 0.0;
                }
                both += 1;
                mine.next();
                theirs.next();
            }
        }
        let mean = squares / count(both.max(1));
        if both < FEWEST_LANDMARKS || mean > nearly { 0.0 } else { (-mean / (2.0 * WIDTH * WIDTH)).exp() }
    }
}

/// The log residual of a crawl, after the correction by the agent's mean residual.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CorrectedResidual {
    pub(super) agent: AgentId,
    pub(super) site: SiteId,
    pub(super) network: Option<Prefix>,
    pub(super) residual: f64,
    /// The weight: 1 for a crawl now, less with age.
    pub(super) weight: f64,
}

#[derive(Debug, Clone, PartialEq)]
struct CrawledSite {
    signature: Signature,
    network: Option<Prefix>,
    told: Vec<CorrectedResidual>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Alike {
    sites: Vec<CrawledSite>,
}

#[derive(Debug, Clone, Default)]
pub struct SimilarCrawls {
    by_agent: HashMap<AgentId, Vec<Neighbour>>,
}

#[derive(Debug, Clone, Copy)]
struct Neighbour {
    likeness: f64,
    /// The index in [`Alike::sites`].
    site: usize,
    told: CorrectedResidual,
}

impl Alike {
    /// Keeps the newest crawl of each pair of an agent and a site, and at most the newest
    /// [`MOST_OF_AN_AGENT`] crawls per agent.
    pub(super) fn of(mut told: Vec<CorrectedResidual>, measured: &HashMap<SiteId, Vec<(AgentId, Rtt)>>) -> Self {
        told.retain(|told| told.weight > 0.0 && told.residual.is_finite());
        told.sort_by(|one, other| {
            let newest = other.weight.total_cmp(&one.weight);
            newest
                .then((one.site, one.agent).cmp(&(other.site, other.agent)))
                .then(one.residual.total_cmp(&other.residual))
        });
        let mut by_site: HashMap<SiteId, usize> = HashMap::new();
        let mut of_agent: HashMap<AgentId, usize> = HashMap::new();
        let mut sites: Vec<CrawledSite> = Vec::new();
        for told in told {
            let at = *by_site.entry(told.site).or_insert_with(|| {
                let signature = Signature::of(measured.get(&told.site).map_or(&[][..], Vec::as_slice));
                sites.push(CrawledSite { signature, network: told.network, told: Vec::new() });
                sites.len() - 1
            });
            let Some(site) = sites.get_mut(at) else { continue };
            let kept = of_agent.entry(told.agent).or_default();
            if *kept < MOST_OF_AN_AGENT && site.told.iter().all(|other| other.agent != told.agent) {
                *kept += 1;
                site.told.push(told);
            }
        }
        Self { sites }
    }

    /// Returns the crawls of sites similar to a site with these measurements in this network.
    pub(super) fn near(&self, measured: &[(AgentId, Rtt)], network: Option<Prefix>) -> SimilarCrawls {
        let mut near = SimilarCrawls::default();
        if self.sites.is_empty() {
            return near;
        }
        let here = CrawledSite { signature: Signature::of(measured), network, told: Vec::new() };
        for (index, site) in self.sites.iter().enumerate() {
            let likeness = likeness(&here, site);
            if likeness <= 0.0 {
                continue;
            }
            for told in &site.told {
                near.by_agent.entry(told.agent).or_default().push(Neighbour { likeness, site: index, told: *told });
            }
        }
        for of_it in near.by_agent.values_mut() {
            of_it.sort_by(|one, other| {
                other.likeness.total_cmp(&one.likeness).then(one.told.site.cmp(&other.told.site))
            });
            of_it.truncate(MOST_CRAWLS);
        }
        near
    }

    /// The expected log residual of a prediction with this spread, and the remaining spread; `None`
    /// if the agent crawled no similar site. `near` must come from the same `Alike`.
    pub(super) fn expects(&self, near: &SimilarCrawls, agent: AgentId, spread: f64) -> Option<(f64, f64)> {
        let near = near.by_agent.get(&agent)?;
        let places = near.iter().map(|one| self.sites.get(one.site)).collect::<Option<Vec<&CrawledSite>>>()?;
        let variance = spread * spread;
        let mut covariance = DMatrix::from_fn(near.len(), near.len(), |a, b| {
            if a == b { variance } else { variance * likeness(places[a], places[b]) }
        });
        for (index, one) in near.iter().enumerate() {
            covariance[(index, index)] += CRAWL_SPREAD * CRAWL_SPREAD / one.told.weight;
        }
        let factor = Cholesky::new(covariance)?;
        let here = DVector::from_iterator(near.len(), near.iter().map(|one| variance * one.likeness));
        let residuals = DVector::from_iterator(near.len(), near.iter().map(|one| one.told.residual));
        let gains = factor.solve(&here);
        // The results are bounded, because similarity by network and similarity by measurements
        // together may not give a valid covariance. The expected residual lies between the least
        // and the greatest of zero and the crawls' residuals. The remaining variance is at least
        // the variance between two sites in the same place (see [`LIKENESS`]).
        let (least, most) = near
            .iter()
            .fold((0.0_f64, 0.0_f64), |(least, most), one| (least.min(one.told.residual), most.max(one.told.residual)));
        let left = (variance - gains.dot(&here)).clamp(variance * (1.0 - LIKENESS), variance);
        Some((gains.dot(&residuals).clamp(least, most), left.sqrt()))
    }
}

/// The correlation of the residuals of two sites.
fn likeness(one: &CrawledSite, other: &CrawledSite) -> f64 {
    let neighbours = one.network.is_some() && one.network == other.network;
    LIKENESS * if neighbours { 1.0 } else { one.signature.alike(&other.signature) }
}

/// The spread of a single crawl's round trip, as a standard deviation of its logarithm. The median
/// round trips of repeated crawls differ by about ten per cent.
pub const CRAWL_SPREAD: f64 = 0.1;
/// Age at which a crawl's weight has halved: a week, because routes change over weeks.
const HALF_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// A network prefix: 24 bits of an IPv4 address, or 48 bits of an IPv6 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix(u64);

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self(u64::from(v4.to_bits() >> 8)),
            IpAddr::V6(v6) => Self(1 << 63 | u64::try_from(v6.to_bits() >> 80).unwrap_or(0)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrawlResidual {
    pub agent: AgentId,
    pub site: SiteId,
    /// The site's network; `None` if its address is unknown.
    pub network: Option<Prefix>,
    /// The round trip known before the crawl.
    pub known: Rtt,
    /// Whether probes measured `known`; if not, the map predicted it.
    pub probed: bool,
    /// Whether the agent got the site because its predicted round trip was short. If so, the
    /// residual does not count towards the agent's correction, because the shortest of many
    /// predictions is usually too short.
    pub preferred: bool,
    pub crawled: Rtt,
    /// The weight: 1 for a crawl now, less with age (see [`weight`]).
    pub weight: f64,
}

pub fn weight(age: Duration) -> f64 {
    0.5_f64.powf(age.as_secs_f64() / HALF_LIFE.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, proptest};

    use super::*;

    fn measured(millis: &[f64]) -> Vec<(AgentId, Rtt)> {
        (1..).map(AgentId::new).zip(millis.iter().map(|millis| Rtt::try_from_millis_f64(*millis).unwrap())).collect()
    }

    fn told(site: i64, agent: i64, residual: f64) -> CorrectedResidual {
        CorrectedResidual { agent: AgentId::new(agent), site: SiteId::new(site), network: None, residual, weight: 1.0 }
    }

    fn network(third: u8) -> Option<Prefix> {
        Some(Prefix::from(std::net::IpAddr::from([10, 0, third, 1])))
    }

    const HERE: [f64; 4] = [20.0, 50.0, 90.0, 130.0];

    #[test]
    fn a_twins_crawl_says_most_a_strangers_nothing_and_only_of_its_agent() {
        let sites = HashMap::from([
            (SiteId::new(1), measured(&HERE)),
            (SiteId::new(2), measured(&[21.0, 53.0, 95.0, 136.0])),
            (SiteId::new(3), measured(&[90.0, 50.0, 20.0, 130.0])),
        ]);
        let expects = |crawls: &[CorrectedResidual]| {
            let alike = Alike::of(crawls.to_vec(), &sites);
            alike.expects(&alike.near(&measured(&HERE), None), AgentId::new(9), 0.3)
        };
        let (twin, twins_spread) = expects(&[told(1, 9, 0.5)]).unwrap();
        assert!((0.35..0.45).contains(&twin) && twins_spread < 0.2, "{twin} {twins_spread}");
        let (near, nears_spread) = expects(&[told(2, 9, 0.5)]).unwrap();
        assert!((0.05..twin).contains(&near) && nears_spread > twins_spread, "{near} {nears_spread}");
        assert_eq!(expects(&[told(3, 9, 0.5), told(1, 8, 0.5)]), None);
        let (old, _) = expects(&[CorrectedResidual { weight: 0.1, ..told(1, 9, 0.5) }]).unwrap();
        assert!(old < twin, "an old crawl says less");
        let (newest, _) = expects(&[CorrectedResidual { weight: 0.5, ..told(1, 9, -0.5) }, told(1, 9, 0.5)]).unwrap();
        assert!((newest - twin).abs() < 1e-9, "of one pair the newest counts");
    }

    #[test]
    fn one_network_is_one_place_and_too_few_probers_tell_nothing() {
        let crawl = CorrectedResidual { network: network(7), ..told(1, 9, 0.5) };
        let alike = Alike::of(vec![crawl], &HashMap::from([(SiteId::new(1), measured(&HERE[..2]))]));
        let near = |network| alike.near(&measured(&HERE), network);
        let expects = |network| alike.expects(&near(network), AgentId::new(9), 0.3).map(|(mean, _)| mean);
        assert!(expects(network(7)).unwrap() > 0.3);
        assert_eq!((expects(network(8)), expects(None)), (None, None));
    }

    proptest! {
        #[test]
        fn whatever_was_crawled_nothing_is_surer_of_less_nor_expects_more_than_was_told(
            crawls in prop::collection::vec((1_i64..40, 1_i64..4, -1.4..1.4_f64, 0.001..1.0_f64, any::<bool>()), 0..80),
            apart in 0.0..0.1_f64,
            spread in 0.01..3.0_f64,
        ) {
            let sites: HashMap<SiteId, Vec<(AgentId, Rtt)>> = (1..40_i32)
                .map(|site| (SiteId::new(site.into()), measured(&HERE.map(|millis| millis * (f64::from(site) * apart).exp()))))
                .collect();
            let told: Vec<CorrectedResidual> = crawls
                .iter()
                .map(|(site, agent, residual, weight, known)| CorrectedResidual {
                    weight: *weight,
                    network: network(u8::try_from(*site % 5).unwrap()).filter(|_| *known),
                    ..told(*site, *agent, *residual)
                })
                .collect();
            let mut backwards = told.clone();
            backwards.reverse();
            let (alike, other) = (Alike::of(told, &sites), Alike::of(backwards, &sites));
            for agent in (1..4).map(AgentId::new) {
                let here = measured(&HERE);
                let expects = |alike: &Alike| alike.expects(&alike.near(&here, network(1)), agent, spread);
                prop_assert!(expects(&alike) == expects(&other), "the order told");
                if let Some((mean, left)) = expects(&alike) {
                    let said = || crawls.iter().filter(|crawl| AgentId::new(crawl.1) == agent).map(|crawl| crawl.2).chain([0.0]);
                    let (least, most) = (said().fold(0.0, f64::min), said().fold(0.0, f64::max));
                    prop_assert!((least..=most).contains(&mean), "{mean} of {least} to {most}");
                    prop_assert!(left >= 0.3 * spread && left <= spread * 1.000_001, "{left} of {spread}");
                }
            }
        }
    }

    #[test]
    fn after_a_half_life_a_crawl_weighs_half() {
        assert!((weight(HALF_LIFE) - 0.5).abs() < 1e-9);
    }
}
