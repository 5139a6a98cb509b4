//! The settings of a simulation, and their validation. A draw turns some nodes of a matrix into
//! agents, and all others into sites.
//!
//! A draw's mesh of agents keeps the two directions of a pair separate. A site's round trips are
//! the true round trips of [`Matrix::truth`].

use std::num::NonZeroUsize;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use crate::gnp::{self, FEWEST_LANDMARKS, Mesh, Nominee, PlainSwitches, RefinedSwitches, Tier};
use crate::model::{AgentId, Rtt, Strategy, words};

use super::Matrix;
use super::matrix_and_nodes::Node;

/// The settings of a simulation. The simulation's report depends only on the settings and on the
/// matrix.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Number of agents drawn for each seed.
    pub agents: usize,
    pub landmarks: usize,
    /// Number of dimensions of the plain map; `None` for the default, which depends on the number
    /// of landmarks.
    pub dims: Option<usize>,
    pub first_seed: u64,
    /// Number of seeds, counted upwards from `first_seed`.
    pub seeds: u64,
    /// Number of randomly drawn sites to evaluate for each seed; `None` for all sites.
    pub sites: Option<usize>,
    pub strategies: Vec<Strategy>,
    pub tier: Tier,
    /// The ingredients to leave out of the map, by the names of their switches.
    pub without: Vec<&'static str>,
    pub election: Election,
    /// Number of agents that `gnp-confirmed` asks to measure a site.
    pub confirm: usize,
    /// Number of crawls of each site. Each crawl uses the corrections learned from earlier crawls.
    pub crawls: usize,
    /// Data about the nodes, apart from round trips, in the order of the matrix; empty if there are
    /// no data.
    pub nodes: Vec<Node>,
    /// Number of seeds that run at the same time. The report does not depend on this number.
    pub threads: NonZeroUsize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            agents: 30,
            landmarks: 9,
            dims: None,
            first_seed: 0,
            seeds: 10,
            sites: None,
            strategies: judged(&[]).collect(),
            tier: Tier::Refined,
            without: Vec::new(),
            election: Election::Improved,
            confirm: 3,
            crawls: 1,
            nodes: Vec::new(),
            threads: NonZeroUsize::MIN,
        }
    }
}

impl Settings {
    pub fn check(&self, matrix: &Matrix) -> Result<(), SettingsError> {
        let counts = [
            ("agents", self.agents == 0),
            ("seeds", self.seeds == 0),
            ("dims", self.dims == Some(0)),
            ("sites", self.sites == Some(0)),
            ("confirm", self.confirm == 0),
            ("crawls", self.crawls == 0),
        ];
        if let Some((setting, _)) = counts.into_iter().find(|(_, zero)| *zero) {
            return Err(SettingsError::zero(setting));
        }
        let nonsense = |complaint| Err(SettingsError::Nonsense(complaint));
        let &Self { agents, landmarks, first_seed, seeds, .. } = self;
        if first_seed.checked_add(seeds - 1).is_none() {
            let greatest = u64::MAX;
            return nonsense(format!("first-seed {first_seed} and {seeds} seeds exceed the greatest seed, {greatest}"));
        }
        if landmarks < FEWEST_LANDMARKS {
            return nonsense(format!(
                "landmarks must be at least {FEWEST_LANDMARKS}, not {landmarks}: fewer do not determine even a place \
                 on a line"
            ));
        }
        if landmarks > agents {
            return nonsense(format!("landmarks must be at most the number of agents, {agents}, not {landmarks}"));
        }
        if let Some(dims) = self.dims.filter(|dims| *dims >= landmarks) {
            return nonsense(format!("dims must be below the number of landmarks, {landmarks}, not {dims}"));
        }
        let names = ingredients(self.tier);
        if let Some(ingredient) = self.without.iter().find(|name| !names.contains(*name)) {
            let (tier, names) = (self.tier.name(), names.join(", "));
            let names = if names.is_empty() { "none" } else { &names };
            return nonsense(format!("without {ingredient}: the ingredients of the tier {tier} are: {names}"));
        }
        if !self.nodes.is_empty() && self.nodes.len() != matrix.nodes() {
            let (told, nodes) = (self.nodes.len(), matrix.nodes());
            return Err(SettingsError::Nodes(format!("nodes: the file describes {told}, but the matrix has {nodes}")));
        }
        let beyond = |strategy: &&Strategy| matches!(strategy, Strategy::GnpTop(k) if k.get() > agents);
        if let Some(strategy) = self.strategies.iter().find(beyond) {
            return nonsense(format!("strategy {strategy}: K must be at most the number of agents, {agents}"));
        }
        let lacking = |strategy: &Strategy| Some((*strategy, lacks(*strategy, &self.nodes)?));
        if let Some((name, lacks)) = self.strategies.iter().find_map(lacking) {
            return nonsense(format!(
                "strategy {name}: it needs {lacks}, which the matrix does not contain: give the nodes' in --nodes FILE"
            ));
        }
        Draw::new(matrix, agents, self.first_seed)?;
        Ok(())
    }

