//! A draw: some nodes of a matrix become agents, and all others become sites.
//!
//! The agents' mesh keeps the two directions of a pair separate. A site's round trips are the true
//! round trips of [`Matrix::truth`].

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use super::{Matrix, SettingsError};
use crate::gnp::{Mesh, Nominee};
use crate::model::{AgentId, Rtt};

/// The agents and sites of one seed. The agent with the index `i` has the identifier `i + 1`.
#[derive(Debug, Clone)]
pub struct Draw<'a> {
    matrix: &'a Matrix,
    agents: Vec<usize>,
    sites: Vec<usize>,
}

impl<'a> Draw<'a> {
    pub fn new(matrix: &'a Matrix, agents: usize, seed: u64) -> Result<Self, SettingsError> {
        if agents == 0 {
            return Err(SettingsError::zero("agents"));
        }
        if agents >= matrix.nodes() {
            let nodes = matrix.nodes();
            let complaint = format!("{agents} agents leave no site among the {nodes} nodes of the matrix");
            return Err(SettingsError::Matrix(complaint));
        }
        let mut nodes: Vec<usize> = (0..matrix.nodes()).collect();
        nodes.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        let mut sites = nodes.split_off(agents);
        sites.sort_unstable();
        Ok(Self { matrix, agents: nodes, sites })
    }

    /// Builds a draw with given nodes as agents and sites. Nodes are row numbers in the matrix.
    pub fn given(matrix: &'a Matrix, agents: Vec<usize>, sites: Vec<usize>) -> Self {
        Self { matrix, agents, sites }
    }

    pub fn agents(&self) -> usize {
        self.agents.len()
    }

    pub fn sites(&self) -> usize {
        self.sites.len()
    }

    /// The row number of a site in the matrix.
    pub fn site_node(&self, site: usize) -> usize {
        self.sites[site]
    }

    /// The row number of an agent in the matrix.
    pub fn agent_node(&self, agent: usize) -> usize {
        self.agents[agent]
    }

    pub fn agent_id(&self, agent: usize) -> AgentId {
        AgentId::new(i64::try_from(agent).unwrap_or(i64::MAX).saturating_add(1))
    }

    /// The index of the agent with this identifier; `None` if no agent of this draw has it.
    pub fn agent_of(&self, id: AgentId) -> Option<usize> {
        let number = usize::try_from(id.get().checked_sub(1)?).ok()?;
        (number < self.agents.len()).then_some(number)
    }

    /// The true round trip between a site and an agent, in milliseconds; `None` if it is not in the
    /// matrix.
    pub fn truth(&self, site: usize, agent: usize) -> Option<f64> {
        self.matrix.truth(*self.sites.get(site)?, *self.agents.get(agent)?)
    }

    /// All measurements between agents, as a mesh.
    pub fn mesh(&self) -> Mesh {
        let mut mesh = Mesh::new();
        for (i, &a) in self.agents.iter().enumerate() {
            for (j, &b) in self.agents.iter().enumerate().filter(|&(j, _)| j != i) {
                if let Some(rtt) = self.matrix.millis(a, b).and_then(|millis| Rtt::try_from_millis_f64(millis).ok()) {
                    mesh.insert(self.agent_id(i), self.agent_id(j), rtt);
                }
            }
        }
        mesh
    }

    /// The agents as nominees, without cities and carriers, because a matrix contains none.
    pub fn nominees(&self) -> Vec<Nominee> {
        let nominee = |i| Nominee { agent: self.agent_id(i), city: String::new(), carrier: String::new() };
        (0..self.agents()).map(nominee).collect()
    }

    /// The measurements of a site by `probers`: the true round trips, as far as they are known.
    pub fn measured(&self, site: usize, probers: &[AgentId]) -> Vec<(AgentId, Rtt)> {
        let one = |&id: &AgentId| {
            let millis = self.truth(site, self.agent_of(id)?)?;
            Some((id, Rtt::try_from_millis_f64(millis).ok()?))
        };
        probers.iter().filter_map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn matrix() -> Matrix {
        Matrix::parse(Path::new("m.csv"), b"0,4,nan,7\n9,0,3,8\n5,nan,0,6\n1,2,3,0\n").unwrap()
    }

    #[test]
    fn a_drawing_splits_the_nodes_and_knows_the_truth_between_them() {
        let matrix = matrix();
        let draw = Draw::new(&matrix, 2, 7).unwrap();
        let mut nodes: Vec<usize> =
            (0..2).map(|i| draw.agent_node(i)).chain((0..2).map(|i| draw.site_node(i))).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [0, 1, 2, 3]);
        assert_eq!(draw.agent_of(draw.agent_id(1)), Some(1));
        assert_eq!(draw.agent_of(AgentId::new(3)), None);
        assert_eq!(draw.measured(0, &[draw.agent_id(0)]).len(), 1);
    }

    #[test]
    fn a_matrix_too_small_is_refused_with_numbers() {
        let matrix = matrix();
        assert_eq!(
            Draw::new(&matrix, 4, 1).unwrap_err().to_string(),
            "4 agents leave no site among the 4 nodes of the matrix"
        );
        assert_eq!(Draw::new(&matrix, 0, 1).unwrap_err().to_string(), "agents must be at least 1");
    }
}
