//! Penalises several landmarks in one city or on one carrier while another has none.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::stats::count;

/// The penalty for a second landmark in the same city and on the same carrier, as a share of the
/// mean distance between agents.
pub(super) const SAME_PAIR: f64 = 0.1;
/// The penalty for a city or carrier without a landmark while another city or carrier has two, as a
/// share of the mean distance between agents.
pub(super) const MISSING: f64 = 0.05;

/// The nominees grouped by city, by carrier, and by city and carrier together.
pub(super) struct CityAndCarrier([NomineeKinds; 3]);

impl CityAndCarrier {
    /// `nominees` contains the city and the carrier of each nominee.
    pub(super) fn new(nominees: &[(&str, &str)], eligible: &[usize]) -> Self {
        let cities: Vec<&str> = nominees.iter().map(|(city, _)| *city).collect();
        let carriers: Vec<&str> = nominees.iter().map(|(_, carrier)| *carrier).collect();
        Self([
            NomineeKinds::new(&cities, eligible),
            NomineeKinds::new(&carriers, eligible),
            NomineeKinds::new(nominees, eligible),
        ])
    }

    /// The penalties for the agents `chosen`, as a share of the mean distance between agents.
    pub(super) fn penalty(&self, chosen: &[usize]) -> f64 {
        let [cities, carriers, pairs] = &self.0;
        // Number of chosen agents that share both city and carrier with an earlier chosen agent.
        let repeated = count(chosen.len() - pairs.among(chosen));
        let missing = |kinds: &NomineeKinds| count(kinds.all.min(chosen.len()).saturating_sub(kinds.among(chosen)));
        SAME_PAIR * repeated + MISSING * (missing(carriers) + missing(cities))
    }
}

/// A grouping of the nominees by one property, such as the city.
struct NomineeKinds {
    of: Vec<usize>,
    /// Number of groups with an eligible nominee.
    all: usize,
}

impl NomineeKinds {
    fn new<K: Ord>(nominees: &[K], eligible: &[usize]) -> Self {
        let mut numbers: BTreeMap<&K, usize> = BTreeMap::new();
        let mut number = |kind| {
            let next = numbers.len();
            *numbers.entry(kind).or_insert(next)
        };
        let of: Vec<usize> = nominees.iter().map(&mut number).collect();
        let all = eligible.iter().map(|&i| of[i]).collect::<BTreeSet<usize>>().len();
        Self { of, all }
    }

    /// The number of groups to which the chosen nominees belong. Comparing all pairs of chosen
    /// nominees is fastest, because few nominees are chosen.
    fn among(&self, chosen: &[usize]) -> usize {
        let is_first =
            |(place, one): &(usize, &usize)| chosen[..*place].iter().all(|other| self.of[*other] != self.of[**one]);
        chosen.iter().enumerate().filter(is_first).count()
    }
}
