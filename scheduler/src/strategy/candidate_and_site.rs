//! The input of strategies: candidates (the agents that may get a task) and the facts about the
//! task's site. Finds the best few of many candidates without sorting all of them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::gnp::PredictedRtt;
use crate::model::geo::{Direction, Position};
use crate::model::{AgentId, Rtt};

use super::crawl_duration::{Speed, Work};
use super::load_and_pace::{LoadLevel, last_ends};

/// An agent's location, from the operator's data and the agent's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgentLocation {
    /// The country, two capital letters (ISO 3166-1 alpha-2).
    pub country: Option<[u8; 2]>,
    /// The direction of the agent's position from the centre of the earth.
    pub direction: Option<Direction>,
    /// The address from which the agent connects.
    pub address: Option<IpAddr>,
}

/// The uncertainty of a distance: the standard deviation of its logarithm; 0.1 is about 10 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spread {
    per_mille: u16,
}

impl Spread {
    /// Converts a standard deviation. An invalid value becomes the maximum.
    pub fn new(ratio: f64) -> Self {
        let micros = Duration::try_from_secs_f64(ratio).map_or(u128::MAX, |ratio| ratio.as_millis());
        Self { per_mille: u16::try_from(micros).unwrap_or(u16::MAX) }
    }

    pub fn ratio(self) -> f64 {
        f64::from(self.per_mille) / 1e3
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub agent: AgentId,
    /// The predicted round trip to the site; `None` if the agent or the site is not on the map.
    pub predicted: Option<Rtt>,
    /// The expected round trip, by which agents are ranked: the mean over the points at which the
    /// site may be, plus the prediction penalty. `predicted` is the median over these points.
    /// `None` with the plain map, which ranks agents by `predicted`.
    pub expected: Option<Rtt>,
    /// The measured round trip to the site; `None` if the agent did not measure the site.
    pub measured: Option<Rtt>,
    /// The uncertainty of the prediction; `None` if the map gives none.
    pub spread: Option<Spread>,
    /// The uncertainty of the expected round trip after learning from crawls. This uncertainty
    /// includes errors that `spread` leaves out, and becomes smaller with every crawl of a similar
    /// site. `None` if nothing was learned.
    pub doubt: Option<Spread>,
    /// Number of assigned and leased tasks.
    pub load: u32,
    /// Number of slots.
    pub capacity: u32,
    pub pace: Duration,
    /// Time until a slot is free for one more task; `None` if it must be estimated from
    /// load and pace.
    pub wait: Option<Duration>,
    /// The speed learned from the agent's crawls.
    pub speed: Speed,
    pub home: AgentLocation,
}

impl Candidate {
    /// An agent about which only the number of slots is known.
    pub fn new(agent: AgentId, capacity: u32) -> Self {
        Self {
            agent,
            predicted: None,
            expected: None,
            measured: None,
            spread: None,
            doubt: None,
            load: 0,
            capacity,
            pace: Duration::from_secs(1),
            wait: None,
            speed: Speed::default(),
            home: AgentLocation::default(),
        }
    }

    /// Sets the distances to one site: the predicted distance, and this agent's measurement in
    /// `measured`, if there is one.
    #[must_use]
    pub fn to_site(self, predicted: Option<PredictedRtt>, measured: &[(AgentId, Rtt)]) -> Self {
        Self {
            predicted: predicted.map(|predicted| predicted.rtt),
            expected: predicted.and_then(|predicted| predicted.expected),
            measured: measured.iter().find(|(prober, _)| *prober == self.agent).map(|(_, rtt)| *rtt),
            spread: predicted.and_then(|predicted| predicted.spread).map(Spread::new),
            ..self
        }
    }

    /// The distance by which agents are ranked: the measured round trip if known, else the expected
    /// one, else the predicted one (section 2.1, step e, of the paper that the README cites).
    pub fn distance(&self) -> Option<Rtt> {
        self.measured.or(self.expected).or(self.predicted)
    }

    pub fn level(&self) -> LoadLevel {
        LoadLevel::of(self.load, self.capacity)
    }

    /// Time until one more task would end at this agent.
    pub(super) fn next_ends(&self) -> Duration {
        last_ends(self.level().plus(1), self.capacity, self.pace)
    }

