//! Improves a plan: moves a site to another slot (jump), or swaps two sites, if this lowers the
//! cost. The cost is the sum of the fourth powers of the times at which the slots' last crawls end
//! (Schuurman and Vredeveld, "Performance guarantees of local search for multiprocessor
//! scheduling", 2007).
//!
//! This search is needed, because the first plan places one site after another and never moves a
//! site again.

use std::time::Duration;

use super::cost::{affordable, fourth_power};

/// Maximum number of moves and swaps tried, to limit the time of planning. For thirty agents and
/// two hundred sites, the search ends before this limit. For a thousand agents and five hundred
/// sites, the limit ends the search before it has tried all sites.
const MOST_LOOKS: usize = 150_000;
/// Minimum gain, as a share of the affected slots' cost. Smaller gains may be rounding errors.
const LEAST_GAIN: f64 = 1e-9;

/// The assignment of sites to slots.
pub(super) struct SlotAssignment<'a> {
    /// For each site, the time of its crawl at each agent; `None` if the agent may not get the
    /// site.
    pub(super) takes: &'a [&'a [Option<Duration>]],
    /// The agent and slot of each site; `None` if no agent may get the site.
    pub(super) of: Vec<Option<(usize, usize)>>,
    /// The time at which the last crawl of each slot of each agent ends, in seconds from now.
    pub(super) ends: Vec<Vec<f64>>,
    looks: usize,
}

impl<'a> SlotAssignment<'a> {
    pub(super) const fn new(
        takes: &'a [&'a [Option<Duration>]],
        of: Vec<Option<(usize, usize)>>,
        ends: Vec<Vec<f64>>,
    ) -> Self {
        Self { takes, of, ends, looks: 0 }
    }

    /// Moves and swaps sites until no move and no swap lowers the cost. The sites are tried
    /// repeatedly, in the given order.
    pub(super) fn better(&mut self, order: &[usize]) {
        let mut changed = true;
        while changed {
            changed = false;
            for (turn, &site) in order.iter().enumerate() {
                changed |= self.jump(site);
                changed |= self.swap(site, order.get(turn + 1..).unwrap_or_default());
                if self.looks > MOST_LOOKS {
                    return;
                }
            }
        }
    }

    /// The time of a site's crawl at an agent, in seconds.
    fn takes(&self, site: usize, agent: usize) -> Option<f64> {
        self.takes[site][agent].map(|takes| takes.as_secs_f64())
    }

    /// Moves a site to the slot where it costs least, if this lowers the total cost.
    fn jump(&mut self, site: usize) -> bool {
        let Some((agent, slot)) = self.of[site] else { return false };
        let Some(takes) = self.takes(site, agent) else { return false };
        let end = self.ends[agent][slot];
        let saved = fourth_power(end) - fourth_power(end - takes);
        self.looks += self.ends.len();
        let mut best = (saved - LEAST_GAIN * fourth_power(end), None);
        let mut longest = affordable(best.0);
        for (other, (takes, ends)) in self.takes[site].iter().zip(&self.ends).enumerate() {
            let Some(takes) = takes.filter(|takes| *takes <= longest) else { continue };
            // Of an agent's slots, the slot that is free first gives the lowest cost.
            let Some((first, begins)) = first_of(ends).filter(|(first, _)| (other, *first) != (agent, slot)) else {
                continue;
            };
            let takes = takes.as_secs_f64();
            let cost = fourth_power(begins + takes) - fourth_power(begins);
            if cost < best.0 {
                best = (cost, Some((other, first, takes)));
                longest = affordable(cost);
            }
        }
        let (_, Some((other, first, would))) = best else { return false };
        self.ends[agent][slot] -= takes;
        self.ends[other][first] += would;
        self.of[site] = Some((other, first));
        true
    }

    /// Swaps a site with the first of `others` for which this lowers the total cost.
    fn swap(&mut self, site: usize, others: &[usize]) -> bool {
        let Some((agent, slot)) = self.of[site] else { return false };
        let Some(takes) = self.takes(site, agent) else { return false };
        let end = self.ends[agent][slot];
        for &other in others {
            self.looks += 1;
            let Some((its_agent, its_slot)) = self.of[other].filter(|(its, _)| *its != agent) else { continue };
            let (Some(its), Some(here), Some(there)) =
                (self.takes(other, its_agent), self.takes(other, agent), self.takes(site, its_agent))
            else {
                continue;
            };
            let its_end = self.ends[its_agent][its_slot];
            let (ends, its_ends) = (end - takes + here, its_end - its + there);
            let before = fourth_power(end) + fourth_power(its_end);
            if fourth_power(ends) + fourth_power(its_ends) < before * (1.0 - LEAST_GAIN) {
                self.ends[agent][slot] = ends;
                self.ends[its_agent][its_slot] = its_ends;
                self.of[site] = Some((its_agent, its_slot));
                self.of[other] = Some((agent, slot));
                return true;
            }
        }
        false
    }
}