    pub fn dimensions(&self) -> usize {
        self.dims.unwrap_or_else(|| gnp::default_dimensions(self.landmarks))
    }

    pub(super) fn plain_switches(&self) -> PlainSwitches {
        let less = |all: PlainSwitches, name: &&'static str| all.without(name).unwrap_or(all);
        self.without.iter().fold(PlainSwitches::of(self.tier), less)
    }

    pub(super) fn refined_switches(&self) -> RefinedSwitches {
        let less = |all: RefinedSwitches, name: &&'static str| all.without(name).unwrap_or(all);
        self.without.iter().fold(RefinedSwitches::default(), less)
    }

    /// Number of sites to judge in all seeds together, for a matrix with `nodes` nodes.
    pub fn sites_in_all(&self, nodes: usize) -> u64 {
        let each = nodes.saturating_sub(self.agents);
        let each = u64::try_from(self.sites.map_or(each, |most| each.min(most))).unwrap_or(u64::MAX);
        each.saturating_mul(self.seeds)
    }
}

/// The names of the ingredients that can be left out of a map of this tier.
pub const fn ingredients(tier: Tier) -> &'static [&'static str] {
    match tier {
        Tier::Gnp => &[],
        Tier::Plain => PlainSwitches::NAMES,
        Tier::Refined => RefinedSwitches::NAMES,
    }
}

/// The strategies that can be judged with these data about the nodes.
pub fn judged(nodes: &[Node]) -> impl Iterator<Item = Strategy> {
    Strategy::ALL.iter().copied().filter(move |strategy| lacks(*strategy, nodes).is_none())
}

words!(
    /// The method by which landmarks are chosen among the agents, from the agents' mesh alone.
    Election {
        /// The method of the scheduler: k-medoids, improved with agents held out as sites.
        Improved = "improved",
        /// K-medoids without the improvement.
        KMedoids = "kmedoids",
        /// Agents drawn at random with the seed.
        Random = "random",
        /// Repeatedly the agent farthest from those already chosen. This method is bad, and is used
        /// only for comparison.
        Farthest = "farthest",
    }
);

/// The input that a strategy needs but that no node has; `None` if the strategy can be judged.
pub(super) fn lacks(strategy: Strategy, nodes: &[Node]) -> Option<&'static str> {
    let (known, what): (fn(&Node) -> bool, _) = match strategy {
        Strategy::Domain => (|node| node.name.is_some(), "names"),
        Strategy::Geographic => (|node| node.position.is_some(), "positions"),
        Strategy::Prefix => (|node| node.address.is_some(), "addresses"),
        Strategy::Random
        | Strategy::Hash
        | Strategy::Kademlia
        | Strategy::GnpTop(_)
        | Strategy::GnpBalanced
        | Strategy::GnpConfirmed
        | Strategy::EarliestFinish => return None,
    };
    (!nodes.iter().any(known)).then_some(what)
}

