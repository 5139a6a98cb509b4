//! Ranking: the few best of many candidates, without sorting all of them.

use super::Candidate;

/// Candidates that are listed beside the chosen one where a strategy has an order of its own: the paper's three.
pub(super) const LISTED: usize = 3;

/// The `k` of `ordered` whose key is least, least first; equals in the order they came in. Those without a key are left out.
pub(super) fn least<K: Ord + Copy>(
    ordered: &[Candidate],
    k: usize,
    key: impl Fn(&Candidate) -> Option<K>,
) -> Vec<Candidate> {
    let keyed = ordered.iter().enumerate().filter_map(|(place, candidate)| Some((key(candidate)?, place)));
    let mut keyed: Vec<(K, usize)> = keyed.collect();
    if k == 0 {
        return Vec::new();
    }
    if keyed.len() > k {
        keyed.select_nth_unstable(k - 1);
        keyed.truncate(k);
    }
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, place)| ordered[place]).collect()
}
