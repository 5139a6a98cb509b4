//! The emulated agents and sites, and the links between them. A scenario is made from a
//! [`crate::world::layout::Layout`] or a measured [`Matrix`]. The scheduler does not see the
//! scenario.

use std::time::Duration;

use anyhow::ensure;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;
use serde::Deserialize;

use landfall_scheduler::simulate::Matrix;

#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: String,
    pub seed: u64,
    pub agents: Vec<AgentNode>,
    pub sites: Vec<SiteNode>,
    /// The link from each agent (row) to each agent's beacon (column).
    pub mesh: Vec<Vec<Link>>,
    /// The link from each agent (row) to each site (column).
    pub paths: Vec<Vec<Link>>,
    /// Maximum random delay of a response, in milliseconds. The delay is uniform from zero to the
    /// maximum.
    pub jitter_ms: f64,
    /// Rate of an agent's access link in bytes per second. It is multiplied by the agent's entry in
    /// `shapes`.
    pub agent_bytes_per_s: f64,
    /// Multipliers of `agent_bytes_per_s`, by agent index. Agents beyond the end of the list have
    /// the multiplier 1.
    pub shapes: Vec<f64>,
    pub web: WebRules,
}

#[derive(Debug, Clone)]
pub struct AgentNode {
    pub name: String,
    pub city: String,
    pub carrier: String,
    /// The country as ISO 3166-1 alpha-2 code; empty if unknown.
    pub country: String,
}

#[derive(Debug, Clone)]
pub struct SiteNode {
    pub host: String,
    pub city: String,
    pub carrier: String,
    /// The index of the machine. All sites of a machine have its address.
    pub machine: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct Link {
    pub rtt_ms: f64,
    /// The probability that a body packet is lost, 0 to 1.
    pub loss: f64,
}

impl Link {
    pub fn rtt(&self) -> Duration {
        Duration::from_secs_f64(self.rtt_ms / 1e3)
    }
}

/// The rules for the content of sites. Fractions are from 0 to 1.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebRules {
    /// Mean number of pages of a site. The number has a lognormal distribution.
    pub mean_pages: f64,
    /// Standard deviation of the logarithm of the number of pages.
    pub pages_sigma: f64,
    pub max_pages: usize,
    /// Mean size of a page in bytes. The size has a lognormal distribution.
    pub mean_bytes: f64,
    /// Standard deviation of the logarithm of the page size.
    pub bytes_sigma: f64,
    /// Maximum size of a page in bytes.
    pub max_bytes: usize,
    /// Fraction of pages with a broken link.
    pub broken_share: f64,
    /// Fraction of pages to which the server responds with a delay.
    pub slow_share: f64,
    /// The delay of these pages in milliseconds.
    pub slow_ms: u64,
    /// Fraction of sites whose robots.txt disallows /private/.
    pub robots_share: f64,
}

impl Default for WebRules {
    /// The rules of the paper's layout.
    fn default() -> Self {
        Self {
            mean_pages: 25.0,
            pages_sigma: 0.8,
            max_pages: 120,
            mean_bytes: 12_288.0,
            bytes_sigma: 0.7,
            max_bytes: 200_000,
            broken_share: 0.05,
            slow_share: 0.02,
            slow_ms: 600,
            robots_share: 0.6,
        }
    }
}

impl WebRules {
    pub fn validate(&self) -> anyhow::Result<()> {
        let shares =
            [("broken_share", self.broken_share), ("slow_share", self.slow_share), ("robots_share", self.robots_share)];
        for (field, share) in shares {
            ensure!((0.0..=1.0).contains(&share), "web.{field} must be from 0 to 1");
        }
        ensure!(self.mean_pages >= 1.0 && self.max_pages >= 1, "web.mean_pages and web.max_pages must be 1 or more");
        ensure!(
            self.mean_bytes >= 512.0 && self.max_bytes >= 512,
            "web.mean_bytes and web.max_bytes must be 512 or more"
        );
        ensure!(self.pages_sigma >= 0.0 && self.bytes_sigma >= 0.0, "web: a sigma must not be negative");
        Ok(())
    }
}

