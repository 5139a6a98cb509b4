//! Sets the worst agents aside, one kind of evidence after another.
//!
//! If two agents contradict each other, their pairs with other agents show which of the two is
//! wrong. An agent that reports false measurements also makes honest agents look worse, so the
//! worst agent is set aside, and all other agents are judged without it. At the end, the agents set
//! aside are judged again, against the remaining agents.

use std::collections::BTreeMap;

use crate::gnp::Embedding;
use crate::model::AgentId;

use super::asymmetry::asymmetry;
use super::bias_and_spread::{ReportBias, TypicalSize};
use super::evidence::{RemainingEvidence, TrustEvidence};
use super::finding::{Finding, Kind, Trust};
use super::residual::residual;
use super::sites::{landmark_sites, sites};
use super::{claim, collusion, jury, light};

/// Maximum number of fits of the map in one judgement. After each fit, one more agent may be set
/// aside.
const MOST_FITS: usize = 6;

pub(super) struct TrustEvaluation<'a> {
    pub(super) remaining: RemainingEvidence<'a>,
    /// Findings that later evidence cannot overturn.
    pub(super) proven: BTreeMap<AgentId, Finding>,
}

impl<'a> TrustEvaluation<'a> {
    /// Checks one kind of evidence after another. Also returns the last map; `None` if no map can
    /// be fitted.
    pub(super) fn of(evidence: &'a TrustEvidence<'a>) -> (Self, Option<Embedding>) {
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
            if let Some(reason) = light::impossible(self.remaining.evidence, agent) {
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
        for (agent, reason) in collusion::colluders(self.remaining.evidence.mesh, &believed) {
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
            let map = jury::map(&self.remaining)?;
            let Some(worst) = self.worst(Kind::Residual, |remaining, agent| residual(remaining, &map, agent)) else {
                return Some(map);
            };
            self.remaining.aside.insert(worst);
        }
        jury::map(&self.remaining)
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
            let reason = claim::too_short(&sites(&self.remaining, map, agent)?, landmarks.len())?;
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
