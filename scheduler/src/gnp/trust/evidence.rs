//! Holds the evidence of a judgement, and gives evidence against an agent as numbers and as text.

use std::collections::BTreeMap;

use crate::gnp::Mesh;
use crate::model::{AgentId, Rtt};

use super::bias_limits::{ReportBias, TypicalSize};
use super::finding::Kind;

/// Milliseconds added to both round trips of a ratio, because differences below a millisecond come
/// from the hosts, not from the network.
pub(super) const SOFTENING: f64 = 1.0;
#[derive(Debug, Clone, Copy)]
pub struct TrustEvidence<'a> {
    pub mesh: &'a Mesh,
    /// The landmarks, in the order of their election.
    pub landmarks: &'a [AgentId],
    /// Measurements of sites, one list per site. A few dozen sites suffice.
    pub sites: &'a [Vec<(AgentId, Rtt)>],
    /// For each pair of agents with known positions, the shortest round trip that light allows.
    pub least: &'a BTreeMap<(AgentId, AgentId), Rtt>,
}

/// `ln(reported / expected)`, softened.
pub(super) fn log_ratio(reported: Rtt, expected: Rtt) -> f64 {
    ((reported.as_millis_f64() + SOFTENING) / (expected.as_millis_f64() + SOFTENING)).ln()
}

/// The reason for doubting an agent, as text for the operator.
pub(super) fn reason(kind: Kind, size: &ReportBias, believed: &TypicalSize, landmarks: usize) -> String {
    let rows = size.rows;
    let against = match kind {
        Kind::Light => "light".to_owned(),
        Kind::Collusion => "the others".to_owned(),
        Kind::Asymmetry => format!("what {rows} others measured of it"),
        Kind::Residual => format!("where {rows} others place it"),
        Kind::Sites => format!("where the other {} landmarks place {rows} sites", landmarks.saturating_sub(1)),
    };
    if believed.is_biased(size) {
        let way = if size.bias > 0.0 { "too long" } else { "too short" };
        let factor = size.bias.abs().exp();
        return format!("its reports are {way}: off by a factor of {factor:.2} in the median from {against}");
    }
    format!(
        "its reports are both too long and too short: off by a factor of {:.2} in the median from {against} (others: \
         {:.2})",
        size.spread.exp(),
        believed.spread.exp()
    )
}

/// The reason for doubting an agent's claims, as text for the operator.
pub(super) fn claims(size: &ReportBias, landmarks: usize) -> String {
    let (factor, rows) = ((-size.bias).exp(), size.rows);
    format!(
        "its claims are too short: off by a factor of {factor:.2} in the median from where {landmarks} landmarks place {rows} \
         sites it confirmed"
    )
}