/// Packet loss on all paths of a matrix. Matrices have no loss data, so the value is that of the
/// paper's layout inside one carrier.
const MATRIX_LOSS: f64 = 0.001;
/// Rate of access links in scenarios from a matrix. Matrices have no rates, so the value is the 20
/// Mbit/s of the paper's layout.
const MATRIX_AGENT_BYTES_PER_S: f64 = 2.5e6;

impl Scenario {
    /// Draws agents and sites from the nodes of a matrix. A node is skipped if a round trip between
    /// it and a drawn agent is missing. Fails if too few nodes remain.
    pub fn from_matrix(matrix: &Matrix, name: &str, seed: u64, agents: usize, sites: usize) -> anyhow::Result<Self> {
        let nodes = matrix.nodes();
        ensure!(agents >= 1 && sites >= 1, "at least one agent and one site are needed");
        ensure!(
            agents + sites <= nodes,
            "{name}: {agents} agents and {sites} sites need {} nodes, and the matrix has {nodes}",
            agents + sites
        );
        let mut order: Vec<usize> = (0..nodes).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        let both = |a: usize, b: usize| matrix.millis(a, b).is_some() && matrix.millis(b, a).is_some();
        let mut drawn_agents: Vec<usize> = Vec::new();
        let mut drawn_sites: Vec<usize> = Vec::new();
        for node in order {
            let agent_row = drawn_agents.iter().all(|&agent| both(agent, node));
            if drawn_agents.len() < agents {
                // An agent with many gaps in the matrix would exclude most of the nodes that are
                // drawn after it.
                let gaps = (0..nodes).filter(|&other| other != node && !both(node, other)).count();
                if agent_row && gaps * 2 <= nodes {
                    drawn_agents.push(node);
                }
            } else if drawn_sites.len() < sites && agent_row {
                drawn_sites.push(node);
            }
        }
        ensure!(
            drawn_agents.len() == agents && drawn_sites.len() == sites,
            "{name}: {agents} agents and {sites} sites need complete rows between them, and the matrix has them for only \
             {} agents and {} sites",
            drawn_agents.len(),
            drawn_sites.len()
        );
        let links = |to: &[usize]| {
            let link =
                |from: usize, to: usize| Link { rtt_ms: matrix.millis(from, to).unwrap_or(0.0), loss: MATRIX_LOSS };
            drawn_agents.iter().map(|&from| to.iter().map(|&to| link(from, to)).collect()).collect()
        };
        Ok(Self {
            name: name.to_owned(),
            seed,
            mesh: links(&drawn_agents),
            paths: links(&drawn_sites),
            agents: drawn_agents.iter().map(|&node| matrix_agent(node)).collect(),
            sites: drawn_sites.iter().enumerate().map(|(machine, &node)| matrix_site(node, machine)).collect(),
            jitter_ms: 0.0,
            agent_bytes_per_s: MATRIX_AGENT_BYTES_PER_S,
            shapes: Vec::new(),
            web: WebRules::default(),
        })
    }

    /// Reorders the agents. `order[n]` is the current index of the agent that gets the index `n`.
    /// Fails if `order` is not a permutation of all agents.
    pub fn ranked(mut self, order: &[usize]) -> anyhow::Result<Self> {
        let mut all = order.to_vec();
        all.sort_unstable();
        ensure!(all.iter().copied().eq(0..self.agents.len()), "{order:?} is no order of {} agents", self.agents.len());
        self.agents = order.iter().map(|&agent| self.agents[agent].clone()).collect();
        self.paths = order.iter().map(|&agent| self.paths[agent].clone()).collect();
        let row = |from: usize| order.iter().map(|&to| self.mesh[from][to]).collect();
        self.mesh = order.iter().map(|&from| row(from)).collect();
        if !self.shapes.is_empty() {
            self.shapes = order.iter().map(|&agent| self.shapes.get(agent).copied().unwrap_or(1.0)).collect();
        }
        Ok(self)
    }

    pub fn bytes_per_s(&self, agent: usize) -> f64 {
        self.agent_bytes_per_s * self.shapes.get(agent).copied().unwrap_or(1.0)
    }

    pub fn machines(&self) -> usize {
        self.sites.iter().map(|site| site.machine + 1).max().unwrap_or(0)
    }

    pub fn sites_of(&self, machine: usize) -> impl Iterator<Item = usize> {
        self.sites.iter().enumerate().filter(move |(_, site)| site.machine == machine).map(|(index, _)| index)
    }

