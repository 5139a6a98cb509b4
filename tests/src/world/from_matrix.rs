//! Makes a scenario from a measured [`Matrix`]: chooses the nodes that become agents and sites, and
//! sets the packet loss and link rate that a matrix does not contain.

use anyhow::ensure;
use landfall_scheduler::simulate::Matrix;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use super::scenario::{AgentNode, Link, Scenario, SiteNode};
use super::site_pages::WebRules;

/// Packet loss on all paths of a matrix. Matrices have no loss data, so the value is the loss
/// within one carrier in the paper's layout.
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
            web: WebRules::default(),
        })
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
        let scenario = Scenario::from_matrix(&matrix, "m", 1, 3, 1).unwrap();
        let ranked = scenario.clone().ranked(&[2, 0, 1]).unwrap();
        for (rank, index) in [2, 0, 1].into_iter().enumerate() {
            assert_eq!(ranked.agents[rank].name, scenario.agents[index].name);
            assert_eq!(ranked.paths[rank][0].rtt_ms.to_bits(), scenario.paths[index][0].rtt_ms.to_bits());
        }
        assert_eq!(ranked.mesh[0][1].rtt_ms.to_bits(), scenario.mesh[2][0].rtt_ms.to_bits());
        for wrong in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3]] {
            assert!(scenario.clone().ranked(wrong).is_err(), "{wrong:?}");
        }
    }
}
