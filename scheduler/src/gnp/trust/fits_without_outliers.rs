//! Judges all agents of a fleet: compares their measurements with each other, with fits of the map
//! and with sites' places, and sets the worst agents aside, one kind of evidence after another.
//!
//! If two agents contradict each other, their pairs with other agents show which of the two is
//! wrong. An agent that reports false measurements also makes honest agents look worse, so the
//! worst agent is set aside, and all other agents are judged without it. At the end, the agents set
//! aside are judged again, against the remaining agents.

use std::collections::{BTreeMap, BTreeSet};

use crate::gnp::{Embedding, Mesh, default_dimensions, fit};
use crate::model::{AgentId, EmbeddingEpoch, Rtt};

use super::evidence_and_findings::{
    FEWEST, Finding, FleetTrust, Kind, RemainingEvidence, ReportBias, Trust, TrustEvidence, TypicalSize, log_ratio,
    reason,
};
use super::proven_lies_and_claims::{claims_too_short, colluders, faster_than_light};

pub fn judge(evidence: &TrustEvidence<'_>) -> FleetTrust {
    let (evaluation, map) = TrustEvaluation::of(evidence);
    conclude(&evaluation, map.as_ref())
}

/// Judges all agents, including those set aside, against the agents that are still trusted.
fn conclude(evaluation: &TrustEvaluation<'_>, map: Option<&Embedding>) -> FleetTrust {
    let mut judgement = FleetTrust {
        findings: evaluation.proven.clone(),
        heard: BTreeMap::new(),
        landmarks: evaluation.remaining.evidence.landmarks.to_vec(),
    };
    conclude_by(evaluation, Kind::Asymmetry, |agent| asymmetry(&evaluation.remaining, agent), &mut judgement);
    if let Some(map) = map {
        conclude_by(evaluation, Kind::Residual, |agent| residual(&evaluation.remaining, map, agent), &mut judgement);
        conclude_by(evaluation, Kind::Sites, |agent| landmark_sites(&evaluation.remaining, map, agent), &mut judgement);
        for &agent in
            evaluation.remaining.agents.iter().filter(|agent| sites(&evaluation.remaining, map, **agent).is_some())
        {
            judgement.heard.entry(agent).or_default().insert(Kind::Sites);
        }
    }
    judgement
}

fn conclude_by(
    evaluation: &TrustEvaluation<'_>,
    kind: Kind,
    size: impl Fn(AgentId) -> Option<ReportBias>,
    judgement: &mut FleetTrust,
) {
    let sizes: BTreeMap<AgentId, ReportBias> =
        evaluation.remaining.agents.iter().filter_map(|&agent| Some((agent, size(agent)?))).collect();
    let believed = TypicalSize::of(
        sizes.iter().filter(|(agent, _)| !evaluation.remaining.aside.contains(agent)).map(|(_, size)| size),
    );
    for (&agent, size) in &sizes {
        judgement.heard.entry(agent).or_default().insert(kind);
        let trust = believed.trust(kind, size);
        if trust > judgement.trust(agent) {
            let reason = reason(kind, size, &believed, judgement.landmarks.len());
            judgement.findings.insert(agent, Finding { kind, trust, reason });
        }
    }
}

/// Maximum number of fits of the map in one judgement. After each fit, one more agent may be set
/// aside.
const MOST_FITS: usize = 6;

struct TrustEvaluation<'a> {
    remaining: RemainingEvidence<'a>,
    /// Findings that later evidence cannot overturn.
    proven: BTreeMap<AgentId, Finding>,
}

impl<'a> TrustEvaluation<'a> {
    /// Checks one kind of evidence after another. Also returns the last map; `None` if no map can
    /// be fitted.
    fn of(evidence: &'a TrustEvidence<'a>) -> (Self, Option<Embedding>) {
        let mut evaluation = Self { remaining: RemainingEvidence::new(evidence), proven: BTreeMap::new() };
        evaluation.check_light();
        evaluation.check_collusion();
        evaluation.check_asymmetry();
        let map = evaluation.check_residuals();
        if let Some(map) = &map {
            evaluation.check_sites(map);
            evaluation.check_claims(map);
        }
        (evaluation, map)
    }

    /// Sets aside agents that report round trips shorter than light allows.
    fn check_light(&mut self) {
        for &agent in &self.remaining.agents {
            if let Some(reason) = faster_than_light(self.remaining.evidence, agent) {
                self.remaining.aside.insert(agent);
                self.proven.insert(agent, Finding { kind: Kind::Light, trust: Trust::Quarantined, reason });
            }
        }
    }

