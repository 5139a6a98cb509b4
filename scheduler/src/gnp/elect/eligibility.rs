//! Limits the number of landmarks, and decides which agents are eligible in a large fleet.

use crate::gnp::Mesh;
use crate::model::AgentId;

/// Minimum number of landmarks to elect. With only two landmarks, a host's position and its mirror
/// image would fit equally well.
pub const FEWEST_ELECTED: u32 = 3;
/// A fleet of at most this many connected agents needs no landmarks. Without landmarks, every agent
/// measures every site.
pub const SMALL_FLEET: usize = 9;
/// In fleets of at least this size, a landmark must have been measured by at least [`REACHED_BY`]
/// other agents.
const LARGE_FLEET: usize = SMALL_FLEET + 1;
/// Minimum number of other agents that must have measured a landmark in a large fleet.
const REACHED_BY: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ElectError {
    #[error("at least 1 landmark must be requested")]
    NoneAsked,
    #[error("an election of {asked} landmarks needs as many agents, but there are {there}")]
    TooFewAgents { asked: usize, there: usize },
    #[error(
        "an election of {asked} landmarks needs as many agents that two others reached, but only {reached} of {there} \
         were"
    )]
    TooFewReached {
        asked: usize,
        /// Number of agents that at least two other agents measured.
        reached: usize,
        there: usize,
    },
}

/// Whether an agent of a fleet of this size may become a landmark.
pub(super) fn is_eligible(mesh: &Mesh, agent: AgentId, fleet: usize) -> bool {
    fleet < LARGE_FLEET || mesh.reached_by(agent) >= REACHED_BY
}

/// Checks that as many of the eligible agents can be elected as were requested.
pub(super) const fn check(asked: usize, reached: usize, there: usize) -> Result<(), ElectError> {
    if asked == 0 {
        return Err(ElectError::NoneAsked);
    }
    if asked > there {
        return Err(ElectError::TooFewAgents { asked, there });
    }
    if asked > reached {
        return Err(ElectError::TooFewReached { asked, reached, there });
    }
    Ok(())
}
