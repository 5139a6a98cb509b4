//! Trust: whose measurements are believed.
//!
//! A landmark that lies or is broken bends every place it helped to find. Five kinds of evidence tell it from an odd
//! path, each over everything an agent reported, so that odd paths do not convict it:
//!
//! - *asymmetry*: what it measured of others against what they measured of it;
//! - *residual*: what it measured of others against the map that the others make, with it placed by their measurements alone;
//! - *sites*: what it measured of sites against where the other landmarks place them;
//! - *light*: round trips that are shorter than light in fibre needs, where positions are known;
//! - *collusion*: partners that it claims to be next to, and they it, where the others see them apart.
//!
//! The first three are log ratios with a bias and a spread. An agent is convicted when one of the two is above a fixed limit
//! and far out among the others' and for its own error, since networks differ in how symmetric they are. Of a pair that
//! disagrees the majority of pairs decides: the worst is put aside, and the others are judged again without it. Afterwards
//! those put aside are judged once more against the rest. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::model::{AgentId, EmbeddingEpoch, Rtt, words};

use super::{Embedding, Mesh, default_dimensions, fit};
pub use claim::{is_near_enough, leaves_light_time};
use size::{Believed, Size};

mod claim;
mod collusion;
mod evidence;
mod size;
#[cfg(test)]
mod tests;

/// One doubted landmark in so many raises the alarm: with a third of them lying, the rest is no clear majority of what
/// places a site.
pub const ALARM_ONE_IN: usize = 3;
/// Two-way pairs, rows or sites below which an agent is not judged by them.
const FEWEST: usize = 3;
/// Sites below which an agent is not judged by what it measured of them: a few may be anycast.
pub const FEWEST_SITES: usize = 8;
/// The bias from which on an agent that is no landmark is convicted by sites: a factor of four and a half too little. It is
/// asked where it is likely to be nearest, so that the honest are off by up to a factor of three.
const TOO_NEAR: f64 = -1.5;
/// Impossible round trips below which light convicts nobody: one position may be wrong.
const FEWEST_IMPOSSIBLE: usize = 2;
/// The part of an agent's rows that must be impossible before light convicts it.
const IMPOSSIBLE_SHARE: f64 = 0.2;
/// Sites an agent is judged by at most: the median of so many is sharp enough, and each is located once a landmark.
const MOST_SITES: usize = 40;
/// Fits of the map at most in one judgement: each puts one agent more aside.
const MOST_FITS: usize = 6;

/// The epoch of maps that are fitted to judge and thrown away.
const JUDGED: EmbeddingEpoch = EmbeddingEpoch::new(0);
/// The seed of those fits: one mesh has one judgement.
const SEED: u64 = 0;

words!(
    /// What an agent is convicted by.
    #[derive(PartialOrd, Ord)]
    Kind {
        /// Round trips shorter than light needs.
        Light = "light",
        /// Partners it claims to be next to, where the others see them apart.
        Collusion = "collusion",
        /// What others measured of it.
        Asymmetry = "asymmetry",
        /// The map of the others.
        Residual = "residual",
        /// Where the other landmarks place sites.
        Sites = "sites",
    }
);

/// How far an agent's measurements are believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Believed.
    Trusted,
    /// Believed still, but odd: counts towards the alarm.
    Suspect,
    /// Not believed: nothing it measured is used.
    Quarantined,
}

/// What is held against an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Charge {
    pub kind: Kind,
    /// How far it is believed.
    pub standing: Standing,
    /// Why, in words and figures.
    pub reason: String,
}

/// Everything an agent can be judged by.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub mesh: &'a Mesh,
    /// The landmarks, in order of choice.
    pub landmarks: &'a [AgentId],
    /// Per site, what was measured of it; a few dozen sites are enough.
    pub sites: &'a [Vec<(AgentId, Rtt)>],
    /// The least round trip that light in fibre allows between two agents, where both positions are known.
    pub least: &'a BTreeMap<(AgentId, AgentId), Rtt>,
}

/// Who is believed.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    charges: BTreeMap<AgentId, Charge>,
    /// By which evidence each agent could be judged at all.
    heard: BTreeMap<AgentId, BTreeSet<Kind>>,
    landmarks: Vec<AgentId>,
}