    /// Sets aside all colluding agents at once, because if one agent were set aside first, the
    /// others might have too few partners left to be found.
    fn check_collusion(&mut self) {
        let believed: Vec<AgentId> =
            self.remaining.agents.iter().copied().filter(|agent| !self.remaining.aside.contains(agent)).collect();
        for (agent, reason) in colluders(self.remaining.evidence.mesh, &believed) {
            self.remaining.aside.insert(agent);
            self.proven.insert(agent, Finding { kind: Kind::Collusion, trust: Trust::Quarantined, reason });
        }
    }

    fn check_asymmetry(&mut self) {
        while let Some(worst) = self.worst(Kind::Asymmetry, asymmetry) {
            self.remaining.aside.insert(worst);
        }
    }

    /// Fits the map, sets the worst outlier aside, and repeats this until there is no outlier.
    /// Returns the last map; `None` if no map can be fitted.
    fn check_residuals(&mut self) -> Option<Embedding> {
        for _ in 1..MOST_FITS {
            let map = fit_of_jurors(&self.remaining)?;
            let Some(worst) = self.worst(Kind::Residual, |remaining, agent| residual(remaining, &map, agent)) else {
                return Some(map);
            };
            self.remaining.aside.insert(worst);
        }
        fit_of_jurors(&self.remaining)
    }

    fn check_sites(&mut self, map: &Embedding) {
        while let Some(worst) = self.worst(Kind::Sites, |remaining, agent| landmark_sites(remaining, map, agent)) {
            self.remaining.aside.insert(worst);
        }
    }

    /// Sets aside non-landmark agents whose claims are far too short for most of the sites that
    /// they confirmed.
    fn check_claims(&mut self, map: &Embedding) {
        let landmarks = self.remaining.evidence.landmarks;
        let confirmers = self.remaining.agents.iter().filter(|agent| !landmarks.contains(agent));
        let found = confirmers.filter_map(|&agent| {
            let reason = claims_too_short(&sites(&self.remaining, map, agent)?, landmarks.len())?;
            Some((agent, Finding { kind: Kind::Sites, trust: Trust::Quarantined, reason }))
        });
        for (agent, finding) in found.collect::<Vec<_>>() {
            self.remaining.aside.insert(agent);
            self.proven.entry(agent).or_insert(finding);
        }
    }

