//! The uncertainty of distances. If the uncertainty exceeds the usual difference between the
//! nearest agents' distances ([`DIFFER`]), the choice depends more on load (`gnp-balanced`), or a
//! few agents measure the site before the choice (a confirmation).

use std::time::Duration;

use crate::strategy::Candidate;

/// The usual difference between the nearest agents' distances, as a standard deviation of their
/// logarithms. This difference is about a quarter if the fifth nearest agent is twice as far as the
/// nearest. For confirmation, values from 0.2 to 0.4 give about equal results (docs/method.md).
pub const DIFFER: f64 = 0.25;

/// The uncertainty of an agent's distance, as the variance of its logarithm. Zero if the distance
/// was measured, or if the map gives no spread.
pub(in crate::strategy) fn variance(candidate: &Candidate) -> f64 {
    let spread = candidate.spread.filter(|_| candidate.measured.is_none());
    spread.map_or(0.0, |spread| spread.ratio().powi(2))
}

/// Whether it is uncertain which agent is nearest: whether the shortest distance is only predicted,
/// with a spread greater than [`DIFFER`].
pub fn unsure(candidates: &[Candidate]) -> bool {
    let known = candidates.iter().filter_map(|one| Some((one.distance()?, one.agent, one)));
    let nearest = known.min_by_key(|(distance, agent, _)| (*distance, *agent));
    nearest.is_some_and(|(_, _, nearest)| variance(nearest) > DIFFER.powi(2))
}

/// The estimated duration of a confirmation by `agents` agents, each with `samples` samples and one
/// request to warm up the connection. A confirmation takes no extra time if the site waits at least
/// this long for another reason.
pub const fn takes(agents: u32, samples: u32, interval: Duration) -> Duration {
    interval.saturating_mul(agents.saturating_mul(samples.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::AgentId;
    use crate::strategy::Spread;
    use crate::strategy::fixture::{candidate, measured};

    fn predicted(agent: i64, millis: f64, spread: f64) -> Candidate {
        Candidate { spread: Some(Spread::new(spread)), ..candidate(agent, Some(millis), None) }
    }

    #[test]
    fn only_what_ranks_first_can_be_too_unsure() {
        let sure = predicted(1, 10.0, 0.2);
        let unsure_one = |millis| predicted(2, millis, 0.3);
        let nearer = measured(3, 5.0);
        assert!(!unsure(&[]) && !unsure(&[Candidate::new(AgentId::new(1), 1)]), "nothing is known");
        assert!(!unsure(&[sure]) && !unsure(&[sure, unsure_one(20.0)]));
        assert!(unsure(&[sure, unsure_one(8.0)]) && unsure(&[unsure_one(8.0), sure]));
        assert!(!unsure(&[unsure_one(8.0), nearer]), "a measured one is nearer");
        let both = Candidate { measured: nearer.measured, ..unsure_one(8.0) };
        assert!(!unsure(&[both]), "it was measured");
    }
}
