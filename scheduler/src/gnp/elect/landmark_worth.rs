//! Describes how useful a set of landmarks is. The set may be elected or chosen by an operator.
//!
//! The worth of a landmark is how much farther the nearest landmark would be without it, on average
//! over all agents. The worth is the change in the cost that the election minimises, without the
//! penalties for cities and carriers.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::{AgentId, Rtt};

use crate::gnp::{Mesh, Nominee};

const REACHES_MS: [u64; 6] = [5, 10, 20, 50, 100, 200];

#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Number of agents that are not landmarks.
    pub others: usize,
    /// For each distance of `REACHES_MS`, the number of non-landmark agents with a landmark within
    /// this distance.
    pub coverage: Vec<Coverage>,
    /// Median of the non-landmark agents' distances to the nearest landmark; `None` if no such
    /// distance was measured.
    pub median: Option<Rtt>,
    /// The agent that is farthest from its nearest landmark, and the distance between them.
    pub farthest: Option<(AgentId, Rtt)>,
    /// Non-landmark agents without a measured distance to any landmark.
    pub uncovered: Vec<AgentId>,
    pub cities: Diversity,
    pub carriers: Diversity,
    /// The worth of each landmark, in the order of the argument `landmarks`.
    pub landmarks: Vec<LandmarkWorth>,
}

/// The number of non-landmark agents with a landmark within the distance `within`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    pub within: Duration,
    pub agents: usize,
}

/// The fleet's cities or carriers with and without a landmark, except unknown ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diversity {
    pub with: Vec<String>,
    pub without: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LandmarkWorth {
    pub landmark: AgentId,
    /// Number of other agents for which this landmark is the nearest.
    pub nearest_to: usize,
    /// The worth: how much farther the nearest landmark would be without this landmark, on average
    /// over all agents with a measured distance to another landmark.
    pub adds: Duration,
}

pub fn explain_election(mesh: &Mesh, fleet: &[Nominee], landmarks: &[AgentId]) -> Explanation {
    let others: Vec<AgentId> =
        fleet.iter().map(|nominee| nominee.agent).filter(|agent| !landmarks.contains(agent)).collect();
    let mut nearest: Vec<(Rtt, AgentId)> = Vec::new();
    let mut uncovered = Vec::new();
    for &agent in &others {
        match nearest_of(mesh, agent, landmarks, None) {
            Some((rtt, _)) => nearest.push((rtt, agent)),
            None => uncovered.push(agent),
        }
    }
    nearest.sort_unstable();
    let within = |reach: &u64| {
        let within = Duration::from_millis(*reach);
        Coverage { within, agents: nearest.iter().filter(|(rtt, _)| rtt.as_duration() <= within).count() }
    };
    Explanation {
        others: others.len(),
        coverage: REACHES_MS.iter().map(within).collect(),
        median: nearest.get(nearest.len() / 2).map(|(rtt, _)| *rtt),
        farthest: nearest.last().map(|&(rtt, agent)| (agent, rtt)),
        uncovered,
        cities: diversity(fleet, landmarks, |nominee| &nominee.city),
        carriers: diversity(fleet, landmarks, |nominee| &nominee.carrier),
        landmarks: landmarks.iter().map(|&landmark| worth(mesh, fleet, landmarks, landmark)).collect(),
    }
}

/// The landmark nearest to an agent, except `without`; `None` if no distance was measured.
fn nearest_of(mesh: &Mesh, agent: AgentId, landmarks: &[AgentId], without: Option<AgentId>) -> Option<(Rtt, AgentId)> {
    let others = landmarks.iter().filter(|landmark| Some(**landmark) != without);
    others.filter_map(|&landmark| Some((mesh.distance(agent, landmark)?, landmark))).min()
}

