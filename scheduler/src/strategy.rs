//! Choosing an agent for a task: one pure function a strategy.
//!
//! A choice is a function of the candidates as a set and the seed: the order in which they are given changes nothing, and
//! the same seed chooses the same agent. Who may be a candidate (online, country, quota) is decided before. A full candidate
//! is passed over for one with room, within what the strategy would choose from anyway: nearness is never given up for it.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::gnp::{Direction, Position, Predicted};
use crate::model::{AgentId, Fallback, FallbackCause, Rtt, Strategy};

pub(crate) mod explain;
#[cfg(test)]
mod fixture;
pub mod learned;
pub mod load;
pub(crate) mod rules;
pub mod schedule;

pub use learned::explore::explored;
pub use load::LoadLevel;
pub use rules::anycast::choose_among_near;
pub use rules::next::{Former, Listed, choose_next};
pub use schedule::work::{Counted, Crawl, Speed, Work};

/// What is known of the site that an agent is chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Site<'a> {
    pub host: &'a str,
    /// The address a prober saw it at.
    pub address: Option<IpAddr>,
    /// Where it stands, as its list or a database of addresses says.
    pub position: Option<Position>,
    /// How much there is to crawl; `None` where nothing is known of it.
    pub work: Option<Work>,
}

/// Where an agent stands, as its operator and its connection say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Home {
    /// The country, two capital letters (ISO 3166-1 alpha-2).
    pub country: Option<[u8; 2]>,
    /// The direction of its position.
    pub direction: Option<Direction>,
    /// The address it is seen at.
    pub address: Option<IpAddr>,
}

/// How unsure a distance is: the standard deviation of its logarithm, so that 0.1 is about ten per cent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spread {
    per_mille: u16,
}

impl Spread {
    /// From the standard deviation; what is none counts as the greatest.
    pub fn new(ratio: f64) -> Self {
        let micros = Duration::try_from_secs_f64(ratio).map_or(u128::MAX, |ratio| ratio.as_millis());
        Self { per_mille: u16::try_from(micros).unwrap_or(u16::MAX) }
    }

    /// The standard deviation.
    pub fn ratio(self) -> f64 {
        f64::from(self.per_mille) / 1e3
    }
}

/// An agent that may get the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub agent: AgentId,
    /// Its predicted round trip to the site; `None` when either has no place on the map.
    pub predicted: Option<Rtt>,
    /// Its expected round trip, by which it ranks: not less than predicted where it might be far. `None` where only a point
    /// is known; then the prediction ranks.
    pub expected: Option<Rtt>,
    /// Its measured round trip to the site; `None` when it did not measure.
    pub measured: Option<Rtt>,
    /// How unsure the prediction is; `None` where it does not say, or was measured.
    pub spread: Option<Spread>,
    /// How unsure what is expected is once crawls have taught: with what the map's own spread leaves out, and less where alike sites were
    /// crawled. `None` where nothing was taught.
    pub doubt: Option<Spread>,
    pub load: u32,
    /// Tasks it may hold at once.
    pub capacity: u32,
    /// How long its crawls take.
    pub pace: Duration,
    /// When a slot is free for one more task, from now, as far as that is known better than by its load and pace.
    pub wait: Option<Duration>,
    /// How fast its crawls go, as far as they have taught.
    pub speed: Speed,
    pub home: Home,
}

