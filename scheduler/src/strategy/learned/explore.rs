//! Exploration: sometimes a site is crawled by an agent whose distance is only predicted, to learn
//! this distance. A crawl that explores is called a trial.
//!
//! The gain of a trial is the expected improvement over the chosen agent's round trip, times
//! [`HORIZON`] later crawls. The tried agent's round trip is assumed to be lognormal (Jones,
//! Schonlau and Welch, "Efficient global optimization of expensive black-box functions", 1998,
//! equation 15). The cost is the expected extra round trip of the trial. The agent with the
//! greatest difference between gain and cost is tried, but only if its gain exceeds its cost. Only
//! some randomly drawn choices explore ([`one_in`]).

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::strategy::Candidate;

/// Number of later crawls that benefit from a nearer agent.
const HORIZON: f64 = 5.0;
/// Returns the number `n` such that a choice explores with the probability `1 / n` after `crawls`
/// crawls of the site. Returns `None` if the choice must not explore. The choices for the first two
/// crawls do not explore, because there may be no later crawls that benefit. The choices for the
/// next two crawls explore often, because many crawls benefit if a nearer agent is found early.
const fn one_in(crawls: usize) -> Option<u32> {
    match crawls {
        0 | 1 => None,
        2 | 3 => Some(2),
        _ => Some(20),
    }
}

/// Minimum spread, because the computation divides by the spread.
const LEAST_SPREAD: f64 = 0.01;
/// The random stream of exploration. This stream differs from the strategy's stream, so that
/// exploration does not change the strategy's draw.
const STREAM: u64 = 1;

/// Returns the agent to try instead of `chosen`, for a site that has been crawled `crawls` times.
/// The seed decides whether the choice explores. Returns `None` if the choice does not explore, or
/// if no trial is worth its cost.
pub fn explored<'a>(
    chosen: &Candidate,
    candidates: &'a [Candidate],
    crawls: usize,
    seed: u64,
) -> Option<&'a Candidate> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(STREAM);
    if rng.random_range(0..one_in(crawls)?) > 0 {
        return None;
    }
    // If the chosen agent's distance is only predicted, no other agent is tried, because the crawl
    // by the chosen agent already measures an unknown distance.
    let best = chosen.measured?.as_millis_f64();
    candidates
        .iter()
        .filter(|one| one.agent != chosen.agent && one.measured.is_none() && one.level().has_room())
        .filter_map(|one| Some((worth(one, best)?, one)))
        .filter(|(worth, _)| *worth > 0.0)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, one)| one)
}

/// The gain of a trial over [`HORIZON`] crawls minus its cost, in milliseconds. `best` is the
/// chosen agent's round trip in milliseconds. `None` if the agent's distance or spread is unknown.
fn worth(one: &Candidate, best: f64) -> Option<f64> {
    let mean = one.distance()?.as_millis_f64();
    let spread = one.doubt.or(one.spread)?.ratio().max(LEAST_SPREAD);
    let z = (best.ln() - mean.ln()) / spread + spread / 2.0;
    let improvement = (best * normal(z) - mean * normal(z - spread)).max(0.0);
    Some(HORIZON * improvement - (mean - best).max(0.0))
}

/// The normal distribution function to within 0.01, approximated by a logistic function.
fn normal(z: f64) -> f64 {
    1.0 / (1.0 + (-1.702 * z).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::Spread;
    use crate::strategy::fixture::{candidate, measured};

    fn predicted(agent: i64, millis: f64, spread: f64) -> Candidate {
        Candidate { spread: Some(Spread::new(spread)), ..candidate(agent, Some(millis), None) }
    }

    #[test]
    fn who_may_well_be_nearer_is_tried_now_and_then_and_who_cannot_never() {
        let tried = |others: &[Candidate]| -> Vec<i64> {
            let mut all = vec![measured(1, 20.0)];
            all.extend_from_slice(others);
            (0..400).filter_map(|seed| explored(&all[0], &all, 2, seed)).map(|one| one.agent.get()).collect()
        };
        let unsure = tried(&[predicted(2, 22.0, 0.4), predicted(3, 60.0, 0.3), measured(4, 19.9)]);
        assert!((150..250).contains(&unsure.len()) && unsure.iter().all(|agent| *agent == 2), "{unsure:?}");
        assert!(tried(&[predicted(2, 22.0, 0.01), predicted(3, 60.0, 0.3)]).is_empty(), "surely farther");
        assert!(tried(&[Candidate { load: 1, ..predicted(2, 10.0, 0.3) }]).is_empty(), "it has no room");
        let unknown = [predicted(1, 20.0, 0.3), predicted(2, 19.0, 0.3)];
        assert!(
            (0..400).all(|seed| explored(&unknown[0], &unknown, 2, seed).is_none()),
            "the chosen one teaches as much"
        );
        let unsure = [measured(1, 20.0), predicted(2, 22.0, 0.4)];
        let tries = |crawls| (0..400).filter(|seed| explored(&unsure[0], &unsure, crawls, *seed).is_some()).count();
        assert_eq!((tries(0), tries(1)), (0, 0));
        assert!((5..50).contains(&tries(9)), "{}", tries(9));
    }
}