/// Every message names the invalid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("{0}")]
    Nonsense(String),
    /// The matrix is too small for these settings.
    #[error("{0}")]
    Matrix(String),
    /// The numbers of nodes in the nodes' file and in the matrix differ.
    #[error("{0}")]
    Nodes(String),
}

impl SettingsError {
    pub(super) fn zero(setting: &str) -> Self {
        Self::Nonsense(format!("{setting} must be at least 1"))
    }
}

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

    use crate::model::geo::Position;

    use super::*;

    fn refusal(change: impl FnOnce(&mut Settings)) -> String {
        let matrix = Matrix::of(12, |_, _| Some(5.0));
        let mut settings = Settings { agents: 8, landmarks: 4, ..Settings::default() };
        assert_eq!(settings.check(&matrix), Ok(()));
        change(&mut settings);
        settings.check(&matrix).unwrap_err().to_string()
    }

    #[test]
    fn every_setting_that_makes_no_sense_is_named() {
        assert_eq!(refusal(|s| s.agents = 0), "agents must be at least 1");
        assert_eq!(refusal(|s| s.seeds = 0), "seeds must be at least 1");
        assert_eq!(refusal(|s| s.dims = Some(0)), "dims must be at least 1");
        assert_eq!(refusal(|s| s.sites = Some(0)), "sites must be at least 1");
        assert_eq!(refusal(|s| s.confirm = 0), "confirm must be at least 1");
        assert_eq!(refusal(|s| s.landmarks = 9), "landmarks must be at most the number of agents, 8, not 9");
        assert_eq!(
            refusal(|s| s.landmarks = 2),
            "landmarks must be at least 3, not 2: fewer do not determine even a place on a line"
        );
        assert_eq!(refusal(|s| s.dims = Some(4)), "dims must be below the number of landmarks, 4, not 4");
        assert_eq!(refusal(|s| s.agents = 12), "12 agents leave no site among the 12 nodes of the matrix");
        let without = |tier, name| move |s: &mut Settings| (s.tier, s.without) = (tier, vec![name]);
        assert_eq!(
            refusal(without(Tier::Plain, "cloud")),
            "without cloud: the ingredients of the tier plain are: mesh, height, log, robust, prior"
        );
        assert_eq!(refusal(without(Tier::Gnp, "height")), "without height: the ingredients of the tier gnp are: none");
        assert!(refusal(|s| s.first_seed = u64::MAX).contains("exceed the greatest seed"));
    }

    #[test]
    fn the_sites_of_all_seeds_are_counted() {
        let settings = Settings { agents: 30, seeds: 10, ..Settings::default() };
        assert_eq!(settings.sites_in_all(490), 4_600);
        assert_eq!(Settings { sites: Some(50), ..settings.clone() }.sites_in_all(490), 500);
        assert_eq!(Settings { sites: Some(500), ..settings }.sites_in_all(99), 690);
    }

    #[test]
    fn a_strategy_needs_a_node_that_has_its_input() {
        let everything = Node {
            name: Some("www.a.cn".to_owned()),
            position: Position::try_new(45.8, 126.6).ok(),
            country: None,
            address: "192.0.2.1".parse().ok(),
        };
        let nodes = [everything, Node::default()];
        assert_eq!(lacks(Strategy::Geographic, &nodes), None);
        assert_eq!(lacks(Strategy::Geographic, &nodes[1..]), Some("positions"));
        assert_eq!((lacks(Strategy::Domain, &[]), lacks(Strategy::Prefix, &[])), (Some("names"), Some("addresses")));
        assert!(Strategy::ALL.iter().all(|strategy| lacks(*strategy, &nodes).is_none()));
    }

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