impl Candidate {
    /// An agent of which nothing is known but its slots.
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
            home: Home::default(),
        }
    }

    /// The same with what is known of its distance to one site: what the map predicts, and what agents measured.
    #[must_use]
    pub fn to_site(self, predicted: Option<Predicted>, measured: &[(AgentId, Rtt)]) -> Self {
        Self {
            predicted: predicted.map(|predicted| predicted.rtt),
            expected: predicted.and_then(|predicted| predicted.expected),
            measured: measured.iter().find(|(prober, _)| *prober == self.agent).map(|(_, rtt)| *rtt),
            spread: predicted.and_then(|predicted| predicted.spread).map(Spread::new),
            ..self
        }
    }

    /// What it ranks by: measured before expected before predicted (the paper 2.1, step e).
    pub fn distance(&self) -> Option<Rtt> {
        self.measured.or(self.expected).or(self.predicted)
    }

    /// How full it is.
    pub fn level(&self) -> LoadLevel {
        LoadLevel::of(self.load, self.capacity)
    }

    /// When one more task would end, from now.
    fn next_ends(&self) -> Duration {
        load::last_ends(self.level().plus(1), self.capacity, self.pace)
    }

    /// When a slot is free for one more task, from now.
    pub fn waits(&self) -> Duration {
        self.wait.unwrap_or_else(|| match self.level().has_room() {
            true => Duration::ZERO,
            false => self.next_ends().saturating_sub(self.pace),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Who gets the task.
    pub agent: AgentId,
    /// Among whom it was drawn, best first; the chosen one alone where every agent was as good.
    pub candidates: Vec<Candidate>,
    /// The strategy that chose: the one asked for, unless `fallback` says why not.
    pub strategy: Strategy,
    /// Why the strategy asked for could not be followed; `None` when it was.
    pub fallback: Option<Fallback>,
}

/// Chooses an agent. `None` only when there are no candidates.
///
/// A strategy that goes by what is not known here (a distance, a position, an address) draws at random and says so. Fewer
/// candidates than it ranks are no obstacle.
pub fn choose(strategy: Strategy, site: &Site<'_>, candidates: &[Candidate], seed: u64) -> Option<Choice> {
    let ordered = ordered(candidates);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let chosen = match strategy {
        Strategy::Random => return random(&ordered, &mut rng),
        Strategy::Hash => rules::by_name::hash(site, &ordered),
        Strategy::Kademlia => rules::by_name::kademlia(site, &ordered),
        Strategy::Domain => rules::by_name::domain(site, &ordered),
        Strategy::Geographic => rules::by_place::geographic(site, &ordered, &mut rng),
        Strategy::Prefix => rules::by_place::prefix(site, &ordered, &mut rng),
        Strategy::GnpTop1 => nearest(&ordered, 1, &mut rng),
        Strategy::GnpTop3 => nearest(&ordered, 3, &mut rng),
        Strategy::GnpBalanced => rules::balanced::choose(&ordered, &mut rng),
        Strategy::GnpConfirmed => return rules::confirmed::choose(&ordered, &mut rng),
        Strategy::EarliestFinish => rules::earliest::choose(site, &ordered),
    };
    match chosen {
        Ok((agent, candidates)) => Some(Choice { agent, candidates, strategy, fallback: None }),
        Err(cause) => random(&ordered, &mut rng).map(|choice| Choice { fallback: Some(cause.into()), ..choice }),
    }
}

/// `random`: any agent with room, evenly. The yardstick, and what is left when no distance is known.
fn random(ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Option<Choice> {
    let drawn = load::draw(ordered, rng)?;
    Some(Choice { agent: drawn.agent, candidates: vec![*drawn], strategy: Strategy::Random, fallback: None })
}

/// `gnp-top1` and `gnp-top3`: one of the k nearest, at random (the paper 2.2.3: the draw among several is what spreads the load). Of the
/// k only those with room are drawn from, while there are any.
fn nearest(ordered: &[Candidate], k: usize, rng: &mut ChaCha8Rng) -> Ranked {
    let ranked = load::rank::least(ordered, k, Candidate::distance);
    let drawn = load::draw(&ranked, rng).ok_or(FallbackCause::NoDistance)?.agent;
    Ok((drawn, ranked))
}

/// What a strategy chose, with those it would take in its place, best first; or what it goes by and does not know.
type Ranked = Result<(AgentId, Vec<Candidate>), FallbackCause>;

/// Never said: without anybody nothing is chosen.
const NOBODY: FallbackCause = FallbackCause::NoDistance;

/// The first of `ranked`, which is what a strategy chose.
fn first(ranked: Vec<Candidate>, otherwise: FallbackCause) -> Ranked {
    ranked.first().map(|first| first.agent).map(|agent| (agent, ranked)).ok_or(otherwise)
}

/// Each agent once, and in one order, whatever order they came in. Those that come so already, as they do where speed matters, are not
/// copied.
fn ordered(candidates: &[Candidate]) -> Cow<'_, [Candidate]> {
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

#[cfg(test)]
mod tests;
