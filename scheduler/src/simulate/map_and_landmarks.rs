//! The map of one draw, in any tier: elects the landmarks by the scheduler's method or by other
//! methods for comparison, fits maps and locates sites as the scheduler does.

use std::cmp::Ordering;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use crate::gnp;
use crate::gnp::{
    ElectError, Embedding, FEWEST_LANDMARKS, FitError, Mesh, Refined, SitePlace, Tier, elect, elect_held_out,
};
use crate::model::{AgentId, EmbeddingEpoch, Rtt};

use super::{Draw, Election, Settings};

/// A landmark is used in a fit only if it has a measured distance to at least this many other
/// landmarks, as in the scheduler.
const FEWEST_PARTNERS: usize = 2;

#[derive(Debug)]
pub(super) enum Map {
    /// One point per host.
    Plain(Embedding),
    /// A cloud of points per site.
    Refined(Refined),
}

impl Map {
    /// Fits a map to the landmarks with enough distances. As in a real scheduler, there is no map
    /// (`None`) if there are too few of these landmarks, or if the mesh does not connect them.
    pub(super) fn fit(
        mesh: &Mesh,
        landmarks: &[AgentId],
        settings: &Settings,
        seed: u64,
    ) -> Result<Option<Self>, FitError> {
        let landmarks = fittable(mesh, landmarks);
        if landmarks.len() < FEWEST_LANDMARKS {
            return Ok(None);
        }
        match Self::fit_all(mesh, &landmarks, settings, seed) {
            Err(FitError::UnmeasuredLandmark { .. } | FitError::Disconnected { .. }) => Ok(None),
            fitted => fitted.map(Some),
        }
    }

    fn fit_all(mesh: &Mesh, landmarks: &[AgentId], settings: &Settings, seed: u64) -> Result<Self, FitError> {
        match settings.tier {
            Tier::Gnp | Tier::Plain => {
                let (epoch, switches) = (EmbeddingEpoch::new(1), settings.plain_switches());
                let dimensions = settings.dimensions().min(landmarks.len() - 1);
                gnp::fit_with(switches, None, epoch, mesh, landmarks, dimensions, seed).map(Self::Plain)
            }
            Tier::Refined => Refined::new(mesh, landmarks, &settings.refined_switches(), seed).map(Self::Refined),
        }
    }

    /// Locates a site from measurements. Returns `None` if fewer than [`FEWEST_LANDMARKS`] agents
    /// of the map measured the site, as in the scheduler.
    pub(super) fn locate(&self, measured: &[(AgentId, Rtt)]) -> Option<SitePlace<'_>> {
        let maps = |agent: AgentId| match self {
            Self::Plain(embedding) => embedding.placement(agent).is_some(),
            Self::Refined(map) => map.agents().contains(&agent),
        };
        if measured.iter().filter(|(agent, _)| maps(*agent)).count() < FEWEST_LANDMARKS {
            return None;
        }
        match self {
            Self::Plain(embedding) => Some(SitePlace::Point(embedding, embedding.locate(measured).ok()?)),
            Self::Refined(map) => Some(SitePlace::Cloud(map.locate(measured).ok()?)),
        }
    }
}

/// The landmarks with a measured distance to at least [`FEWEST_PARTNERS`] other landmarks.
fn fittable(mesh: &Mesh, landmarks: &[AgentId]) -> Vec<AgentId> {
    let partners = |agent: AgentId| landmarks.iter().filter(|&&other| mesh.distance(agent, other).is_some()).count();
    landmarks.iter().copied().filter(|&agent| partners(agent) >= FEWEST_PARTNERS).collect()
}

/// Minimum number of other agents that must have measured a landmark. If there are fewer other
/// agents, all of them must have measured it.
const REACHED_BY: usize = 2;

