//! Candidates for the tests of strategies.

use crate::model::{AgentId, Rtt};

use super::Candidate;

/// An agent with one slot, with its predicted and measured round trips in milliseconds.
pub(super) fn candidate(agent: i64, predicted: Option<f64>, measured: Option<f64>) -> Candidate {
    let rtt = |millis: f64| Rtt::try_from_millis_f64(millis).unwrap();
    let (predicted, measured) = (predicted.map(rtt), measured.map(rtt));
    Candidate { predicted, measured, ..Candidate::new(AgentId::new(agent), 1) }
}

pub(super) fn measured(agent: i64, millis: f64) -> Candidate {
    candidate(agent, None, Some(millis))
}
