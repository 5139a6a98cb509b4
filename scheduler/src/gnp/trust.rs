//! Trust: which agents' measurements are used.
//!
//! A lying or broken landmark distorts every location that it contributed to. Five kinds of
//! evidence distinguish it from an odd path, each over all of an agent's reports, so that odd paths
//! alone do not convict it:
//!
//! - *asymmetry*: its measurements of other agents against their measurements of it;
//! - *residual*: its measurements of other agents against the map fitted without it, with the agent
//!   located by their measurements alone;
//! - *sites*: its measurements of sites against the locations from the other landmarks;
//! - *light*: round trips shorter than light in fibre needs, where positions are known;
//! - *collusion*: partners that it and they report as near each other, while other agents see them
//!   apart.
//!
//! The first three are log ratios with a bias and a spread. An agent is convicted if either exceeds
//! a fixed limit and is an outlier both among the other agents and for its own error, because
//! networks differ in how symmetric they are. For a pair that disagrees the majority of pairs
//! decides: the worst agent is set aside, and the other agents are judged again without it. At the
//! end the agents set aside are judged once more against the remaining ones. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::model::{AgentId, EmbeddingEpoch, Rtt, words};

use super::{Embedding, Mesh, default_dimensions, fit};
pub use claim::{is_near_enough, leaves_light_time};
use size::{ReportBias, TypicalSize};

mod claim;
mod collusion;
mod evidence;
mod size;
#[cfg(test)]
mod tests;

/// The alarm is raised if one landmark in this many is doubtful: if a third of them lie, the rest
/// is no clear majority for locating a site.
pub const ALARM_ONE_IN: usize = 3;
/// The least two-way pairs, rows or sites by which an agent is judged.
const FEWEST: usize = 3;
/// The least sites by which an agent is judged: a few may be anycast.
pub const FEWEST_SITES: usize = 8;
/// The bias below which sites convict an agent that is no landmark: too near by a factor of four
/// and a half. Such an agent measures where it is likely to be nearest, so honest agents are off by
/// up to a factor of three.
const TOO_NEAR: f64 = -1.5;
/// The least impossible round trips for a conviction by light: one position may be wrong.
const FEWEST_IMPOSSIBLE: usize = 2;
/// The share of an agent's rows that must be impossible for a conviction by light.
const IMPOSSIBLE_SHARE: f64 = 0.2;
/// The most sites used to judge an agent: their median is precise enough, and each is located once
/// per landmark.
const MOST_SITES: usize = 40;
/// The most fits of the map in one judgement: each sets one more agent aside.
const MOST_FITS: usize = 6;

/// The epoch of maps fitted only for a judgement.
const JUDGED: EmbeddingEpoch = EmbeddingEpoch::new(0);
/// The seed of those fits: a mesh has one judgement.
const SEED: u64 = 0;

words!(
    /// The kind of evidence that convicts an agent.
    #[derive(PartialOrd, Ord)]
    Kind {
        /// Round trips shorter than light needs.
        Light = "light",
        /// Partners reported as near each other, while other agents see them apart.
        Collusion = "collusion",
        /// Other agents' measurements of it.
        Asymmetry = "asymmetry",
        /// The map fitted to the other agents.
        Residual = "residual",
        /// The locations of sites from the other landmarks.
        Sites = "sites",
    }
);

/// The standing of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// Its measurements are used.
    Trusted,
    /// Its measurements are used, but it is doubtful and counts towards the alarm.
    Suspect,
    /// None of its measurements is used.
    Quarantined,
}

/// The verdict on an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    pub kind: Kind,
    /// Its standing.
    pub standing: Trust,
    /// The reason, with figures, for display.
    pub reason: String,
}

/// The evidence for a judgement.
#[derive(Debug, Clone, Copy)]
pub struct TrustEvidence<'a> {
    pub mesh: &'a Mesh,
    /// The landmarks, in order of choice.
    pub landmarks: &'a [AgentId],
    /// Measurements by site; a few dozen sites suffice.
    pub sites: &'a [Vec<(AgentId, Rtt)>],
    /// The least round trip that light in fibre allows between two agents, if both positions are
    /// known.
    pub least: &'a BTreeMap<(AgentId, AgentId), Rtt>,
}

