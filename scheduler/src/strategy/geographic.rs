//! `geographic`: the agent nearest on the globe (the paper 1, "by geographic position"). Those that are as near within
//! [`SAME_PLACE_KM`] are drawn from, those with room before others.

use rand_chacha::ChaCha8Rng;

use crate::gnp::Direction;

use super::load::draw;
use super::{Candidate, Ranked, Site, Unknown};

/// Positions are those of cities: within one, nobody is nearer.
const SAME_PLACE_KM: f64 = 25.0;

const NO_POSITION: Unknown = Unknown("the site's position is not known");
const NO_AGENTS_POSITION: Unknown = Unknown("no agent's position is known");

/// Chooses by the site's position.
pub(super) fn choose(site: &Site<'_>, ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Ranked {
    let site = Direction::from(site.position.ok_or(NO_POSITION)?);
    let cosine = |candidate: &Candidate| candidate.home.direction.map(|direction| direction.cosine(site));
    let nearest = ordered.iter().filter_map(cosine).max_by(f64::total_cmp).ok_or(NO_AGENTS_POSITION)?;
    let least = Direction::widened(nearest, SAME_PLACE_KM);
    let there = |candidate: &&Candidate| cosine(candidate).is_some_and(|cosine| cosine >= least);
    let ranked: Vec<Candidate> = ordered.iter().filter(there).copied().collect();
    let drawn = draw(&ranked, rng).ok_or(NO_AGENTS_POSITION)?.agent;
    Ok((drawn, ranked))
}
