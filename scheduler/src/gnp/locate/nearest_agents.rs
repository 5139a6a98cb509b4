//! Finds the nearest agents of many sites, by computing the distance from every agent to every
//! site. A search tree would save little with eight dimensions and at most a few thousand agents.
//!
//! Four agents are processed at a time, and square roots are computed only if one of the four may
//! be among the nearest. The search is single-threaded, so callers split the sites among threads.

use crate::gnp::mesh_and_distance::round_trip;
use crate::model::{AgentId, Rtt};

use super::host_cost::{Anchorage, LANES, Point, squares};

/// Number of agents found for each site.
const NEAREST: usize = 3;

/// The agents nearest to one site. The type is small (40 bytes), because there is one per site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nearest {
    agents: [AgentId; NEAREST],
    /// The predicted round trips in milliseconds. Single precision suffices, because no map is more
    /// precise than seven digits.
    millis: [f32; NEAREST],
    /// Number of agents found; fewer than three if the embedding has fewer agents.
    count: u8,
}

impl Nearest {
    /// The agents and their predicted round trips, nearest first.
    pub fn iter(&self) -> impl Iterator<Item = (AgentId, Rtt)> + '_ {
        let trips = self.millis.iter().map(|&millis| round_trip(f64::from(millis)));
        self.agents.iter().copied().zip(trips).take(usize::from(self.count))
    }
}

/// The number of components is not a multiple of the length of one coordinate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{there} components are no whole number of coordinates of {each}")]
pub struct RaggedCoordinates {
    pub(super) there: usize,
    /// Number of components of one coordinate.
    pub(super) each: usize,
}

impl<const N: usize> Anchorage<N> {
    /// Returns the agents nearest to a coordinate; none if the coordinate is not finite. `agents`
    /// are the agents' identifiers, in the order of the coordinates in `self.blocks`.
    pub(super) fn nearest_three(&self, coordinate: &[f64], agents: &[AgentId]) -> Nearest {
        let mut nearest = Nearest { agents: [AgentId::new(0); NEAREST], millis: [0.0; NEAREST], count: 0 };
        let site = self.widen(coordinate);
        for ((millis, number), (slot, id)) in
            self.search(&site).into_iter().zip(nearest.millis.iter_mut().zip(&mut nearest.agents))
        {
            if let Some(agent) = agents.get(number).filter(|_| millis.is_finite()) {
                *slot = single(millis + site[N - 1]);
                *id = *agent;
                nearest.count += 1;
            }
        }
        nearest
    }

    /// The smallest distances in milliseconds, without the site's height, each with the index of
    /// the agent. If there are fewer than three agents, the missing distances are infinite.
    fn search(&self, site: &Point<N>) -> [(f64, usize); NEAREST] {
        let mut best = [(f64::INFINITY, usize::MAX); NEAREST];
        for (index, block) in self.blocks.iter().enumerate() {
            let squares = squares(site, block);
            let heights = &block[N - 1];
            let mut nearer = [false; LANES];
            for lane in 0..LANES {
                let room = best[NEAREST - 1].0 - heights[lane];
                nearer[lane] = room > 0.0 && squares[lane] < room * room;
            }
            if nearer == [false; LANES] {
                continue;
            }
            for lane in 0..LANES {
                let millis = squares[lane].sqrt() + heights[lane];
                if millis < best[NEAREST - 1].0 {
                    best[NEAREST - 1] = (millis, index * LANES + lane);
                    for place in (1..NEAREST).rev() {
                        if best[place].0 < best[place - 1].0 {
                            best.swap(place, place - 1);
                        }
                    }
                }
            }
        }
        best
    }
}

#[expect(clippy::cast_possible_truncation, reason = "only digits beyond the seventh are lost")]
fn single(millis: f64) -> f32 {
    millis as f32
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use crate::gnp::{Embedding, Placement};
    use crate::model::EmbeddingEpoch;

    use super::*;

    const EPOCH: EmbeddingEpoch = EmbeddingEpoch::new(3);

    fn drawn(dimensions: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let mut coordinate: Vec<f64> = (0..dimensions).map(|_| rng.random_range(0.0..200.0)).collect();
        coordinate.push(rng.random_range(0.0..30.0));
        coordinate
    }

    fn map(agents: i64, dimensions: usize, rng: &mut ChaCha8Rng) -> Embedding {
        let agents = (1..=agents)
            .map(|i| {
                let coordinate = drawn(dimensions, rng);
                (AgentId::new(i), Placement { epoch: EPOCH, coordinate, fit_error: 0.0 })
            })
            .collect();
        Embedding::from_parts(EPOCH, dimensions, vec![AgentId::new(1)], agents, 0.0).unwrap()
    }

    #[test]
    fn the_three_nearest_are_those_that_predict_says() {
        for (agents, dimensions) in [(1, 2), (3, 1), (57, 8), (200, 11)] {
            let mut rng = ChaCha8Rng::seed_from_u64(7);
            let map = map(agents, dimensions, &mut rng);
            let sites: Vec<Vec<f64>> = (0..50).map(|_| drawn(dimensions, &mut rng)).collect();
            let found = map.locator().unwrap().nearest(&sites.concat()).unwrap();
            for (site, nearest) in sites.into_iter().zip(found) {
                let site = Placement { epoch: EPOCH, coordinate: site, fit_error: 0.0 };
                let mut all: Vec<(Rtt, AgentId)> =
                    map.agents().iter().map(|(&id, agent)| (map.predict(&site, agent).unwrap(), id)).collect();
                all.sort_unstable();
                all.truncate(NEAREST);
                let ids: Vec<AgentId> = nearest.iter().map(|(id, _)| id).collect();
                assert_eq!(ids, all.iter().map(|&(_, id)| id).collect::<Vec<_>>());
                for ((_, found), (predicted, _)) in nearest.iter().zip(all) {
                    assert!((found.as_millis_f64() - predicted.as_millis_f64()).abs() < 1e-2);
                }
            }
        }
    }

    #[test]
    fn ragged_coordinates_are_refused_and_one_that_is_no_place_has_nobody_near() {
        let map = map(5, 2, &mut ChaCha8Rng::seed_from_u64(1));
        let locator = map.locator().unwrap();
        let refusal = locator.nearest(&[1.0; 7]).unwrap_err().to_string();
        assert_eq!(refusal, "7 components are no whole number of coordinates of 3");
        assert_eq!(locator.nearest(&[f64::NAN, 1.0, 1.0]).unwrap()[0].iter().count(), 0);
        assert_eq!(locator.nearest(&[]).unwrap().len(), 0);
    }

    #[test]
    fn a_site_costs_at_most_64_bytes_beside_its_coordinate() {
        assert!(size_of::<Nearest>() <= 64);
    }
}
