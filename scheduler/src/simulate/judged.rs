//! One seed: the drawn agents, the map's predictions for every site, and each contender's choices.

/// The results of one seed.
#[derive(Debug, Clone, PartialEq)]
pub struct SeedResult {
    pub seed: u64,
    /// Whether a map could be fitted to the landmarks' mesh; without a map, measured distances
    /// decide.
    pub mapped: bool,
    /// All sites, in the order of the matrix.
    pub sites: Vec<JudgedSite>,
}

/// One site of one seed.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedSite {
    /// Its row in the matrix, from 0.
    pub node: usize,
    /// Whether the map could locate it.
    pub located: bool,
    /// Number of landmarks that measured it.
    pub measurements: usize,
    /// The agents whose true round trip to it is known: only they are candidates and can be judged.
    pub agents: Vec<JudgedAgent>,
    /// Each contender's choice, in the order of the settings; empty without candidates.
    pub taken: Vec<ContenderChoice>,
    /// The true round trip to each contender's choice in each crawl, in milliseconds; empty if
    /// sites are crawled once.
    pub crawls: Vec<Vec<f64>>,
}

/// One agent as a candidate for one site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JudgedAgent {
    /// The agent's row in the matrix, from 0.
    pub node: usize,
    pub landmark: bool,
    /// The true round trip, in milliseconds.
    pub truth: f64,
    /// The estimate in milliseconds: a landmark's measurement, or the prediction for another agent;
    /// `None` if the map has no prediction.
    pub predicted: Option<f64>,
    /// 1 for the agent that is chosen first; `None` if its distance is unknown and another agent is
    /// chosen first.
    pub rank: Option<usize>,
}

/// A contender's choice for one site.
#[derive(Debug, Clone, PartialEq)]
pub struct ContenderChoice {
    /// The agent's row in the matrix, from 0.
    pub node: usize,
    /// The true round trip to the agent, in milliseconds; for an even draw among several agents,
    /// their mean.
    pub truth: f64,
    /// Number of measurements made for the choice: by landmarks, and by confirmers.
    pub probes: usize,
    /// The true round trips to all agents of the draw, in milliseconds; without a draw, only to the
    /// chosen agent.
    pub among: Vec<f64>,
    /// Whether the contender lacked its input, so an agent was drawn at random instead.
    pub fell_back: bool,
}