    /// Returns the agent with the largest error among the agents that this kind of evidence would
    /// quarantine.
    fn worst(
        &self,
        kind: Kind,
        size: impl Fn(&RemainingEvidence<'_>, AgentId) -> Option<ReportBias>,
    ) -> Option<AgentId> {
        let sizes = self.sizes(size);
        let believed = TypicalSize::of(sizes.values());
        let found = sizes.iter().filter(|(_, size)| believed.trust(kind, size) == Trust::Quarantined);
        found.max_by(|a, b| a.1.far().total_cmp(&b.1.far())).map(|(&agent, _)| agent)
    }

    /// The sizes of the errors of all agents that are not set aside.
    fn sizes(
        &self,
        size: impl Fn(&RemainingEvidence<'_>, AgentId) -> Option<ReportBias>,
    ) -> BTreeMap<AgentId, ReportBias> {
        let believed = self.remaining.agents.iter().filter(|agent| !self.remaining.aside.contains(agent));
        believed.filter_map(|&agent| Some((agent, size(&self.remaining, agent)?))).collect()
    }
}

/// The epoch of maps that are fitted only for a judgement.
const JUDGED: EmbeddingEpoch = EmbeddingEpoch::new(0);
/// The seed of fits for a judgement. The seed is fixed, so that equal evidence gives equal
/// judgements.
const SEED: u64 = 0;
/// Maximum number of non-landmark agents whose measurements are used to fit the map for a
/// judgement. This number is enough to place each landmark well, and small enough to judge a large
/// fleet within a second.
const MOST_JURORS: usize = 32;

/// The agents whose measurements are used to fit the map for a judgement.
fn choose_jurors(landmarks: &[AgentId], mesh: &Mesh) -> BTreeSet<AgentId> {
    let others = mesh.agents().into_iter().filter(|agent| !landmarks.contains(agent)).take(MOST_JURORS);
    landmarks.iter().copied().chain(others).collect()
}

/// Fits the map of the agents that are not set aside.
fn fit_of_jurors(remaining: &RemainingEvidence<'_>) -> Option<Embedding> {
    let landmarks: Vec<AgentId> =
        remaining.evidence.landmarks.iter().copied().filter(|landmark| !remaining.aside.contains(landmark)).collect();
    let mesh = remaining.evidence.mesh.without_reports_of(&remaining.aside);
    let mesh = mesh.among(&choose_jurors(&landmarks, &mesh));
    fit(JUDGED, &mesh, &landmarks, default_dimensions(landmarks.len()), SEED).ok()
}

/// The error of an agent's measurements; `None` if too few pairs are measured in both directions.
fn asymmetry(remaining: &RemainingEvidence<'_>, agent: AgentId) -> Option<ReportBias> {
    let mesh = remaining.evidence.mesh;
    let pairs = remaining
        .others(agent)
        .filter_map(|other| Some(log_ratio(mesh.measured(agent, other)?, mesh.measured(other, agent)?)));
    ReportBias::of(&pairs.collect::<Vec<f64>>(), FEWEST)
}

/// The error of an agent's measurements; `None` if there are too few measurements.
fn residual(remaining: &RemainingEvidence<'_>, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
    let mesh = remaining.evidence.mesh;
    let of_it: Vec<(AgentId, Rtt)> =
        remaining.others(agent).filter_map(|other| Some((other, mesh.measured(other, agent)?))).collect();
    if of_it.len() < FEWEST {
        return None;
    }
    let place = map.locate(&of_it).ok()?;
    let rows = remaining.others(agent).filter_map(|other| {
        let predicted = map.predict(&place, map.placement(other)?).ok()?;
        Some(log_ratio(mesh.measured(agent, other)?, predicted))
    });
    ReportBias::of(&rows.collect::<Vec<f64>>(), FEWEST)
}

/// An agent is judged by its measurements of sites only if it has measured at least this many,
/// because a few of them may be anycast.
pub const FEWEST_SITES: usize = 8;
/// Maximum number of sites used to judge an agent. The median over this many sites is precise
/// enough. More sites would take more time, because each site is located once per landmark.
const MOST_SITES: usize = 40;

/// The errors of a landmark's measurements of sites, compared with predictions from the other
/// landmarks' measurements. The part of an error that the control ([`control`]) also
/// shows is subtracted.
fn landmark_sites(remaining: &RemainingEvidence<'_>, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
    if !remaining.evidence.landmarks.contains(&agent) {
        return None;
    }
    let size = sites(remaining, map, agent)?;
    Some(control(remaining, map, agent).map_or(size, |control| size.beyond(&control)))
}

/// The control for a landmark: the errors of the distances on the map from the judged landmark
/// to non-landmark agents. Each non-landmark agent is located like a site by the other
/// landmarks. The agent's distance on the map is then compared with the agent's measurement of
/// the judged landmark.
///
/// The control shows errors that the judged landmark does not cause. For example, three
/// landmarks in one town locate all sites too far from a fourth landmark.
fn control(remaining: &RemainingEvidence<'_>, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
    let own = map.placement(agent)?;
    let mesh = remaining.evidence.mesh;
    let landmarks = remaining.evidence.landmarks;
    let judges: Vec<AgentId> = remaining.others(agent).filter(|other| landmarks.contains(other)).collect();
    let witness = |witness: AgentId| {
        let said = mesh.measured(witness, agent)?;
        let of_it: Vec<(AgentId, Rtt)> =
            judges.iter().filter_map(|&judge| Some((judge, mesh.measured(judge, witness)?))).collect();
        if of_it.len() < FEWEST {
            return None;
        }
        let place = map.locate(&of_it).ok()?;
        Some(log_ratio(said, map.predict(&place, own).ok()?))
    };
    let witnesses = remaining.others(agent).filter(|other| !landmarks.contains(other)).take(MOST_SITES);
    ReportBias::of(&witnesses.filter_map(witness).collect::<Vec<f64>>(), FEWEST)
}

/// The errors of an agent's measurements of sites, compared with predictions from the landmarks'
/// measurements; `None` if the agent measured too few sites.
fn sites(remaining: &RemainingEvidence<'_>, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
    let own = map.placement(agent)?;
    let site = |measured: &Vec<(AgentId, Rtt)>| {
        let (_, rtt) = measured.iter().find(|(prober, _)| *prober == agent)?;
        let others: Vec<(AgentId, Rtt)> = measured
            .iter()
            .copied()
            .filter(|(prober, _)| *prober != agent && !remaining.aside.contains(prober))
            .filter(|(prober, _)| remaining.evidence.landmarks.contains(prober))
            .collect();
        if others.len() < FEWEST {
            return None;
        }
        let place = map.locate(&others).ok()?;
        Some(log_ratio(*rtt, map.predict(&place, own).ok()?))
    };
    let sites = remaining.evidence.sites.iter().take(MOST_SITES);
    ReportBias::of(&sites.filter_map(site).collect::<Vec<f64>>(), FEWEST_SITES)
}