/// The agents' standings.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetTrust {
    charges: BTreeMap<AgentId, Finding>,
    /// The kinds of evidence available for each agent.
    heard: BTreeMap<AgentId, BTreeSet<Kind>>,
    landmarks: Vec<AgentId>,
}

/// So many landmarks are doubtful that the map cannot be trusted.
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

impl FleetTrust {
    /// The verdict on an agent; `None` if it is trusted.
    pub fn charge(&self, agent: AgentId) -> Option<&Finding> {
        self.charges.get(&agent)
    }

    /// All doubtful agents, with the reasons.
    pub const fn charges(&self) -> &BTreeMap<AgentId, Finding> {
        &self.charges
    }

    /// The standing of an agent.
    pub fn standing(&self, agent: AgentId) -> Trust {
        self.charge(agent).map_or(Trust::Trusted, |charge| charge.standing)
    }

    /// Whether there was enough evidence of this kind to judge the agent.
    pub fn heard(&self, agent: AgentId, kind: Kind) -> bool {
        self.heard.get(&agent).is_some_and(|kinds| kinds.contains(&kind))
    }

    /// The quarantined agents.
    pub fn quarantined(&self) -> BTreeSet<AgentId> {
        let held = self.charges.iter().filter(|(_, charge)| charge.standing == Trust::Quarantined);
        held.map(|(&agent, _)| agent).collect()
    }

    /// The alarm, if one landmark in [`ALARM_ONE_IN`] is doubtful.
    pub fn alarm(&self) -> Option<Alarm> {
        let landmarks = self.landmarks.len();
        let doubted = self.landmarks.iter().filter(|landmark| self.charges.contains_key(landmark)).count();
        (doubted > 0 && doubted.saturating_mul(ALARM_ONE_IN) >= landmarks).then_some(Alarm { doubted, landmarks })
    }
}

/// Judges every agent by all the evidence.
pub fn judge(evidence: &TrustEvidence<'_>) -> FleetTrust {
    let mut court = TrustEvaluation::new(evidence);
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
struct TrustEvaluation<'a> {
    evidence: &'a TrustEvidence<'a>,
    agents: Vec<AgentId>,
    /// Agents set aside: none of their measurements is used.
    aside: BTreeSet<AgentId>,
    /// Charges that later evidence cannot withdraw.
    proven: BTreeMap<AgentId, Finding>,
}

impl<'a> TrustEvaluation<'a> {
    fn new(evidence: &'a TrustEvidence<'a>) -> Self {
        let agents = evidence.mesh.agents().into_iter().collect();
        Self { evidence, agents, aside: BTreeSet::new(), proven: BTreeMap::new() }
    }

    /// Sets aside agents that report impossible round trips while the other end does not.
    fn try_light(&mut self) {
        for &agent in &self.agents {
            if let Some(reason) = evidence::impossible(self.evidence, agent) {
                self.aside.insert(agent);
                self.proven.insert(agent, Finding { kind: Kind::Light, standing: Trust::Quarantined, reason });
            }
        }
    }

    /// Sets aside agents that confirm each other against the other agents. All at once, because
    /// they are each other's only witnesses.
    fn try_collusion(&mut self) {
        let believed: Vec<AgentId> = self.agents.iter().copied().filter(|agent| !self.aside.contains(agent)).collect();
        for (agent, reason) in collusion::colluders(self.evidence.mesh, &believed) {
            self.aside.insert(agent);
            self.proven.insert(agent, Finding { kind: Kind::Collusion, standing: Trust::Quarantined, reason });
        }
    }

    fn try_asymmetry(&mut self) {
        while let Some(worst) = self.worst(Kind::Asymmetry, Self::asymmetry) {
            self.aside.insert(worst);
        }
    }

    /// Fits the map of the remaining agents until none is an outlier; `None` if there is no map.
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

    /// Sets aside agents that are no landmarks and report being far too near to most sites they
    /// confirmed.
    fn try_claims(&mut self, map: &Embedding) {
        let confirmers = self.agents.iter().filter(|agent| !self.evidence.landmarks.contains(agent));
        let convicted = confirmers.filter_map(|&agent| {
            let size = self.sites(map, agent).filter(|size| size.bias <= TOO_NEAR)?;
            let reason = evidence::claims(&size, self.evidence.landmarks.len());
            Some((agent, Finding { kind: Kind::Sites, standing: Trust::Quarantined, reason }))
        });
        for (agent, charge) in convicted.collect::<Vec<_>>() {
            self.aside.insert(agent);
            self.proven.entry(agent).or_insert(charge);
        }
    }

