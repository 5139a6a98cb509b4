//! Defines a choice: the agent that a strategy chose, and the candidates from which it chose.

use crate::model::{AgentId, Fallback, FallbackCause, Strategy};

use crate::strategy::candidate::Candidate;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub agent: AgentId,
    /// The agents from which the strategy chose, best first. For `random`, only the chosen agent.
    pub candidates: Vec<Candidate>,
    /// The strategy that made the choice: the requested one, unless there is a `fallback`.
    pub strategy: Strategy,
    /// Why the requested strategy was not applied; `None` if it was applied.
    pub fallback: Option<Fallback>,
}

/// The chosen agent and the candidates, best first; or the reason why the strategy cannot choose.
pub(super) type Ranked = Result<(AgentId, Vec<Candidate>), FallbackCause>;

/// The fallback cause if there are no candidates. This cause is never stored, because
/// [`choose`](crate::strategy::choose) returns no choice if there are no candidates.
pub(super) const NOBODY: FallbackCause = FallbackCause::NoDistance;

/// Chooses the first of `ranked`, or fails with the cause `otherwise`.
pub(super) fn first(ranked: Vec<Candidate>, otherwise: FallbackCause) -> Ranked {
    ranked.first().map(|first| first.agent).map(|agent| (agent, ranked)).ok_or(otherwise)
}
