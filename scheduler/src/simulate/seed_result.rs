//! The results of one seed: the drawn agents, the map's predictions for every site, and the
//! compared strategies' choices.

#[derive(Debug, Clone, PartialEq)]
pub struct SeedResult {
    pub seed: u64,
    /// Whether a map could be fitted. Without a map, agents are chosen by measured distances.
    pub mapped: bool,
    /// All sites, in the order of the matrix.
    pub sites: Vec<JudgedSite>,
}

/// One site of one seed.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedSite {
    /// The site's row number in the matrix, from 0.
    pub node: usize,
    /// Whether the map could locate the site.
    pub located: bool,
    /// Number of landmarks that measured the site.
    pub measurements: usize,
    /// The agents with a known true round trip to the site. Only these agents are candidates,
    /// because a choice is judged by the true round trip.
    pub agents: Vec<JudgedAgent>,
    /// The choices of the compared strategies, in the order of the settings; empty without
    /// candidates.
    pub taken: Vec<ContenderChoice>,
    /// For each compared strategy, the true round trip to the chosen agent in each crawl, in
    /// milliseconds; empty if sites are crawled only once.
    pub crawls: Vec<Vec<f64>>,
}

/// One agent as a candidate for one site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JudgedAgent {
    /// The agent's row number in the matrix, from 0.
    pub node: usize,
    pub landmark: bool,
    /// The true round trip, in milliseconds.
    pub truth: f64,
    /// The estimated round trip in milliseconds: a landmark's measurement, or the prediction for
    /// another agent; `None` if the map has no prediction.
    pub predicted: Option<f64>,
    /// The agent's rank by distance, from 1; `None` if the agent's distance is unknown. If no
    /// distance is known, a randomly drawn agent has rank 1.
    pub rank: Option<usize>,
}

/// A compared strategy's choice for one site.
#[derive(Debug, Clone, PartialEq)]
pub struct ContenderChoice {
    /// The chosen agent's row number in the matrix, from 0.
    pub node: usize,
    /// The true round trip to the chosen agent, in milliseconds. If agents are drawn with equal
    /// probability, it is the mean over all agents that could be drawn.
    pub truth: f64,
    /// Number of measurements made for the choice, by landmarks and by confirmers.
    pub probes: usize,
    /// The true round trips to all agents that could be drawn, in milliseconds; without a draw, the
    /// round trip to the chosen agent.
    pub among: Vec<f64>,
    /// Whether the choice was made by a fallback, because the strategy lacked its input.
    pub fell_back: bool,
}
