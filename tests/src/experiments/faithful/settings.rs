//! The settings of `lab faithful`, and the cells that they define. This module does no I/O.

use std::fmt;

use anyhow::{Context, ensure};
use landfall_scheduler::model::Strategy;
use serde::{Deserialize, Serialize};

use crate::world::layout::{AgentGroup, parse_toml};

pub(super) const FAITHFUL: &str = include_str!("../../../faithful.toml");
/// Maximum length of each list in the settings, which limits the number of cells.
const MOST: usize = 10;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    pub(super) seeds: Vec<u64>,
    pub(super) sites: usize,
    /// Duration of a run, in minutes.
    pub(super) window_min: u32,
    /// Number of slots of each agent, with the paper's strategies (`slots`) and with Landfall's
    /// (`our_slots`).
    pub(super) slots: u32,
    pub(super) our_slots: u32,
    /// Number of samples that a landmark takes of a host.
    pub(super) samples: u32,
    /// Dimensions of the published map.
    pub(super) dimensions: usize,
    /// Range of the agents' access delays, in milliseconds.
    pub(super) agent_access_ms: [f64; 2],
    /// Standard deviation of the logarithm of the random number by which a path's round trip is
    /// multiplied.
    pub(super) path_spread: f64,
    /// Maximum random delay of a response, in milliseconds.
    pub(super) jitter_ms: f64,
    pub(super) published: Vec<Strategy>,
    pub(super) ours: Vec<Strategy>,
    pub(super) others: Vec<Strategy>,
    /// The suffixes of the sites' names, for the strategy `domain`.
    pub(super) suffixes: Vec<String>,
    /// Each landmark is the first agent of its city and carrier.
    pub(super) landmarks: Vec<LandmarkPlace>,
    pub(super) layouts: Vec<LayoutForm>,
    pub(super) centre: Point,
    pub(super) factors: Factors,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LandmarkPlace {
    pub(super) city: String,
    pub(super) carrier: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LayoutForm {
    pub(super) name: String,
    /// `None` means the agents of the layout file.
    pub(super) agents: Option<Vec<AgentGroup>>,
}

/// A value of every factor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Point {
    /// Rate of an agent's access link, in megabits per second.
    pub(super) access_mbit: f64,
    /// Mean size of a page, in units of 1,024 bytes.
    pub(super) page_kb: u32,
    /// The time in milliseconds that the server waits before it responds.
    pub(super) server_ms: u64,
    pub(super) connection: Connection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Connection {
    /// All requests of a crawl use one connection.
    Kept,
    /// Every request opens a new connection.
    PerRequest,
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kept => "kept",
            Self::PerRequest => "per-request",
        })
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Factors {
    access_mbit: Vec<f64>,
    page_kb: Vec<u32>,
    server_ms: Vec<u64>,
    connection: Vec<Connection>,
}

/// The rule that chooses the agents of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contender {
    /// A strategy of the paper, with the published map.
    Published(Strategy),
    /// A strategy with Landfall's map.
    Ours(Strategy),
    /// A strategy that uses no round trips.
    Other(Strategy),
    /// The truly nearest agent. While no link is saturated, no other choice of agents by round trip
    /// gives more growth.
    Nearest,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Published(strategy) | Self::Ours(strategy) | Self::Other(strategy) => strategy.fmt(f),
            Self::Nearest => f.pad("nearest in fact"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) layout: String,
    #[serde(flatten)]
    pub(super) point: Point,
    /// The name of the contender.
    pub(super) strategy: String,
    pub(super) seed: u64,
}

impl Settings {
    pub(super) fn committed() -> anyhow::Result<Self> {
        let settings: Self = parse_toml(FAITHFUL, "the settings of the cell faithful")?;
        settings.validate().context("check the settings of the cell faithful")?;
        Ok(settings)
    }