    /// Time until a slot is free for one more task.
    pub fn waits(&self) -> Duration {
        self.wait.unwrap_or_else(|| match self.level().has_room() {
            true => Duration::ZERO,
            false => self.next_ends().saturating_sub(self.pace),
        })
    }
}

/// Sets the candidates' speeds.
pub fn with_speeds(mut candidates: Vec<Candidate>, speeds: &HashMap<AgentId, Speed>) -> Vec<Candidate> {
    candidates.iter_mut().for_each(|one| one.speed = speeds.get(&one.agent).copied().unwrap_or_default());
    candidates
}

/// The candidates without duplicates, sorted by agent. Sorted candidates are not copied, so callers
/// on hot paths pass sorted candidates.
pub(super) fn ordered(candidates: &[Candidate]) -> Cow<'_, [Candidate]> {
    if candidates.is_sorted_by(|one, next| one.agent < next.agent) {
        return Cow::Borrowed(candidates);
    }
    let mut ordered = candidates.to_vec();
    ordered.sort_unstable_by_key(|candidate| {
        (candidate.agent, candidate.distance(), candidate.measured, candidate.expected, candidate.predicted)
    });
    ordered.dedup_by_key(|candidate| candidate.agent);
    Cow::Owned(ordered)
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Site<'a> {
    pub host: &'a str,
    /// The site's address, as resolved by a prober.
    pub address: Option<IpAddr>,
    /// The site's position, from the site list or a database of IP addresses.
    pub position: Option<Position>,
    /// The size of the crawl; `None` if unknown.
    pub work: Option<Work>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct SiteFacts {
    pub host: String,
    /// The site's address, as resolved by a prober.
    pub address: Option<IpAddr>,
    pub position: Option<Position>,
    /// Pages and bytes of the last crawl; `None` if no crawl has ended.
    pub size: Option<(u32, u64)>,
    /// Number of pages fetched so far, by a running crawl or by a crawl that was handed back.
    pub fetched: u32,
    /// The batch's request interval.
    pub interval: Duration,
}

impl SiteFacts {
    /// Converts the facts to the input of a strategy, with the remaining work. A site of unknown
    /// size is assumed to have the `usual` size.
    pub fn site(&self, usual: Option<(u32, u64)>) -> Site<'_> {
        let whole = self.whole(usual);
        let work = if self.fetched == 0 { whole } else { whole.left(self.fetched, self.size.is_some()) };
        Site { host: &self.host, address: self.address, position: self.position, work: Some(work) }
    }

    /// All work of the site, including fetched pages. `usual` is the size assumed for a site of
    /// unknown size.
    pub fn whole(&self, usual: Option<(u32, u64)>) -> Work {
        let (pages, bytes) = self.size.or(usual).unwrap_or((Work::default().pages, Work::default().bytes));
        Work { pages, bytes, interval: self.interval }
    }
}

/// Number of candidates stored with a choice by `hash`, `domain`, `kademlia` and `earliest-finish`.
pub const LISTED: usize = 3;

/// Returns the `k` candidates of `ordered` with the lowest keys, lowest first. Candidates with
/// equal keys keep their order. Candidates without a key are skipped. For small `k`, a single
/// comparison rejects most candidates.
pub(super) fn least<K: Ord + Copy>(
    ordered: &[Candidate],
    k: usize,
    key: impl Fn(&Candidate) -> Option<K>,
) -> Vec<Candidate> {
    let mut least: Vec<(K, usize)> = Vec::with_capacity(k.saturating_add(1).min(ordered.len()));
    for (place, key) in ordered.iter().enumerate().filter_map(|(place, candidate)| Some((place, key(candidate)?))) {
        if least.len() == k && least.last().is_none_or(|(last, _)| *last <= key) {
            continue;
        }
        least.insert(least.partition_point(|(one, _)| *one <= key), (key, place));
        least.truncate(k);
    }
    least.into_iter().map(|(_, place)| ordered[place]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert_eq, proptest};

    use crate::model::AgentId;

    use super::*;

    proptest! {
        #[test]
        fn the_least_are_the_first_of_all_sorted(keys in prop::collection::vec(0_u32..6, 0..20), k in 0_usize..8) {
            // The key is the load. Candidates with a load of 5 have no key.
            let of = |(agent, load): (i64, &u32)| Candidate { load: *load, ..Candidate::new(AgentId::new(agent), 1) };
            let candidates: Vec<Candidate> = (1..).zip(&keys).map(of).collect();
            let mut sorted: Vec<Candidate> = candidates.iter().filter(|one| one.load < 5).copied().collect();
            sorted.sort_by_key(|one| one.load);
            sorted.truncate(k);
            prop_assert_eq!(least(&candidates, k, |one| (one.load < 5).then_some(one.load)), sorted);
        }
    }
}
