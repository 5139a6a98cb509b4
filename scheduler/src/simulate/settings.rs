//! What a simulation is asked to do, checked before anything runs.

use std::num::NonZeroUsize;
use std::str::FromStr;

use super::nodes::{Node, lacks};
use super::{Draw, DrawError, Matrix};
use crate::gnp::{self, Ingredients};
use crate::model::Strategy;

/// Landmarks below which the scheduler makes no map.
const FEWEST_LANDMARKS: usize = gnp::FEWEST_LANDMARKS;

/// What to draw, how to map it and whom to judge. The report is a function of these and the matrix.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Agents drawn for each seed.
    pub agents: usize,
    /// Landmarks elected among them.
    pub landmarks: usize,
    /// Dimensions of the plain map; `None` for those that so many landmarks get by default.
    pub dims: Option<usize>,
    /// The first seed.
    pub first_seed: u64,
    /// How many seeds, one after another.
    pub seeds: u64,
    /// Sites judged for each seed, drawn among all; `None` for all.
    pub sites: Option<usize>,
    /// Who is judged.
    pub strategies: Vec<Strategy>,
    /// Which map predicts.
    pub tier: Tier,
    /// What the refined map is made without, as [`ingredient`] knows the names.
    pub without: Vec<&'static str>,
    /// How landmarks are chosen.
    pub election: Election,
    /// Agents that `gnp-confirmed` asks to measure a site.
    pub confirm: usize,
    /// How often each site is crawled, each time with what the crawls before taught.
    pub crawls: usize,
    /// What is known of the nodes besides round trips, in the matrix's order; empty where nothing is.
    pub nodes: Vec<Node>,
    /// Seeds that run at once; the report does not depend on it.
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
            tier: Tier::default(),
            without: Vec::new(),
            election: Election::default(),
            confirm: 3,
            crawls: 1,
            nodes: Vec::new(),
            threads: NonZeroUsize::MIN,
        }
    }
}

/// Settings that make no sense, by themselves or for this matrix. Every message names the setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A number that must not be zero is.
    #[error("{setting} must be at least 1")]
    Zero {
        /// Which.
        setting: &'static str,
    },
    /// The last seed is beyond what a seed can be.
    #[error("first-seed {first} and {seeds} seeds go beyond the greatest seed, {}", u64::MAX)]
    SeedsBeyondRange {
        /// The first seed.
        first: u64,
        /// How many.
        seeds: u64,
    },
    /// Too few landmarks for any map.
    #[error("landmarks must be at least {}, is {landmarks}: fewer leave even a line open", FEWEST_LANDMARKS)]
    TooFewLandmarks {
        /// Landmarks asked.
        landmarks: usize,
    },
    /// Landmarks are agents.
    #[error("landmarks must be at most the number of agents, {agents}, is {landmarks}")]
    MoreLandmarksThanAgents {
        /// Landmarks asked.
        landmarks: usize,
        /// Agents there are.
        agents: usize,
    },
    /// More dimensions than the landmarks can span.
    #[error("dims must be below the number of landmarks, {landmarks}, is {dims}")]
    TooManyDimensions {
        /// Dimensions asked.
        dims: usize,
        /// Landmarks there are.
        landmarks: usize,
    },
    /// A matrix has neither names, positions nor addresses, and neither have its nodes.
    #[error("strategy {}: it goes by {lacks}, which a matrix of round trips does not say, and no node's is known", strategy.name())]
    NotOfAMatrix {
        /// Which.
        strategy: Strategy,
        /// What it goes by.
        lacks: &'static str,
    },
    /// Nodes are told of, but not as many as there are.
    #[error("nodes: {told} are told of where the matrix has {nodes}")]
    OtherNodes {
        /// So many are told of.
        told: usize,
        /// So many there are.
        nodes: usize,
    },
    /// The plain map has nothing that could be left out.
    #[error("without {ingredient}: only the refined tier has ingredients")]
    NothingToLeaveOut {
        /// What was to be left out.
        ingredient: &'static str,
    },
    /// The matrix is too small.
    #[error(transparent)]
    Draw(#[from] DrawError),
}

impl Settings {
    /// Checks every setting.
    ///
    /// # Errors
    /// With the first that makes no sense.
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
            return Err(SettingsError::Zero { setting });
        }
        if self.first_seed.checked_add(self.seeds - 1).is_none() {
            return Err(SettingsError::SeedsBeyondRange { first: self.first_seed, seeds: self.seeds });
        }
        let &Self { agents, landmarks, .. } = self;
        if landmarks < FEWEST_LANDMARKS {
            return Err(SettingsError::TooFewLandmarks { landmarks });
        }
        if landmarks > agents {
            return Err(SettingsError::MoreLandmarksThanAgents { landmarks, agents });
        }
        if let Some(dims) = self.dims.filter(|dims| *dims >= landmarks) {
            return Err(SettingsError::TooManyDimensions { dims, landmarks });
        }
        if let (Tier::Plain, Some(&ingredient)) = (self.tier, self.without.first()) {
            return Err(SettingsError::NothingToLeaveOut { ingredient });
        }
        if !self.nodes.is_empty() && self.nodes.len() != matrix.nodes() {
            return Err(SettingsError::OtherNodes { told: self.nodes.len(), nodes: matrix.nodes() });
        }
        let lacking = |strategy: &Strategy| lacks(*strategy, &self.nodes).map(|lacks| (*strategy, lacks));
        if let Some((strategy, lacks)) = self.strategies.iter().find_map(lacking) {
            return Err(SettingsError::NotOfAMatrix { strategy, lacks });
        }
        Draw::new(matrix, agents, self.first_seed)?;
        Ok(())
    }

    /// Dimensions of the plain map.
    pub fn dimensions(&self) -> usize {
        self.dims.unwrap_or_else(|| gnp::default_dimensions(self.landmarks))
    }

    /// What the refined map is made of.
    pub(super) fn ingredients(&self) -> Ingredients {
        let less = |all: Ingredients, name: &&'static str| all.without(name).unwrap_or(all);
        self.without.iter().fold(Ingredients::default(), less)
    }

    /// Sites judged in all seeds together, of a matrix of this many nodes.
    pub fn sites_in_all(&self, nodes: usize) -> u64 {
        let each = nodes.saturating_sub(self.agents);
        let each = u64::try_from(self.sites.map_or(each, |most| each.min(most))).unwrap_or(u64::MAX);
        each.saturating_mul(self.seeds)
    }
}