/// So many landmarks are doubted that the map cannot be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alarm {
    /// Landmarks that are suspect or quarantined.
    pub doubted: usize,
    pub landmarks: usize,
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the map cannot be trusted: {} of {} landmarks are doubted", self.doubted, self.landmarks)
    }
}

impl Judgement {
    /// What is held against an agent; `None` when it is trusted.
    pub fn charge(&self, agent: AgentId) -> Option<&Charge> {
        self.charges.get(&agent)
    }

    /// Everyone who is doubted, and why.
    pub const fn charges(&self) -> &BTreeMap<AgentId, Charge> {
        &self.charges
    }

    /// How far an agent is believed.
    pub fn standing(&self, agent: AgentId) -> Standing {
        self.charge(agent).map_or(Standing::Trusted, |charge| charge.standing)
    }

    /// Whether there was enough of this evidence to judge the agent by it.
    pub fn heard(&self, agent: AgentId, kind: Kind) -> bool {
        self.heard.get(&agent).is_some_and(|kinds| kinds.contains(&kind))
    }

    /// Those who are not believed.
    pub fn quarantined(&self) -> BTreeSet<AgentId> {
        let held = self.charges.iter().filter(|(_, charge)| charge.standing == Standing::Quarantined);
        held.map(|(&agent, _)| agent).collect()
    }

    /// The alarm, when one landmark in [`ALARM_ONE_IN`] is doubted.
    pub fn alarm(&self) -> Option<Alarm> {
        let landmarks = self.landmarks.len();
        let doubted = self.landmarks.iter().filter(|landmark| self.charges.contains_key(landmark)).count();
        (doubted > 0 && doubted.saturating_mul(ALARM_ONE_IN) >= landmarks).then_some(Alarm { doubted, landmarks })
    }
}

/// Judges every agent by everything there is.
pub fn judge(evidence: &Evidence<'_>) -> Judgement {
    let mut court = Court::new(evidence);
    court.try_light();
    court.try_collusion();
    court.try_asymmetry();
    let map = court.try_residuals();
    if let Some(map) = &map {
        court.try_sites(map);
        court.try_claims(map);
    }
    court.conclude(map.as_ref())
}

/// The state of one judgement.
struct Court<'a> {
    evidence: &'a Evidence<'a>,
    agents: Vec<AgentId>,
    /// Those nothing is believed of any more.
    aside: BTreeSet<AgentId>,
    /// Charges that no later evidence can take back.
    proven: BTreeMap<AgentId, Charge>,
}

impl<'a> Court<'a> {
    fn new(evidence: &'a Evidence<'a>) -> Self {
        let agents = evidence.mesh.agents().into_iter().collect();
        Self { evidence, agents, aside: BTreeSet::new(), proven: BTreeMap::new() }
    }

    /// Puts aside who reports the impossible while the other end does not.
    fn try_light(&mut self) {
        for &agent in &self.agents {
            if let Some(reason) = evidence::impossible(self.evidence, agent) {
                self.aside.insert(agent);
                self.proven.insert(agent, Charge { kind: Kind::Light, standing: Standing::Quarantined, reason });
            }
        }
    }

    /// Puts aside who bears others out that the rest denies. All at once: they are each other's only witnesses.
    fn try_collusion(&mut self) {
        let believed: Vec<AgentId> = self.agents.iter().copied().filter(|agent| !self.aside.contains(agent)).collect();
        for (agent, reason) in collusion::colluders(self.evidence.mesh, &believed) {
            self.aside.insert(agent);
            self.proven.insert(agent, Charge { kind: Kind::Collusion, standing: Standing::Quarantined, reason });
        }
    }

    fn try_asymmetry(&mut self) {
        while let Some(worst) = self.worst(Kind::Asymmetry, Self::asymmetry) {
            self.aside.insert(worst);
        }
    }

