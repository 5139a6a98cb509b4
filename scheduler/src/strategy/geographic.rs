//! `geographic`: the agent nearest on the globe (the paper 1, "by geographic position"). Those that are as near within
//! [`SAME_PLACE_KM`] are drawn from, those with room before others.

use rand_chacha::ChaCha8Rng;

use crate::gnp::Direction;

use super::load::draw;
use super::{Candidate, Ranked, Site};
use crate::model::FallbackCause::{NoAgentPosition, NoPosition};

/// Positions are those of cities: within one, nobody is nearer.
const SAME_PLACE_KM: f64 = 25.0;

/// Chooses by the site's position.
pub(super) fn choose(site: &Site<'_>, ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Ranked {
    let site = Direction::from(site.position.ok_or(NoPosition)?);
    let cosine = |candidate: &Candidate| candidate.home.direction.map(|direction| direction.cosine(site));
    let nearest = ordered.iter().filter_map(cosine).max_by(f64::total_cmp).ok_or(NoAgentPosition)?;
    let least = Direction::widened(nearest, SAME_PLACE_KM);
    let there = |candidate: &&Candidate| cosine(candidate).is_some_and(|cosine| cosine >= least);
    let ranked: Vec<Candidate> = ordered.iter().filter(there).copied().collect();
    let drawn = draw(&ranked, rng).ok_or(NoAgentPosition)?.agent;
    Ok((drawn, ranked))
}