    /// The worst of the agents to set aside by this evidence.
    fn worst(&self, kind: Kind, size: impl Fn(&Self, AgentId) -> Option<ReportBias>) -> Option<AgentId> {
        let sizes = self.sizes(size);
        let believed = TypicalSize::of(sizes.values());
        let convicted = sizes.iter().filter(|(_, size)| believed.standing(kind, size) == Trust::Quarantined);
        convicted.max_by(|a, b| a.1.far().total_cmp(&b.1.far())).map(|(&agent, _)| agent)
    }

    /// The sizes of the agents not set aside.
    fn sizes(&self, size: impl Fn(&Self, AgentId) -> Option<ReportBias>) -> BTreeMap<AgentId, ReportBias> {
        let believed = self.agents.iter().filter(|agent| !self.aside.contains(agent));
        believed.filter_map(|&agent| Some((agent, size(self, agent)?))).collect()
    }

    fn asymmetry(&self, agent: AgentId) -> Option<ReportBias> {
        let mesh = self.evidence.mesh;
        let pairs = self
            .others(agent)
            .filter_map(|other| Some(evidence::log_ratio(mesh.measured(agent, other)?, mesh.measured(other, agent)?)));
        ReportBias::of(&pairs.collect::<Vec<f64>>(), FEWEST)
    }

    fn residual(&self, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
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
        ReportBias::of(&rows.collect::<Vec<f64>>(), FEWEST)
    }

    /// A landmark's measurements of sites, corrected by the error of the other landmarks without
    /// its measurements.
    fn landmark_sites(&self, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
        if !self.evidence.landmarks.contains(&agent) {
            return None;
        }
        let size = self.sites(map, agent)?;
        Some(self.control(map, agent).map_or(size, |control| size.beyond(&control)))
    }

    /// The control: agents located like sites, by the other landmarks alone, against each agent's
    /// measurement of this one.
    ///
    /// Landmarks that are close together, as three in one town, locate everything too far from a
    /// fourth. All sites then share one error, which more sites do not average out, and which is
    /// not the fourth landmark's.
    fn control(&self, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
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
        ReportBias::of(&witnesses.filter_map(witness).collect::<Vec<f64>>(), FEWEST)
    }

    fn sites(&self, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
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
        ReportBias::of(&sites.filter_map(site).collect::<Vec<f64>>(), FEWEST_SITES)
    }

    /// All agents except this one and those set aside.
    fn others(&self, agent: AgentId) -> impl Iterator<Item = AgentId> {
        self.agents.iter().copied().filter(move |&other| other != agent && !self.aside.contains(&other))
    }

    /// The map of the agents not set aside.
    fn map(&self) -> Option<Embedding> {
        let landmarks: Vec<AgentId> =
            self.evidence.landmarks.iter().copied().filter(|landmark| !self.aside.contains(landmark)).collect();
        let mesh = self.evidence.mesh.without_reports_of(&self.aside);
        let mesh = mesh.among(&evidence::jury(&landmarks, &mesh));
        fit(JUDGED, &mesh, &landmarks, default_dimensions(landmarks.len()), SEED).ok()
    }

    /// Judges all agents, including those set aside, against the agents trusted in the end.
    fn conclude(&self, map: Option<&Embedding>) -> FleetTrust {
        let mut judgement = FleetTrust {
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

    fn conclude_by(&self, kind: Kind, size: impl Fn(AgentId) -> Option<ReportBias>, judgement: &mut FleetTrust) {
        let sizes: BTreeMap<AgentId, ReportBias> =
            self.agents.iter().filter_map(|&agent| Some((agent, size(agent)?))).collect();
        let believed =
            TypicalSize::of(sizes.iter().filter(|(agent, _)| !self.aside.contains(agent)).map(|(_, size)| size));
        for (&agent, size) in &sizes {
            judgement.heard.entry(agent).or_default().insert(kind);
            let standing = believed.standing(kind, size);
            if standing > judgement.standing(agent) {
                let reason = evidence::reason(kind, size, &believed, judgement.landmarks.len());
                judgement.charges.insert(agent, Finding { kind, standing, reason });
            }
        }
    }
}