    pub fn median_rtt(&self) -> Duration {
        let others = self.mesh.iter().enumerate().flat_map(|(from, row)| {
            row.iter().enumerate().filter(move |(to, _)| *to != from).map(|(_, link)| link.rtt_ms)
        });
        let mut all: Vec<f64> = others.chain(self.paths.iter().flatten().map(|link| link.rtt_ms)).collect();
        all.sort_by(f64::total_cmp);
        Duration::from_secs_f64(all.get(all.len() / 2).copied().unwrap_or(0.0) / 1e3)
    }
}

/// A matrix has no cities, so every node is a city and a carrier of its own.
fn matrix_agent(node: usize) -> AgentNode {
    let label = format!("node-{node}");
    AgentNode { name: label.clone(), city: label.clone(), carrier: label, country: String::new() }
}

fn matrix_site(node: usize, machine: usize) -> SiteNode {
    let label = format!("node-{node}");
    SiteNode { host: format!("www.{label}.test"), city: label.clone(), carrier: label, machine }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn matrix(rows: &[&str]) -> Matrix {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("m.csv");
        std::fs::write(&file, rows.join("\n")).unwrap();
        Matrix::read(&file).unwrap()
    }

    #[test]
    fn a_node_without_a_complete_row_is_skipped() {
        // The matrix has no value between nodes 2 and 0.
        let matrix = matrix(&["0,10,nan,30", "10,0,21,31", "22,21,0,32", "30,31,32,0"]);
        for seed in 0..20 {
            let Ok(scenario) = Scenario::from_matrix(&matrix, "m.csv", seed, 2, 1) else { continue };
            let links = scenario.mesh[0][1..].iter().chain(scenario.paths.iter().flatten());
            assert!(links.into_iter().all(|link| link.rtt_ms >= 10.0), "seed {seed}: {scenario:?}");
        }
        assert!((0..20).any(|seed| Scenario::from_matrix(&matrix, "m.csv", seed, 2, 1).is_ok()));
    }

    #[test]
    fn too_few_nodes_are_refused_by_number() {
        let matrix = matrix(&["0,1,2", "1,0,3", "2,3,0"]);
        let error = Scenario::from_matrix(&matrix, "m.csv", 1, 2, 2).unwrap_err();
        assert_eq!(error.to_string(), "m.csv: 2 agents and 2 sites need 4 nodes, and the matrix has 3");
    }

    #[test]
    fn a_measured_matrix_gives_agents_and_sites_with_their_own_round_trips() {
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/planetlab490.matrix.csv.gz"));
        if !file.exists() {
            println!("skipped: {} is absent", file.display());
            return;
        }
        let matrix = Matrix::read(file).unwrap();
        let scenario = Scenario::from_matrix(&matrix, "planetlab", 1, 30, 203).unwrap();
        assert_eq!((scenario.agents.len(), scenario.sites.len()), (30, 203));
        let node = |label: &str| label.trim_start_matches("node-").parse::<usize>().unwrap();
        let (from, to) = (node(&scenario.agents[7].city), node(&scenario.sites[90].city));
        assert_eq!(Some(scenario.paths[7][90].rtt_ms), matrix.millis(from, to));
    }

    #[test]
    fn reordered_agents_keep_their_links() {
        let matrix = matrix(&["0,1,2,3", "4,0,5,6", "7,8,0,9", "10,11,12,0"]);
        let mut scenario = Scenario::from_matrix(&matrix, "m", 1, 3, 1).unwrap();
        scenario.shapes = vec![0.5];
        let ranked = scenario.clone().ranked(&[2, 0, 1]).unwrap();
        for (rank, index) in [2, 0, 1].into_iter().enumerate() {
            assert_eq!(ranked.agents[rank].name, scenario.agents[index].name);
            assert_eq!(ranked.paths[rank][0].rtt_ms.to_bits(), scenario.paths[index][0].rtt_ms.to_bits());
            assert_eq!(ranked.bytes_per_s(rank).to_bits(), scenario.bytes_per_s(index).to_bits());
        }
        assert_eq!(ranked.mesh[0][1].rtt_ms.to_bits(), scenario.mesh[2][0].rtt_ms.to_bits());
        for wrong in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3]] {
            assert!(scenario.clone().ranked(wrong).is_err(), "{wrong:?}");
        }
    }
}
