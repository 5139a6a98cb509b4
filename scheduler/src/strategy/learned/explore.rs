//! Exploration: a site is crawled by another agent than the best known where trying that is worth more than it costs.
//!
//! Whoever is tried once is known from then on. What trying an agent may gain is the expected improvement of its lognormal prediction on the
//! best known round trip (Jones, Schonlau and Welch, "Efficient global optimization of expensive black-box functions", 1998, equation 15), in
//! each of the next [`HORIZON`] crawls; what it costs is how much farther it is expected to be, once. Of those for whom the gain is greater
//! the best is tried, now and then ([`one_in`]). Drawn by the choice's own seed.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::strategy::Candidate;

/// Crawls for which an agent that proves nearer is of use.
const HORIZON: f64 = 5.0;
/// One choice in so many may explore once a site was crawled so often; `None`: none. The first crawl may be the only one, and the second
/// reaps what the first taught. After that much is still open and what is found is of use for long; later what was found stands, and a
/// little is tried so that a better way does not stay unknown.
const fn one_in(crawls: usize) -> Option<u32> {
    match crawls {
        0 | 1 => None,
        2 | 3 => Some(2),
        _ => Some(20),
    }
}

/// Spreads below count as this.
const LEAST_SPREAD: f64 = 0.01;
/// Exploring draws from a stream of its own: a strategy's own draw must not tell who explores.
const STREAM: u64 = 1;

/// Who is tried in place of `chosen`, the best of `candidates` for a site that was crawled so often; `None` where this choice does not explore, or nobody is worth it.
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
    // What is only predicted of the chosen one is learned by crawling there.
    let best = chosen.measured?.as_millis_f64();
    candidates
        .iter()
        .filter(|one| one.agent != chosen.agent && one.measured.is_none() && one.level().has_room())
        .filter_map(|one| Some((worth(one, best)?, one)))
        .filter(|(worth, _)| *worth > 0.0)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, one)| one)
}

/// What trying an agent gains over [`HORIZON`] crawls, less what it costs, milliseconds.
fn worth(one: &Candidate, best: f64) -> Option<f64> {
    let mean = one.distance()?.as_millis_f64();
    let spread = one.doubt.or(one.spread)?.ratio().max(LEAST_SPREAD);
    let z = (best.ln() - mean.ln()) / spread + spread / 2.0;
    let improvement = (best * normal(z) - mean * normal(z - spread)).max(0.0);
    Some(HORIZON * improvement - (mean - best).max(0.0))
}

/// The normal distribution, to a hundredth: the logistic one of the same shape.
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