/// The index of the slot that is free first, and the time until this slot is free, in seconds.
fn first_of(ends: &[f64]) -> Option<(usize, f64)> {
    ends.iter().copied().enumerate().min_by(|one, other| one.1.total_cmp(&other.1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, proptest};

    use super::*;

    fn ms(millis: u64) -> Option<Duration> {
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    fn cost(places: &SlotAssignment<'_>) -> f64 {
        places.ends.iter().flatten().copied().map(fourth_power).sum()
    }

    #[test]
    fn sites_that_suit_each_others_agents_change_places() {
        let takes = [[ms(100), ms(40)], [ms(40), ms(100)]];
        let takes: Vec<&[Option<Duration>]> = takes.iter().map(|takes| &takes[..]).collect();
        let mut places = SlotAssignment::new(&takes, vec![Some((0, 0)), Some((1, 0))], vec![vec![0.1], vec![0.1]]);
        places.better(&[0, 1]);
        assert_eq!(places.of, [Some((1, 0)), Some((0, 0))]);
        // A site that no agent may get stays unplaced. A site that only one agent may get stays at
        // that agent.
        let takes = [[ms(100), None], [ms(40), ms(100)], [None, None]];
        let takes: Vec<&[Option<Duration>]> = takes.iter().map(|takes| &takes[..]).collect();
        let mut places =
            SlotAssignment::new(&takes, vec![Some((0, 0)), Some((1, 0)), None], vec![vec![0.1], vec![0.1]]);
        places.better(&[0, 1, 2]);
        assert_eq!(places.of, [Some((0, 0)), Some((1, 0)), None]);
    }

    #[test]
    fn a_site_moves_to_a_slot_that_ends_sooner() {
        let takes = [[ms(50), ms(60)], [ms(50), ms(60)]];
        let takes: Vec<&[Option<Duration>]> = takes.iter().map(|takes| &takes[..]).collect();
        let mut places = SlotAssignment::new(&takes, vec![Some((0, 0)), Some((0, 0))], vec![vec![0.1], vec![0.0]]);
        places.better(&[0, 1]);
        assert_eq!(places.of, [Some((1, 0)), Some((0, 0))]);
        // Sites also move to another slot of the same agent.
        let mut places = SlotAssignment::new(&takes, vec![Some((0, 0)), Some((0, 0))], vec![vec![0.1, 0.0], vec![]]);
        places.better(&[0, 1]);
        assert_eq!(places.of, [Some((0, 1)), Some((0, 0))]);
    }

    proptest! {
        #[test]
        fn it_never_costs_more_and_the_ends_are_those_of_the_places(
            takes in prop::collection::vec(prop::collection::vec(0_u64..100, 3), 0..30),
            frees in prop::collection::vec(prop::collection::vec(0_u64..200, 1..4), 3),
        ) {
            let takes: Vec<Vec<Option<Duration>>> =
                takes.into_iter().map(|takes| takes.into_iter().map(ms).collect()).collect();
            let takes: Vec<&[Option<Duration>]> = takes.iter().map(Vec::as_slice).collect();
            let free: Vec<Vec<f64>> =
                frees.iter().map(|slots| slots.iter().map(|millis| *millis as f64 / 1e3).collect()).collect();
            let ends_of = |of: &[Option<(usize, usize)>]| {
                let mut ends = free.clone();
                for (site, place) in of.iter().enumerate() {
                    if let Some((agent, slot)) = *place {
                        ends[agent][slot] += takes[site][agent].unwrap().as_secs_f64();
                    }
                }
                ends
            };
            // Each site begins in the first slot of the first agent that may get it.
            let of: Vec<Option<(usize, usize)>> =
                takes.iter().map(|takes| takes.iter().position(Option::is_some).map(|agent| (agent, 0))).collect();
            let mut places = SlotAssignment::new(&takes, of.clone(), ends_of(&of));
            let before = cost(&places);
            places.better(&(0..takes.len()).collect::<Vec<_>>());
            prop_assert!(cost(&places) <= before * (1.0 + 1e-6));
            prop_assert!(of.iter().zip(&places.of).all(|(was, is)| was.is_some() == is.is_some()));
            let told = ends_of(&places.of);
            prop_assert!(told.iter().flatten().zip(places.ends.iter().flatten()).all(|(one, other)| (one - other).abs() < 1e-6));
        }
    }
}
