//! `earliest-finish`: the agent predicted to end the crawl first: the wait for a slot plus the
//! crawl.
//!
//! For a single site; [`crate::strategy::schedule`] plans many at once. An agent with an unknown
//! distance counts as the farthest known one: it might be nearer, but there is no evidence.

use crate::model::{AgentId, Rtt};

use crate::model::FallbackCause::NoDistance;
use crate::strategy::load::rank::{LISTED, least};
use crate::strategy::{Candidate, Ranked, Site, first};

/// Chooses the agent that ends first; of ties the nearer one.
pub(in crate::strategy) fn choose(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    let farthest = ordered.iter().filter_map(Candidate::distance).max().ok_or(NoDistance)?;
    let work = site.work.unwrap_or_default();
    let work = work.counted();
    let ends = |candidate: &Candidate| -> (u64, Rtt, AgentId) {
        let distance = candidate.distance().unwrap_or(farthest);
        let ends = candidate.waits().as_secs_f64() + work.takes_s(distance, candidate.speed);
        // Non-negative floats sort like their bits.
        (ends.to_bits(), distance, candidate.agent)
    };
    first(least(ordered, LISTED, |candidate| Some(ends(candidate))), NoDistance)
}