pub(super) fn landmarks(
    draw: &Draw<'_>,
    mesh: &Mesh,
    election: Election,
    count: usize,
    seed: u64,
) -> Result<Vec<AgentId>, ElectError> {
    let own = match election {
        Election::Improved => Some(elect_held_out(mesh, &draw.nominees(), count, seed)?),
        Election::KMedoids => Some(elect(mesh, &draw.nominees(), count, seed)?),
        Election::Random | Election::Farthest => None,
    };
    if let Some(elected) = own {
        return Ok(elected.into_iter().map(|elected| elected.agent).collect());
    }
    let there = draw.agents();
    let mut eligible: Vec<AgentId> = (0..there).map(|agent| draw.agent_id(agent)).collect();
    eligible.retain(|&agent| mesh.reached_by(agent) >= REACHED_BY.min(there - 1));
    if eligible.len() < count {
        return Err(ElectError::TooFewReached { asked: count, reached: eligible.len(), there });
    }
    eligible.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    if election == Election::Random {
        eligible.truncate(count);
        return Ok(eligible);
    }
    Ok(farthest(mesh, eligible, count))
}

/// Chooses first the agent with the greatest distance to any other agent, then repeatedly the agent
/// with the greatest distance to its nearest chosen agent. Unmeasured distances are ignored. An
/// agent without a measured distance counts as near.
fn farthest(mesh: &Mesh, mut left: Vec<AgentId>, count: usize) -> Vec<AgentId> {
    let millis = |a: AgentId, b: AgentId| mesh.distance(a, b).map(Rtt::as_millis_f64);
    let all = left.clone();
    let mut chosen: Vec<AgentId> = Vec::with_capacity(count);
    while chosen.len() < count {
        let reach = |&agent: &AgentId| {
            let known =
                |others: &[AgentId]| others.iter().filter_map(|&other| millis(agent, other)).collect::<Vec<f64>>();
            if chosen.is_empty() {
                known(&all).into_iter().max_by(f64::total_cmp).unwrap_or(0.0)
            } else {
                known(&chosen).into_iter().min_by(f64::total_cmp).unwrap_or(0.0)
            }
        };
        let order = |a: &(usize, f64), b: &(usize, f64)| -> Ordering { a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)) };
        let Some((place, _)) = left.iter().map(reach).enumerate().max_by(order) else { break };
        chosen.push(left.remove(place));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::simulate::Matrix;

    use super::*;

    /// Six nodes on a line.
    fn matrix() -> Matrix {
        let places = [0_i32, 1, 2, 50, 51, 100];
        Matrix::of(places.len(), |a, b| Some(f64::from(10 * (places[a] - places[b]).abs())))
    }

    #[test]
    fn the_farthest_are_the_ends_and_the_middle() {
        let matrix = matrix();
        for seed in 0..6 {
            // The seed decides which node becomes the site.
            let draw = Draw::new(&matrix, 5, seed).unwrap();
            let elected = landmarks(&draw, &draw.mesh(), Election::Farthest, 3, seed).unwrap();
            let nodes: BTreeSet<usize> =
                elected.iter().map(|&id| draw.agent_node(draw.agent_of(id).unwrap())).collect();
            let site = draw.site_node(0);
            assert_eq!(nodes.contains(&0), site != 0, "{nodes:?} without {site}");
            assert_eq!(nodes.contains(&5), site != 5, "{nodes:?} without {site}");
        }
    }

    #[test]
    fn a_drawn_election_is_of_the_seed_and_of_the_size_asked() {
        let matrix = matrix();
        let draw = Draw::new(&matrix, 5, 1).unwrap();
        let mesh = draw.mesh();
        let drawn = |seed| landmarks(&draw, &mesh, Election::Random, 3, seed).unwrap();
        assert_eq!(drawn(4), drawn(4));
        assert!((0..20).any(|seed| drawn(seed) != drawn(4)));
        let different: BTreeSet<AgentId> = drawn(4).into_iter().collect();
        assert_eq!(different.len(), 3);
    }
}
