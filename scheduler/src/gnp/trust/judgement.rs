//! Judges all agents of a fleet by the evidence that remains after the worst agents are set aside.

use std::collections::BTreeMap;

use crate::gnp::Embedding;
use crate::model::AgentId;

use super::asymmetry::asymmetry;
use super::bias_and_spread::{ReportBias, TypicalSize};
use super::evidence::TrustEvidence;
use super::finding::{Finding, FleetTrust, Kind};
use super::reason::reason;
use super::residual::residual;
use super::set_aside::TrustEvaluation;
use super::sites::{landmark_sites, sites};

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
