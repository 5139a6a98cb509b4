//! Lower bounds of the time of a batch: from the total work, from the site that takes longest, and
//! from the candidates of the sites. This module does no I/O.
//!
//! Work is in bytes, and rates are in bytes per second. The flow bound is the minimum time in which
//! the agents can do all work, if each site's work may be divided among the site's candidates. By
//! the max-flow min-cut theorem, this time is the maximum of a ratio over all sets of agents. The
//! ratio is the work that only agents of the set may do, divided by the sum of the set's rates.
//! With at most [`MOST_AGENTS`] agents, all sets can be enumerated, so the bound is exact.

use anyhow::ensure;

/// Maximum number of agents. Twenty agents form a million sets.
pub const MOST_AGENTS: usize = 20;

/// The work of a site, and the indices of the agents that may do it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteWork {
    pub bytes: u64,
    pub candidates: Vec<usize>,
}

/// The bounds in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Total work divided by total rate.
    pub total: f64,
    /// The maximum, over all sites, of the crawl time of the site at its fastest candidate.
    pub longest: f64,
    pub flow: f64,
}

impl Bounds {
    pub fn of(work: &[SiteWork], rates: &[f64]) -> anyhow::Result<Self> {
        ensure!(
            rates.len() <= MOST_AGENTS,
            "{} agents: the flow bound is computed for at most {MOST_AGENTS}",
            rates.len()
        );
        ensure!(rates.iter().all(|rate| *rate > 0.0), "every rate must be above 0");
        let mut only = vec![0.0; 1 << rates.len()];
        let (mut total, mut longest) = (0.0, 0.0_f64);
        for site in work {
            ensure!(!site.candidates.is_empty(), "a site has no candidate");
            ensure!(site.candidates.iter().all(|agent| *agent < rates.len()), "a candidate is not one of the agents");
            let bytes = site.bytes as f64;
            total += bytes;
            let fastest = site.candidates.iter().map(|agent| rates[*agent]).fold(0.0, f64::max);
            longest = longest.max(bytes / fastest);
            only[site.candidates.iter().fold(0_usize, |set, agent| set | 1 << agent)] += bytes;
        }
        // Sums over all subsets. Afterwards `only[set]` is the work of the sites whose candidates
        // are all in `set`.
        for agent in 0..rates.len() {
            for set in 0..only.len() {
                if set & (1 << agent) != 0 {
                    only[set] += only[set ^ (1 << agent)];
                }
            }
        }
        let rate = |set: usize| -> f64 {
            rates.iter().enumerate().filter(|(agent, _)| set & (1 << agent) != 0).map(|(_, rate)| rate).sum()
        };
        let flow = (1..only.len()).map(|set| only[set] / rate(set)).fold(0.0, f64::max);
        Ok(Self { total: total / rates.iter().sum::<f64>(), longest, flow })
    }

    /// The maximum of the three bounds. No schedule can take less time.
    pub fn least(&self) -> f64 {
        self.total.max(self.longest).max(self.flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(bytes: u64, candidates: &[usize]) -> SiteWork {
        SiteWork { bytes, candidates: candidates.to_vec() }
    }

    #[test]
    fn the_bound_is_the_total_work_or_the_longest_site() {
        let all = [work(10, &[0, 1]), work(10, &[0, 1]), work(10, &[0, 1])];
        let bounds = Bounds::of(&all, &[1.0, 2.0]).unwrap();
        assert_eq!((bounds.total, bounds.longest, bounds.flow), (10.0, 5.0, 10.0));
        let bounds = Bounds::of(&[work(10, &[0]), work(1, &[1])], &[1.0, 2.0]).unwrap();
        assert_eq!(bounds.least(), 10.0);
    }

    #[test]
    fn the_flow_bound_is_the_set_of_agents_with_too_much_work() {
        let sites = [work(40, &[0, 1]), work(20, &[0]), work(10, &[1, 2]), work(10, &[2])];
        let bounds = Bounds::of(&sites, &[1.0, 1.0, 2.0]).unwrap();
        assert_eq!(bounds.total, 20.0);
        assert_eq!(bounds.flow, 30.0, "60 that only the first two may do");
    }

    /// Computes the flow bound by augmenting paths and bisection.
    fn by_bisection(sites: &[SiteWork], rates: &[f64]) -> f64 {
        let fits = |time: f64| {
            let mut room: Vec<f64> = rates.iter().map(|rate| rate * time).collect();
            // `done[site][agent]` is the number of bytes of the site that the agent crawls.
            let mut done = vec![vec![0.0_f64; rates.len()]; sites.len()];
            for (index, site) in sites.iter().enumerate() {
                let mut left = site.bytes as f64;
                while left > 1e-9 {
                    // Breadth-first search for an agent with free capacity. The search goes from
                    // the site to its candidates, and from an agent to the candidates of all sites
                    // for which the agent works.
                    let mut from: Vec<Option<(usize, Option<usize>)>> = vec![None; rates.len()];
                    let mut queue: Vec<usize> = site.candidates.clone();
                    queue.iter().for_each(|agent| from[*agent] = Some((index, None)));
                    let mut place = 0;
                    let found = loop {
                        let Some(&agent) = queue.get(place) else { break None };
                        place += 1;
                        if room[agent] > 1e-9 {
                            break Some(agent);
                        }
                        for (other, of) in done.iter().enumerate().filter(|(_, of)| of[agent] > 1e-9) {
                            let _ = of;
                            for &next in &sites[other].candidates {
                                if from[next].is_none() {
                                    from[next] = Some((other, Some(agent)));
                                    queue.push(next);
                                }
                            }
                        }
                    };
                    let Some(end) = found else { return false };
                    let (mut amount, mut agent) = (left.min(room[end]), end);
                    while let Some((site, Some(before))) = from[agent] {
                        amount = amount.min(done[site][before]);
                        agent = before;
                    }
                    room[end] -= amount;
                    left -= amount;
                    let mut agent = end;
                    while let Some((site, before)) = from[agent] {
                        done[site][agent] += amount;
                        let Some(before) = before else { break };
                        done[site][before] -= amount;
                        agent = before;
                    }
                }
            }
            true
        };
        let (mut least, mut most) = (0.0, 1e6);
        for _ in 0..60 {
            let middle = (least + most) / 2.0;
            if fits(middle) { most = middle } else { least = middle }
        }
        most
    }

    #[test]
    fn the_flow_bound_equals_the_one_by_bisection() {
        use rand::{RngExt, SeedableRng};
        let mut rng = rand::rngs::ChaCha8Rng::seed_from_u64(4);
        for _ in 0..40 {
            let agents = rng.random_range(1..6_usize);
            let rates: Vec<f64> = (0..agents).map(|_| rng.random_range(0.5..4.0)).collect();
            let sites: Vec<SiteWork> = (0..rng.random_range(1..12))
                .map(|_| {
                    let first = rng.random_range(0..agents);
                    let mut candidates: Vec<usize> =
                        (0..agents).filter(|_| rng.random_bool(0.4)).chain([first]).collect();
                    candidates.sort_unstable();
                    candidates.dedup();
                    work(rng.random_range(1..100), &candidates)
                })
                .collect();
            let (exact, found) = (Bounds::of(&sites, &rates).unwrap().flow, by_bisection(&sites, &rates));
            assert!((exact - found).abs() < 1e-4 * exact, "{exact} and {found}: {sites:?} {rates:?}");
        }
    }
}
