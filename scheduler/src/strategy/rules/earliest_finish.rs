//! `earliest-finish`: chooses the agent that is predicted to end the crawl first. The prediction
//! includes the wait for a slot.
//!
//! This rule chooses for a single site. [`crate::strategy::schedule`] plans many sites together. An
//! agent with an unknown distance is treated as if it were as far as the farthest agent.

use crate::model::{AgentId, Rtt};

use super::choice::{Ranked, first};
use crate::model::FallbackCause::NoDistance;
use crate::strategy::candidate::Candidate;
use crate::strategy::load::rank::{LISTED, least};
use crate::strategy::site_facts::Site;

/// Chooses the agent where the crawl ends first. Ties go to the nearest agent.
pub(in crate::strategy) fn choose(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    let farthest = ordered.iter().filter_map(Candidate::distance).max().ok_or(NoDistance)?;
    let work = site.work.unwrap_or_default();
    let work = work.counted();
    let ends = |candidate: &Candidate| -> (u64, Rtt, AgentId) {
        let distance = candidate.distance().unwrap_or(farthest);
        let ends = candidate.waits().as_secs_f64() + work.takes_s(distance, candidate.speed);
        // Non-negative floats have the same order as their bits.
        (ends.to_bits(), distance, candidate.agent)
    };
    first(least(ordered, LISTED, |candidate| Some(ends(candidate))), NoDistance)
}