    /// Fits the map of those who are believed until nobody stands out from it; `None` when there is no map.
    fn try_residuals(&mut self) -> Option<Embedding> {
        for _ in 1..MOST_FITS {
            let map = self.map()?;
            let Some(worst) = self.worst(Kind::Residual, |court, agent| court.residual(&map, agent)) else {
                return Some(map);
            };
            self.aside.insert(worst);
        }
        self.map()
    }

    fn try_sites(&mut self, map: &Embedding) {
        while let Some(worst) = self.worst(Kind::Sites, |court, agent| court.landmark_sites(map, agent)) {
            self.aside.insert(worst);
        }
    }

    /// Puts aside who is no landmark and claims to be far too near to most sites it was asked to confirm.
    fn try_claims(&mut self, map: &Embedding) {
        let confirmers = self.agents.iter().filter(|agent| !self.evidence.landmarks.contains(agent));
        let convicted = confirmers.filter_map(|&agent| {
            let size = self.sites(map, agent).filter(|size| size.bias <= TOO_NEAR)?;
            let reason = evidence::claims(&size, self.evidence.landmarks.len());
            Some((agent, Charge { kind: Kind::Sites, standing: Standing::Quarantined, reason }))
        });
        for (agent, charge) in convicted.collect::<Vec<_>>() {
            self.aside.insert(agent);
            self.proven.entry(agent).or_insert(charge);
        }
    }

    /// The agent farthest out of those who are to be put aside by this evidence.
    fn worst(&self, kind: Kind, size: impl Fn(&Self, AgentId) -> Option<Size>) -> Option<AgentId> {
        let sizes = self.sizes(size);
        let believed = Believed::of(sizes.values());
        let convicted = sizes.iter().filter(|(_, size)| believed.standing(kind, size) == Standing::Quarantined);
        convicted.max_by(|a, b| a.1.far().total_cmp(&b.1.far())).map(|(&agent, _)| agent)
    }

    /// The sizes of those who are believed so far.
    fn sizes(&self, size: impl Fn(&Self, AgentId) -> Option<Size>) -> BTreeMap<AgentId, Size> {
        let believed = self.agents.iter().filter(|agent| !self.aside.contains(agent));
        believed.filter_map(|&agent| Some((agent, size(self, agent)?))).collect()
    }

    fn asymmetry(&self, agent: AgentId) -> Option<Size> {
        let mesh = self.evidence.mesh;
        let pairs = self
            .others(agent)
            .filter_map(|other| Some(evidence::log_ratio(mesh.measured(agent, other)?, mesh.measured(other, agent)?)));
        Size::of(&pairs.collect::<Vec<f64>>(), FEWEST)
    }

    fn residual(&self, map: &Embedding, agent: AgentId) -> Option<Size> {
        let mesh = self.evidence.mesh;
        let of_it: Vec<(AgentId, Rtt)> =
            self.others(agent).filter_map(|other| Some((other, mesh.measured(other, agent)?))).collect();
        if of_it.len() < FEWEST {
            return None;
        }
        let place = map.locate(&of_it).ok()?;
        let rows = self.others(agent).filter_map(|other| {
            let predicted = map.predict(&place, map.placement(other)?).ok()?;
            Some(evidence::log_ratio(mesh.measured(agent, other)?, predicted))
        });
        Size::of(&rows.collect::<Vec<f64>>(), FEWEST)
    }

    /// What a landmark measured of sites, beyond what the others would misplace without any word of its own.
    fn landmark_sites(&self, map: &Embedding, agent: AgentId) -> Option<Size> {
        if !self.evidence.landmarks.contains(&agent) {
            return None;
        }
        let size = self.sites(map, agent)?;
        Some(self.control(map, agent).map_or(size, |control| size.beyond(&control)))
    }

