//! Elects landmarks by k-medoids, then replaces landmarks with other agents to lower the map's
//! prediction errors for held-out agents.
//!
//! A held-out agent is a non-landmark agent that is located like a site. The held-out agent's
//! predicted distances to other agents are compared with the measured distances. The cost of a set
//! of landmarks is the error of these predictions plus the weighted k-medoids cost. Minimising the
//! error alone would choose landmarks far from all agents, and then few sites would be near a
//! landmark. A landmark near a site is useful, because its distance to the site is measured, not
//! predicted.

use crate::model::AgentId;
use crate::model::stats::mean;

use super::eligibility::ElectError;
use super::k_medoids::{ElectionCost, elect};
use super::nominees::{Nominee, Nominees};
use super::reason::ElectedLandmark;
use crate::gnp::Mesh;
use crate::gnp::fit::Measured;
use crate::gnp::refined::{HeldOut, MOST_AGENTS, Prepared};

/// Maximum number of times that all swaps of a landmark for another agent are tried. In the second
/// pass, some swaps lower the cost that did not lower it in the first pass. In a third pass, hardly
/// any swap would lower the cost.
const MOST_PASSES: usize = 2;
/// The weight of the k-medoids cost relative to the prediction error. The k-medoids cost is divided
/// by the mean distance of an agent to the nearest other agent, so that the weight has no unit.
const NEARNESS: f64 = 0.06;

/// Elects as [`elect`] does, then improves the choice. The returned landmarks are in no meaningful
/// order.
pub fn elect_held_out(
    mesh: &Mesh,
    nominees: &[Nominee],
    count: usize,
    seed: u64,
) -> Result<Vec<ElectedLandmark>, ElectError> {
    let elected = elect(mesh, nominees, count, seed)?;
    let landmarks: Vec<AgentId> = elected.iter().map(|elected| elected.agent).collect();
    if nominees.len() > MOST_AGENTS {
        return Ok(elected);
    }
    // If the mesh does not connect the landmarks, no agent can be held out.
    let Ok(measured) = Measured::joined(mesh, &landmarks) else { return Ok(elected) };
    let Some(prepared) = Prepared::new(&measured, landmarks.len(), seed) else { return Ok(elected) };
    let Some(held_out) = prepared.held_out() else { return Ok(elected) };
    let ballot = Nominees::new(mesh, nominees, seed);
    let mut contest = HeldOutCost::new(&ballot, held_out, &measured);
    let mut chosen: Vec<usize> = ballot.places(&landmarks);
    ballot.swap(&mut chosen, MOST_PASSES, &mut contest);
    Ok(chosen.iter().map(|&place| ballot.elected(place, &chosen)).collect())
}

struct HeldOutCost<'a> {
    ballot: &'a Nominees<'a>,
    held_out: HeldOut<'a>,
    /// The index of each nominee in [`Measured::agents`]; `None` if the nominee is not among them.
    measured: Vec<Option<usize>>,
    /// Mean of the agents' distances to the nearest other agent, in milliseconds.
    nearest: f64,
}

impl<'a> HeldOutCost<'a> {
    fn new(ballot: &'a Nominees<'a>, held_out: HeldOut<'a>, measured: &Measured) -> Self {
        let place = |agent: AgentId| measured.agents.iter().position(|other| *other == agent);
        let nearest: Vec<f64> = measured
            .rows
            .iter()
            .map(|row| row.iter().map(|&(_, distance)| distance).fold(f64::INFINITY, f64::min))
            .filter(|distance| distance.is_finite())
            .collect();
        Self {
            measured: (0..ballot.size()).map(|i| place(ballot.agent(i))).collect(),
            ballot,
            held_out,
            nearest: mean(&nearest).unwrap_or(0.0).max(f64::MIN_POSITIVE),
        }
    }
}

impl ElectionCost for HeldOutCost<'_> {
    fn of(&mut self, chosen: &[usize]) -> f64 {
        // An agent that the mesh does not connect to the other agents cannot be a landmark, because
        // its measurements do not help to locate a held-out agent.
        let landmarks: Option<Vec<usize>> = chosen.iter().map(|&i| self.measured[i]).collect();
        let Some(landmarks) = landmarks else { return f64::INFINITY };
        let error = self.held_out.error(&landmarks).unwrap_or(f64::INFINITY);
        error + NEARNESS * self.ballot.cost(chosen) / self.nearest
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::gnp::fixture::{agent, nominees, rtt};

    /// Three groups of four agents. Neighbouring groups are 60 ms apart, and all agents measured
    /// each other.
    fn groups() -> (Mesh, Vec<Nominee>) {
        let mut mesh = Mesh::new();
        for a in 0..12_i64 {
            for b in 0..12_i64 {
                let apart = f64::from(u32::try_from((a / 4).abs_diff(b / 4)).unwrap()) * 60.0;
                let odd = f64::from(u32::try_from((a * 7 + b * 7) % 5).unwrap());
                mesh.insert(agent(a + 1), agent(b + 1), rtt(3.0 + apart + odd));
            }
        }
        (mesh, nominees(&[("", ""); 12]))
    }

    fn agents(elected: &[ElectedLandmark]) -> BTreeSet<i64> {
        elected.iter().map(|elected| elected.agent.get()).collect()
    }

    #[test]
    fn every_group_keeps_a_landmark_and_the_order_of_the_nominees_changes_nothing() {
        let (mesh, mut nominees) = groups();
        let elected = elect_held_out(&mesh, &nominees, 5, 3).unwrap();
        assert_eq!(elected.len(), 5);
        assert_eq!(agents(&elected).len(), 5);
        let of: BTreeSet<i64> = agents(&elected).iter().map(|agent| (agent - 1) / 4).collect();
        assert_eq!(of, BTreeSet::from([0, 1, 2]));
        nominees.reverse();
        assert_eq!(elected, elect_held_out(&mesh, &nominees, 5, 3).unwrap());
    }

    #[test]
    fn where_nobody_can_be_held_out_k_medoids_decides_and_its_refusals_stand() {
        let (mesh, nominees) = groups();
        assert_eq!(elect_held_out(&mesh, &nominees, 13, 3), Err(ElectError::TooFewAgents { asked: 13, there: 12 }));
        assert_eq!(elect_held_out(&mesh, &nominees, 12, 3).unwrap().len(), 12);
        let lone = &nominees[..1];
        assert_eq!(elect_held_out(&Mesh::new(), lone, 1, 3), elect(&Mesh::new(), lone, 1, 3));
    }
}