    fn validate(&self) -> anyhow::Result<()> {
        let Factors { access_mbit, page_kb, server_ms, connection } = &self.factors;
        let lists = [
            ("seeds", self.seeds.len()),
            ("published", self.published.len()),
            ("ours", self.ours.len()),
            ("others", self.others.len()),
            ("suffixes", self.suffixes.len()),
            ("layouts", self.layouts.len()),
            ("factors.access_mbit", access_mbit.len()),
            ("factors.page_kb", page_kb.len()),
            ("factors.server_ms", server_ms.len()),
            ("factors.connection", connection.len()),
        ];
        for (name, length) in lists {
            ensure!((1..=MOST).contains(&length), "{name} must have 1 to {MOST} entries, has {length}");
        }
        ensure!((1..=2000).contains(&self.sites), "sites must be 1 to 2000, is {}", self.sites);
        ensure!((2..=60).contains(&self.window_min), "window_min must be 2 to 60, is {}", self.window_min);
        ensure!((1..=100).contains(&self.samples), "samples must be 1 to 100, is {}", self.samples);
        ensure!(self.slots >= 1 && self.our_slots >= 1, "slots and our_slots must be at least 1");
        let [least, most] = self.agent_access_ms;
        ensure!(0.0 <= least && least < most, "agent_access_ms must be two ascending delays");
        ensure!((0.0..1.0).contains(&self.path_spread), "path_spread must be 0 to below 1, is {}", self.path_spread);
        ensure!((0.0..=100.0).contains(&self.jitter_ms), "jitter_ms must be 0 to 100, is {}", self.jitter_ms);
        let landmarks = self.landmarks.len();
        ensure!(self.dimensions < landmarks, "dimensions must be below the number of landmarks, {landmarks}");
        ensure!(self.product().contains(&self.centre), "centre must be made of values that the factors have");
        ensure!(access_mbit.iter().all(|rate| *rate > 0.0), "factors.access_mbit must be above 0");
        Ok(())
    }

    /// All combinations of the values of the factors.
    pub(super) fn product(&self) -> Vec<Point> {
        let Factors { access_mbit, page_kb, server_ms, connection } = &self.factors;
        let mut points = Vec::new();
        for &access_mbit in access_mbit {
            for &page_kb in page_kb {
                for &server_ms in server_ms {
                    points.extend(connection.iter().map(|&connection| Point {
                        access_mbit,
                        page_kb,
                        server_ms,
                        connection,
                    }));
                }
            }
        }
        points
    }

    /// The centre, and the points that differ from it in one factor.
    pub(super) fn around_the_centre(&self) -> Vec<Point> {
        let Point { access_mbit, page_kb, server_ms, connection } = self.centre;
        let differ = |point: &Point| {
            usize::from(point.access_mbit.to_bits() != access_mbit.to_bits())
                + usize::from(point.page_kb != page_kb)
                + usize::from(point.server_ms != server_ms)
                + usize::from(point.connection != connection)
        };
        self.product().into_iter().filter(|point| differ(point) <= 1).collect()
    }

    /// The fastest links, the smallest pages, the fastest servers and a connection per request.
    /// Round trips have the largest effect at this point.
    pub(super) fn where_distance_counts(&self) -> Point {
        let Factors { access_mbit, page_kb, server_ms, .. } = &self.factors;
        Point {
            access_mbit: access_mbit.iter().copied().fold(self.centre.access_mbit, f64::max),
            page_kb: page_kb.iter().copied().fold(self.centre.page_kb, u32::min),
            server_ms: server_ms.iter().copied().fold(self.centre.server_ms, u64::min),
            connection: Connection::PerRequest,
        }
    }

    /// The fastest links, the smallest pages and the slowest servers. At this point, the
    /// growth with `random` is about that in the paper.
    pub(super) fn slowest_servers(&self) -> Point {
        let slowest = self.factors.server_ms.iter().copied().fold(self.centre.server_ms, u64::max);
        Point { server_ms: slowest, ..self.where_distance_counts() }
    }

    pub(super) fn contenders(&self) -> impl Iterator<Item = Contender> {
        let published = self.published.iter().copied().map(Contender::Published);
        let ours = self.ours.iter().copied().map(Contender::Ours);
        let others = self.others.iter().copied().map(Contender::Other);
        published.chain(ours).chain(others).chain([Contender::Nearest])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_settings_have_the_papers_fleet_and_the_issues_factors() {
        let settings = Settings::committed().unwrap();
        assert_eq!((settings.product().len(), settings.around_the_centre().len()), (48, 8));
        assert_eq!(settings.landmarks.len(), 9);
        for layout in &settings.layouts {
            let agents = layout.agents.iter().flatten();
            assert!(layout.agents.is_none() || agents.map(|group| group.count).sum::<usize>() == 30);
        }
    }

    #[test]
    fn a_wrong_setting_is_named() {
        let refused = |text: String| format!("{:#}", parse_toml::<Settings>(&text, "faithful.toml").unwrap_err());
        let error = refused(FAITHFUL.replace("jitter_ms", "jiter_ms"));
        assert!(error.starts_with("faithful.toml: line ") && error.contains("jiter_ms"), "{error}");
        let error = refused(FAITHFUL.replace("\"gnp-top3\"]", "\"gnp-top0\"]"));
        assert!(error.contains("'gnp-top0' is not gnp-topK"), "{error}");
        let mut settings = Settings::committed().unwrap();
        settings.landmarks.pop();
        assert!(settings.validate().unwrap_err().to_string().starts_with("dimensions must be below"));
    }
}