    /// The control: agents placed as sites are, by the other landmarks alone, against what each of them measured of this one.
    ///
    /// Landmarks that stand together, as three in one town, place everything too far from a fourth. All sites then share one
    /// error, which no number of them takes out of the median, and which is not the fourth's.
    fn control(&self, map: &Embedding, agent: AgentId) -> Option<Size> {
        let own = map.placement(agent)?;
        let mesh = self.evidence.mesh;
        let landmarks = self.evidence.landmarks;
        let judges: Vec<AgentId> = self.others(agent).filter(|other| landmarks.contains(other)).collect();
        let witness = |witness: AgentId| {
            let said = mesh.measured(witness, agent)?;
            let of_it: Vec<(AgentId, Rtt)> =
                judges.iter().filter_map(|&judge| Some((judge, mesh.measured(judge, witness)?))).collect();
            if of_it.len() < FEWEST {
                return None;
            }
            let place = map.locate(&of_it).ok()?;
            Some(evidence::log_ratio(said, map.predict(&place, own).ok()?))
        };
        let witnesses = self.others(agent).filter(|other| !landmarks.contains(other)).take(MOST_SITES);
        Size::of(&witnesses.filter_map(witness).collect::<Vec<f64>>(), FEWEST)
    }

    fn sites(&self, map: &Embedding, agent: AgentId) -> Option<Size> {
        let own = map.placement(agent)?;
        let site = |measured: &Vec<(AgentId, Rtt)>| {
            let (_, rtt) = measured.iter().find(|(prober, _)| *prober == agent)?;
            let others: Vec<(AgentId, Rtt)> = measured
                .iter()
                .copied()
                .filter(|(prober, _)| *prober != agent && !self.aside.contains(prober))
                .filter(|(prober, _)| self.evidence.landmarks.contains(prober))
                .collect();
            if others.len() < FEWEST {
                return None;
            }
            let place = map.locate(&others).ok()?;
            Some(evidence::log_ratio(*rtt, map.predict(&place, own).ok()?))
        };
        let sites = self.evidence.sites.iter().take(MOST_SITES);
        Size::of(&sites.filter_map(site).collect::<Vec<f64>>(), FEWEST_SITES)
    }

    /// Everyone but this agent who is believed so far.
    fn others(&self, agent: AgentId) -> impl Iterator<Item = AgentId> {
        self.agents.iter().copied().filter(move |&other| other != agent && !self.aside.contains(&other))
    }

    /// The map of those who are believed.
    fn map(&self) -> Option<Embedding> {
        let landmarks: Vec<AgentId> =
            self.evidence.landmarks.iter().copied().filter(|landmark| !self.aside.contains(landmark)).collect();
        let mesh = self.evidence.mesh.without_reports_of(&self.aside);
        let mesh = mesh.among(&evidence::jury(&landmarks, &mesh));
        fit(JUDGED, &mesh, &landmarks, default_dimensions(landmarks.len()), SEED).ok()
    }

    /// Judges everyone, those put aside too, against those who are believed in the end.
    fn conclude(&self, map: Option<&Embedding>) -> Judgement {
        let mut judgement = Judgement {
            charges: self.proven.clone(),
            heard: BTreeMap::new(),
            landmarks: self.evidence.landmarks.to_vec(),
        };
        self.conclude_by(Kind::Asymmetry, |agent| self.asymmetry(agent), &mut judgement);
        if let Some(map) = map {
            self.conclude_by(Kind::Residual, |agent| self.residual(map, agent), &mut judgement);
            self.conclude_by(Kind::Sites, |agent| self.landmark_sites(map, agent), &mut judgement);
            for &agent in self.agents.iter().filter(|agent| self.sites(map, **agent).is_some()) {
                judgement.heard.entry(agent).or_default().insert(Kind::Sites);
            }
        }
        judgement
    }

    fn conclude_by(&self, kind: Kind, size: impl Fn(AgentId) -> Option<Size>, judgement: &mut Judgement) {
        let sizes: BTreeMap<AgentId, Size> =
            self.agents.iter().filter_map(|&agent| Some((agent, size(agent)?))).collect();
        let believed =
            Believed::of(sizes.iter().filter(|(agent, _)| !self.aside.contains(agent)).map(|(_, size)| size));
        for (&agent, size) in &sizes {
            judgement.heard.entry(agent).or_default().insert(kind);
            let standing = believed.standing(kind, size);
            if standing > judgement.standing(agent) {
                let reason = evidence::reason(kind, size, &believed, judgement.landmarks.len());
                judgement.charges.insert(agent, Charge { kind, standing, reason });
            }
        }
    }
}
