//! Elects one landmark to replace a lost landmark, while all other landmarks stay. The cost is the
//! same as in an election, so that the landmarks are still good after many replacements.

use crate::model::AgentId;

use super::nominees::Nominees;
use super::reason::ElectedLandmark;
use crate::gnp::{Mesh, Nominee};

/// Elects the agent of `candidates` that, together with the landmarks `kept`, has the lowest cost.
/// Returns `None` if none of these agents is eligible. `fleet` contains the agents of `kept` and
/// `candidates`. Kept landmarks need not be reachable.
pub fn replace_landmark(
    mesh: &Mesh,
    fleet: &[Nominee],
    kept: &[AgentId],
    candidates: &[AgentId],
    seed: u64,
) -> Option<ElectedLandmark> {
    let ballot = Nominees::new(mesh, fleet, seed);
    let mut chosen = ballot.places(kept);
    let open = ballot.eligible().filter(|&place| {
        let agent = ballot.agent(place);
        candidates.contains(&agent) && !kept.contains(&agent) && mesh.reached_by(agent) > 0
    });
    let costed = open.map(|place| (ballot.cost(&[chosen.as_slice(), &[place]].concat()), place));
    let (_, best) = costed.min_by(|a, b| a.0.total_cmp(&b.0))?;
    chosen.push(best);
    Some(ballot.elected(best, &chosen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gnp::fixture::{agent, line, nominees};

    /// Two groups of three agents on a line; all agents measured each other.
    fn fleet() -> (Mesh, Vec<Nominee>) {
        (line(&[0.0, 2.0, 4.0, 60.0, 62.0, 64.0], 0.0), nominees(&[("", ""); 6]))
    }

    #[test]
    fn the_replacement_covers_what_the_lost_one_did_and_the_others_stay() {
        let (mesh, fleet) = fleet();
        // The landmarks were agents 2 and 5. Agent 5 is lost, and agent 2 stays.
        let candidates: Vec<AgentId> = [1, 3, 4, 6].map(agent).to_vec();
        let elected = replace_landmark(&mesh, &fleet, &[agent(2)], &candidates, 1).unwrap();
        assert!([agent(4), agent(6)].contains(&elected.agent), "{elected:?}");
        assert!(elected.reason.contains("central to"), "{elected:?}");
        assert_eq!(replace_landmark(&mesh, &fleet, &[agent(2)], &candidates, 1).unwrap(), elected);
    }

    #[test]
    fn an_agent_that_nobody_reached_or_that_is_one_already_replaces_nobody() {
        let (mesh, mut fleet) = fleet();
        fleet.push(Nominee { agent: agent(9), city: "Harbin".to_owned(), carrier: "CERNET".to_owned() });
        assert_eq!(replace_landmark(&mesh, &fleet, &[agent(2)], &[agent(9), agent(2)], 1), None);
        assert_eq!(replace_landmark(&mesh, &fleet, &[agent(2)], &[], 1), None);
    }
}