fn worth(mesh: &Mesh, fleet: &[Nominee], landmarks: &[AgentId], landmark: AgentId) -> LandmarkWorth {
    let (mut nearest_to, mut counted, mut sum) = (0, 0.0, 0.0);
    for agent in fleet.iter().map(|nominee| nominee.agent) {
        if agent != landmark && landmarks.contains(&agent) {
            counted += 1.0;
            continue;
        }
        let with = if agent == landmark { Some((0.0, landmark)) } else { None };
        let with = with.or_else(|| nearest_of(mesh, agent, landmarks, None).map(|(rtt, by)| (rtt.as_millis_f64(), by)));
        let Some((with, by)) = with else { continue };
        if agent != landmark && by == landmark {
            nearest_to += 1;
        }
        let Some((alone, _)) = nearest_of(mesh, agent, landmarks, Some(landmark)) else { continue };
        sum += alone.as_millis_f64() - with;
        counted += 1.0;
    }
    let adds = if counted > 0.0 {
        Duration::try_from_secs_f64(sum / counted / 1e3).unwrap_or_default()
    } else {
        Duration::ZERO
    };
    LandmarkWorth { landmark, nearest_to, adds }
}

fn diversity<'a>(fleet: &'a [Nominee], landmarks: &[AgentId], kind: impl Fn(&'a Nominee) -> &'a String) -> Diversity {
    let all: BTreeSet<&String> = fleet.iter().map(&kind).filter(|kind| !kind.is_empty()).collect();
    let chosen = fleet.iter().filter(|nominee| landmarks.contains(&nominee.agent));
    let with: BTreeSet<&String> = chosen.map(&kind).filter(|kind| !kind.is_empty()).collect();
    let without = all.difference(&with).map(|kind| (*kind).clone()).collect();
    Diversity { with: with.into_iter().cloned().collect(), without }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gnp::fixture::{agent, line, nominees, rtt};

    /// Six agents on a line at 0, 4, 8, 60, 64 and 90 ms, and one agent without measurements.
    fn fleet() -> (Mesh, Vec<Nominee>) {
        let fleet = nominees(&[
            ("Beijing", "Telecom"),
            ("Beijing", "Unicom"),
            ("Beijing", "Telecom"),
            ("Shanghai", "Unicom"),
            ("Shanghai", "Telecom"),
            ("Harbin", "CERNET"),
            ("", ""),
        ]);
        (line(&[0.0, 4.0, 8.0, 60.0, 64.0, 90.0], 0.0), fleet)
    }

    #[test]
    fn coverage_diversity_and_what_each_adds_are_told() {
        let (mesh, fleet) = fleet();
        let told = explain_election(&mesh, &fleet, &[agent(2), agent(5)]);
        assert_eq!(told.others, 5);
        let within: Vec<usize> = told.coverage.iter().map(|reach| reach.agents).collect();
        assert_eq!(within, [3, 3, 3, 4, 4, 4], "at 4, 4, 4 and 26 ms");
        assert_eq!(told.median, Some(rtt(4.0)));
        assert_eq!(told.farthest.map(|(agent, _)| agent), Some(agent(6)));
        assert_eq!(told.uncovered, [agent(7)]);
        assert_eq!(told.cities.with, ["Beijing", "Shanghai"]);
        assert_eq!(told.cities.without, ["Harbin"]);
        assert_eq!(told.carriers.without, ["CERNET"]);
        assert_eq!(told.landmarks[0].nearest_to, 2);
        // Agents 2, 1 and 3 are 0, 4 and 4 ms from landmark 2. Without this landmark, the nearest
        // landmark would be agent 5, at 60, 64 and 56 ms.
        let adds = told.landmarks[0].adds.as_secs_f64() * 1e3;
        assert!((adds - (60.0 + 60.0 + 52.0) / 6.0).abs() < 1e-3, "{adds}");
    }

    #[test]
    fn one_landmark_or_none_and_an_empty_mesh_are_explained_too() {
        let (mesh, fleet) = fleet();
        let alone = explain_election(&mesh, &fleet, &[agent(2)]);
        assert_eq!(alone.landmarks[0].adds, Duration::ZERO, "there is nothing to compare with");
        let none = explain_election(&mesh, &fleet, &[]);
        assert_eq!((none.others, none.uncovered.len(), none.median), (7, 7, None));
        let blind = explain_election(&Mesh::new(), &fleet, &[agent(2)]);
        assert_eq!(blind.uncovered.len(), 6);
    }
}