/// The strategies that can be judged: of a matrix alone not those that go by what stands in none.
pub fn judged(nodes: &[Node]) -> impl Iterator<Item = Strategy> {
    Strategy::ALL.into_iter().filter(move |strategy| lacks(*strategy, nodes).is_none())
}

/// A name that is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} '{name}': known are {known}")]
pub struct UnknownName {
    /// Of what.
    pub kind: &'static str,
    /// As given.
    pub name: String,
    /// Every known name.
    pub known: String,
}

/// Finds a name among those of `all`.
fn named<T: Copy>(kind: &'static str, all: &[T], name_of: fn(T) -> &'static str, name: &str) -> Result<T, UnknownName> {
    all.iter().copied().find(|&one| name_of(one) == name).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|&one| name_of(one)).collect();
        UnknownName { kind, name: name.to_owned(), known: known.join(", ") }
    })
}

/// An ingredient of the refined map by its name.
pub fn ingredient(name: &str) -> Result<&'static str, UnknownName> {
    named("ingredient", &Ingredients::NAMES, |name| name, name)
}

/// Which of the two maps predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tier {
    /// One point a host.
    Plain,
    /// A cloud of points a site, corrected by what the map gets wrong between agents: what the scheduler chooses by.
    #[default]
    Refined,
}

impl Tier {
    /// Every tier.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Refined];

    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Refined => "refined",
        }
    }
}

impl FromStr for Tier {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        named("tier", &Self::ALL, Self::name, name)
    }
}

/// How landmarks are chosen among the agents, from their mesh alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Election {
    /// The scheduler's own: k-medoids, improved by agents held out as sites.
    #[default]
    Improved,
    /// k-medoids with nothing beside.
    KMedoids,
    /// Drawn by the seed.
    Random,
    /// Each the farthest from those before it: a known trap, here to be compared with.
    Farthest,
}

impl Election {
    /// Every election.
    pub const ALL: [Self; 4] = [Self::Improved, Self::KMedoids, Self::Random, Self::Farthest];

    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Improved => "improved",
            Self::KMedoids => "kmedoids",
            Self::Random => "random",
            Self::Farthest => "farthest",
        }
    }
}

impl FromStr for Election {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        named("election", &Self::ALL, Self::name, name)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn refusal(change: impl FnOnce(&mut Settings)) -> String {
        let line =
            |row: usize| (0..12).map(|column| if row == column { "0" } else { "5" }).collect::<Vec<_>>().join(",");
        let text = (0..12).map(line).collect::<Vec<_>>().join("\n");
        let matrix = Matrix::parse(Path::new("m.csv"), text.as_bytes()).unwrap();
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
        assert_eq!(refusal(|s| s.landmarks = 9), "landmarks must be at most the number of agents, 8, is 9");
        assert_eq!(refusal(|s| s.landmarks = 2), "landmarks must be at least 3, is 2: fewer leave even a line open");
        assert_eq!(refusal(|s| s.dims = Some(4)), "dims must be below the number of landmarks, 4, is 4");
        assert_eq!(refusal(|s| s.agents = 12), "12 agents leave no site among the 12 nodes of the matrix");
        let without = |s: &mut Settings| (s.tier, s.without) = (Tier::Plain, vec!["height"]);
        assert_eq!(refusal(without), "without height: only the refined tier has ingredients");
        assert!(refusal(|s| s.first_seed = u64::MAX).contains("beyond the greatest seed"));
    }

    #[test]
    fn names_are_known_and_unknown_ones_answered_with_those_that_are() {
        assert!(Tier::ALL.into_iter().all(|one| one.name().parse() == Ok(one)));
        assert!(Election::ALL.into_iter().all(|one| one.name().parse() == Ok(one)));
        assert_eq!(ingredient("cloud"), Ok("cloud"));
        assert!(
            ingredient("salt").unwrap_err().to_string().starts_with("unknown ingredient 'salt': known are height, ")
        );
        assert!("".parse::<Election>().unwrap_err().to_string().starts_with("unknown election ''"));
    }

    #[test]
    fn the_sites_of_all_seeds_are_counted() {
        let settings = Settings { agents: 30, seeds: 10, ..Settings::default() };
        assert_eq!(settings.sites_in_all(490), 4_600);
        assert_eq!(Settings { sites: Some(50), ..settings.clone() }.sites_in_all(490), 500);
        assert_eq!(Settings { sites: Some(500), ..settings }.sites_in_all(99), 690);
    }
}
