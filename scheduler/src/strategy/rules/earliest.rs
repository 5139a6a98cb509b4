//! `earliest-finish`: the agent that is predicted to end the crawl first: when it has a slot, and how long the crawl takes from there.
//!
//! For one site by itself; [`crate::strategy::schedule`] plans many at once. An agent whose distance is not known counts as being as
//! far as the farthest that is: it might be nearer, but nothing says so.

use crate::model::{AgentId, Rtt};

use crate::model::FallbackCause::NoDistance;
use crate::strategy::load::rank::{LISTED, least};
use crate::strategy::{Candidate, Ranked, Site, first};

/// Chooses who ends first; of equals the nearer one.
pub(in crate::strategy) fn choose(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    let farthest = ordered.iter().filter_map(Candidate::distance).max().ok_or(NoDistance)?;
    let work = site.work.unwrap_or_default();
    let work = work.counted();
    let ends = |candidate: &Candidate| -> (u64, Rtt, AgentId) {
        let distance = candidate.distance().unwrap_or(farthest);
        let ends = candidate.waits().as_secs_f64() + work.takes_s(distance, candidate.speed);
        // Numbers that are not negative are ordered as their bits.
        (ends.to_bits(), distance, candidate.agent)
    };
    first(least(ordered, LISTED, |candidate| Some(ends(candidate))), NoDistance)
}
