//! Trust: decides which agents' measurements are used.
//!
//! A lying or broken landmark distorts every location computed from its measurements. Five kinds of
//! evidence distinguish a bad agent from an unusual path. Each kind uses all reports of the agent:
//!
//! - *asymmetry*: the agent's measurements of other agents contradict their measurements of it;
//! - *residual*: the agent's measurements of other agents contradict the map, on which the agent is
//!   located by the other agents' measurements alone;
//! - *sites*: the agent's measurements of sites contradict the other landmarks' measurements;
//! - *light*: the agent reports round trips that are shorter than light in fibre allows;
//! - *collusion*: agents report that they are near each other, but other agents' measurements show
//!   that they are far apart.
//!
//! The kinds asymmetry, residual and sites give log ratios of reported to expected round trips.
//! These ratios have a bias (their median) and a spread. An agent is quarantined if its bias or
//! spread exceeds a fixed limit and is also an outlier among the agents' values. The fixed limit
//! alone would not suffice, because networks differ in how symmetric they are. A bias must also be
//! several times as large as its own standard error.
//!
//! If two agents contradict each other, their pairs with other agents show which of the two is
//! wrong. An agent that reports false measurements also makes honest agents look worse, so the
//! worst agent is set aside, and all other agents are judged without it. At the end, the agents set
//! aside are judged again, against the remaining agents.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::model::{AgentId, EmbeddingEpoch, Rtt};

use super::{Embedding, default_dimensions, fit};
use bias_limits::{ReportBias, TypicalSize};
pub use claim::believed;
pub use evidence::TrustEvidence;
pub use finding::{Finding, Kind, Trust};

mod bias_limits;
mod claim;
mod collusion;
mod evidence;
mod finding;
mod jury;
mod light;
pub mod release;
#[cfg(test)]
mod tests;

/// The alarm is raised if at least one in `ALARM_ONE_IN` landmarks is doubtful. If a third of the
/// landmarks lie, the honest landmarks are not a clear majority.
pub const ALARM_ONE_IN: usize = 3;
/// Minimum number of measurements needed to locate a host, and of log ratios needed to judge an
/// agent.
const FEWEST: usize = 3;
/// An agent is judged by its measurements of sites only if it has measured at least this many,
/// because a few of them may be anycast.
pub const FEWEST_SITES: usize = 8;
/// Maximum number of sites used to judge an agent. The median over this many sites is precise
/// enough. More sites would take more time, because each site is located once per landmark.
const MOST_SITES: usize = 40;
/// Maximum number of fits of the map in one judgement. After each fit, one more agent may be set
/// aside.
const MOST_FITS: usize = 6;
/// The epoch of maps that are fitted only for a judgement.
const JUDGED: EmbeddingEpoch = EmbeddingEpoch::new(0);
/// The seed of fits for a judgement. The seed is fixed, so that equal evidence gives equal
/// judgements.
const SEED: u64 = 0;

#[derive(Debug, Clone, PartialEq)]
pub struct FleetTrust {
    findings: BTreeMap<AgentId, Finding>,
    /// For each agent, the kinds of evidence that sufficed to judge it.
    heard: BTreeMap<AgentId, BTreeSet<Kind>>,
    landmarks: Vec<AgentId>,
}

/// The map cannot be trusted, because too many landmarks are doubtful.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alarm {
    /// Number of landmarks that are suspect or quarantined.
    pub doubted: usize,
    pub landmarks: usize,
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the map cannot be trusted: {} of {} landmarks are doubted", self.doubted, self.landmarks)
    }
}

impl FleetTrust {
    /// The finding on an agent; `None` if the agent is trusted.
    pub fn finding(&self, agent: AgentId) -> Option<&Finding> {
        self.findings.get(&agent)
    }

    /// All doubtful agents, with their findings.
    pub const fn findings(&self) -> &BTreeMap<AgentId, Finding> {
        &self.findings
    }

    pub fn trust(&self, agent: AgentId) -> Trust {
        self.finding(agent).map_or(Trust::Trusted, |finding| finding.trust)
    }

    /// Whether there was enough evidence of this kind to judge the agent.
    pub fn heard(&self, agent: AgentId, kind: Kind) -> bool {
        self.heard.get(&agent).is_some_and(|kinds| kinds.contains(&kind))
    }

    pub fn quarantined(&self) -> BTreeSet<AgentId> {
        let held = self.findings.iter().filter(|(_, finding)| finding.trust == Trust::Quarantined);
        held.map(|(&agent, _)| agent).collect()
    }

    /// Returns the alarm if at least one in [`ALARM_ONE_IN`] landmarks is doubtful.
    pub fn alarm(&self) -> Option<Alarm> {
        let landmarks = self.landmarks.len();
        let doubted = self.landmarks.iter().filter(|landmark| self.findings.contains_key(landmark)).count();
        (doubted > 0 && doubted.saturating_mul(ALARM_ONE_IN) >= landmarks).then_some(Alarm { doubted, landmarks })
    }
}

pub fn judge(evidence: &TrustEvidence<'_>) -> FleetTrust {
    let mut evaluation = TrustEvaluation::new(evidence);
    evaluation.check_light();
    evaluation.check_collusion();
    evaluation.check_asymmetry();
    let map = evaluation.check_residuals();
    if let Some(map) = &map {
        evaluation.check_sites(map);
        evaluation.check_claims(map);
    }
    evaluation.conclude(map.as_ref())
}

struct TrustEvaluation<'a> {
    evidence: &'a TrustEvidence<'a>,
    agents: Vec<AgentId>,
    /// Agents set aside: their measurements are not used in the rest of the judgement.
    aside: BTreeSet<AgentId>,
    /// Findings that later evidence cannot overturn.
    proven: BTreeMap<AgentId, Finding>,
}

