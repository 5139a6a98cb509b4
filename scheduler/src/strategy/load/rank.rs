//! Finds the best few of many candidates without sorting all of them.

use crate::strategy::Candidate;

/// Number of candidates stored with a choice by `hash`, `domain`, `kademlia` and `earliest-finish`.
pub const LISTED: usize = 3;

/// Returns the `k` candidates of `ordered` with the lowest keys, lowest first. Candidates with
/// equal keys keep their order. Candidates without a key are skipped. For small `k`, a single
/// comparison rejects most candidates.
pub(in crate::strategy) fn least<K: Ord + Copy>(
    ordered: &[Candidate],
    k: usize,
    key: impl Fn(&Candidate) -> Option<K>,
) -> Vec<Candidate> {
    let mut least: Vec<(K, usize)> = Vec::with_capacity(k.saturating_add(1).min(ordered.len()));
    for (place, key) in ordered.iter().enumerate().filter_map(|(place, candidate)| Some((place, key(candidate)?))) {
        if least.len() == k && least.last().is_none_or(|(last, _)| *last <= key) {
            continue;
        }
        least.insert(least.partition_point(|(one, _)| *one <= key), (key, place));
        least.truncate(k);
    }
    least.into_iter().map(|(_, place)| ordered[place]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert_eq, proptest};

    use super::*;
    use crate::model::AgentId;

    proptest! {
        #[test]
        fn the_least_are_the_first_of_all_sorted(keys in prop::collection::vec(0_u32..6, 0..20), k in 0_usize..8) {
            // The key is the load. Candidates with a load of 5 have no key.
            let of = |(agent, load): (i64, &u32)| Candidate { load: *load, ..Candidate::new(AgentId::new(agent), 1) };
            let candidates: Vec<Candidate> = (1..).zip(&keys).map(of).collect();
            let mut sorted: Vec<Candidate> = candidates.iter().filter(|one| one.load < 5).copied().collect();
            sorted.sort_by_key(|one| one.load);
            sorted.truncate(k);
            prop_assert_eq!(least(&candidates, k, |one| (one.load < 5).then_some(one.load)), sorted);
        }
    }
}
