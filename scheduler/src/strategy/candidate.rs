//! Defines a candidate: an agent that may get a task, as a strategy sees it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::gnp::PredictedRtt;
use crate::model::geo::Direction;
use crate::model::{AgentId, Rtt};

use super::load::level::{LoadLevel, last_ends};
use super::schedule::crawl_duration::Speed;

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