impl<'a> TrustEvaluation<'a> {
    fn new(evidence: &'a TrustEvidence<'a>) -> Self {
        let agents = evidence.mesh.agents().into_iter().collect();
        Self { evidence, agents, aside: BTreeSet::new(), proven: BTreeMap::new() }
    }

    /// Sets aside agents that report round trips shorter than light allows.
    fn check_light(&mut self) {
        for &agent in &self.agents {
            if let Some(reason) = light::impossible(self.evidence, agent) {
                self.aside.insert(agent);
                self.proven.insert(agent, Finding { kind: Kind::Light, trust: Trust::Quarantined, reason });
            }
        }
    }

    /// Sets aside all colluding agents at once, because if one agent were set aside first, the
    /// others might have too few partners left to be found.
    fn check_collusion(&mut self) {
        let believed: Vec<AgentId> = self.agents.iter().copied().filter(|agent| !self.aside.contains(agent)).collect();
        for (agent, reason) in collusion::colluders(self.evidence.mesh, &believed) {
            self.aside.insert(agent);
            self.proven.insert(agent, Finding { kind: Kind::Collusion, trust: Trust::Quarantined, reason });
        }
    }

    fn check_asymmetry(&mut self) {
        while let Some(worst) = self.worst(Kind::Asymmetry, Self::asymmetry) {
            self.aside.insert(worst);
        }
    }

    /// Fits the map, sets the worst outlier aside, and repeats this until there is no outlier.
    /// Returns the last map; `None` if no map can be fitted.
    fn check_residuals(&mut self) -> Option<Embedding> {
        for _ in 1..MOST_FITS {
            let map = self.map()?;
            let Some(worst) = self.worst(Kind::Residual, |evaluation, agent| evaluation.residual(&map, agent)) else {
                return Some(map);
            };
            self.aside.insert(worst);
        }
        self.map()
    }

    fn check_sites(&mut self, map: &Embedding) {
        while let Some(worst) = self.worst(Kind::Sites, |evaluation, agent| evaluation.landmark_sites(map, agent)) {
            self.aside.insert(worst);
        }
    }

    /// Sets aside non-landmark agents whose claims are far too short for most of the sites that
    /// they confirmed.
    fn check_claims(&mut self, map: &Embedding) {
        let landmarks = self.evidence.landmarks;
        let confirmers = self.agents.iter().filter(|agent| !landmarks.contains(agent));
        let found = confirmers.filter_map(|&agent| {
            let reason = claim::too_short(&self.sites(map, agent)?, landmarks.len())?;
            Some((agent, Finding { kind: Kind::Sites, trust: Trust::Quarantined, reason }))
        });
        for (agent, finding) in found.collect::<Vec<_>>() {
            self.aside.insert(agent);
            self.proven.entry(agent).or_insert(finding);
        }
    }

    /// Returns the agent with the largest error among the agents that this kind of evidence would
    /// quarantine.
    fn worst(&self, kind: Kind, size: impl Fn(&Self, AgentId) -> Option<ReportBias>) -> Option<AgentId> {
        let sizes = self.sizes(size);
        let believed = TypicalSize::of(sizes.values());
        let found = sizes.iter().filter(|(_, size)| believed.trust(kind, size) == Trust::Quarantined);
        found.max_by(|a, b| a.1.far().total_cmp(&b.1.far())).map(|(&agent, _)| agent)
    }

    /// The sizes of the errors of all agents that are not set aside.
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

    /// The errors of a landmark's measurements of sites, compared with predictions from the other
    /// landmarks' measurements. The part of an error that the control ([`Self::control`]) also
    /// shows is subtracted.
    fn landmark_sites(&self, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
        if !self.evidence.landmarks.contains(&agent) {
            return None;
        }
        let size = self.sites(map, agent)?;
        Some(self.control(map, agent).map_or(size, |control| size.beyond(&control)))
    }

    /// The control for a landmark: the errors of the distances on the map from the judged landmark
    /// to non-landmark agents. Each non-landmark agent is located like a site by the other
    /// landmarks. The agent's distance on the map is then compared with the agent's measurement of
    /// the judged landmark.
    ///
    /// The control shows errors that the judged landmark does not cause. For example, three
    /// landmarks in one town locate all sites too far from a fourth landmark.
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

    /// All agents except `agent` and the agents set aside.
    fn others(&self, agent: AgentId) -> impl Iterator<Item = AgentId> {
        self.agents.iter().copied().filter(move |&other| other != agent && !self.aside.contains(&other))
    }

    /// Fits the map of the agents that are not set aside.
    fn map(&self) -> Option<Embedding> {
        let landmarks: Vec<AgentId> =
            self.evidence.landmarks.iter().copied().filter(|landmark| !self.aside.contains(landmark)).collect();
        let mesh = self.evidence.mesh.without_reports_of(&self.aside);
        let mesh = mesh.among(&jury::choose(&landmarks, &mesh));
        fit(JUDGED, &mesh, &landmarks, default_dimensions(landmarks.len()), SEED).ok()
    }

    /// Judges all agents, including those set aside, against the agents that are still trusted.
    fn conclude(&self, map: Option<&Embedding>) -> FleetTrust {
        let mut judgement = FleetTrust {
            findings: self.proven.clone(),
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
            let trust = believed.trust(kind, size);
            if trust > judgement.trust(agent) {
                let reason = evidence::reason(kind, size, &believed, judgement.landmarks.len());
                judgement.findings.insert(agent, Finding { kind, trust, reason });
            }
        }
    }
}
