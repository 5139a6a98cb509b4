//! The settings of the paper's experiments, and the cells that they define. This module does no I/O
//! other than reading matrices.

use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use landfall_scheduler::model::Strategy;
use landfall_scheduler::simulate::Matrix;
use serde::{Deserialize, Serialize};

use crate::world::scenario::{Layout, PAPER, Scenario, SiteNode, parse_toml};
use crate::world::site_pages::WebRules;

pub const EXPERIMENTS: &str = include_str!("../../../experiments.toml");
const KIB: f64 = 1024.0;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Growth is measured until this fraction of the bytes of a batch has arrived. The fraction is
    /// above 0 and at most 1.
    pub growth_share: f64,
    /// One run per seed. The seed draws the positions and contents of the sites; in a layout with a
    /// matrix, it also draws which nodes of the matrix are agents and sites.
    pub seeds: Vec<u64>,
    pub strategies: Vec<Strategy>,
    /// Number of agents in each cell.
    pub agents: usize,
    /// Number of sites in each cell.
    pub sites: usize,
    pub landmarks: usize,
    /// Number of seeds with which the paper's Tables 1 and 2 are computed.
    pub table_seeds: u64,
    pub layouts: Vec<LayoutRules>,
    /// The base cell. Other cells differ from it in one factor.
    pub base: Point,
    pub factors: Factors,
    /// Number of slots of each agent.
    pub slots: Slots,
    pub web: WebSettings,
}

/// A layout. `site_nodes` is the number of nodes of the matrix that become sites. The paper's
/// layout has neither a matrix nor `site_nodes`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutRules {
    name: String,
    matrix: Option<String>,
    site_nodes: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Multiplier of the layout's packet loss.
    pub loss: f64,
    /// Mean size of a page, in units of 1,024 bytes.
    pub page_kb: u32,
    /// Maximum number of requests per second to one site.
    pub per_site_rps: RequestRate,
    /// Rate of an agent's access link, in megabits per second.
    pub access_mbit: f64,
}

/// Maximum number of requests per second to a site. `None` (null in JSON, "unthrottled" in the
/// settings) means no limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestRate(pub Option<f64>);

#[derive(Deserialize)]
#[serde(untagged)]
enum RateOrWord {
    Rate(f64),
    Word(String),
}

impl<'de> Deserialize<'de> for RequestRate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<RateOrWord>::deserialize(deserializer)? {
            None => Ok(Self(None)),
            Some(RateOrWord::Rate(rate)) => Ok(Self(Some(rate))),
            Some(RateOrWord::Word(word)) if word == "unthrottled" => Ok(Self(None)),
            Some(RateOrWord::Word(word)) => {
                Err(serde::de::Error::custom(format!("'{word}' is neither a number nor \"unthrottled\"")))
            }
        }
    }
}

impl Serialize for RequestRate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl fmt::Display for RequestRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rate) => rate.fmt(f),
            None => f.write_str("unthrottled"),
        }
    }
}

impl RequestRate {
    pub fn is_unthrottled(self) -> bool {
        self.0.is_none()
    }

    /// Minimum time between two requests to a site, in seconds.
    pub fn interval_s(self) -> f64 {
        self.0.map_or(0.0, |rate| 1.0 / rate)
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Factors {
    /// Multipliers of the layout's packet loss.
    pub loss: Vec<f64>,
    /// Mean size of a page, in units of 1,024 bytes.
    pub page_kb: Vec<u32>,
    /// Maximum number of requests per second to one site.
    pub per_site_rps: Vec<RequestRate>,
    /// Rate of an agent's access link, in megabits per second.
    pub access_mbit: Vec<f64>,
}

/// Number of slots of each agent.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slots {
    /// Number of slots in cells without a limit on requests per second.
    pub unthrottled: NonZeroU32,
    pub throttled: NonZeroU32,
}

/// The rules for the content of sites, without the page size, which is a factor.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebSettings {
    mean_pages: f64,
    pages_sigma: f64,
    max_pages: usize,
    bytes_sigma: f64,
    max_bytes: usize,
    broken_share: f64,
    slow_share: f64,
    slow_ms: u64,
    robots_share: f64,
    /// Maximum number of links from the start page to a crawled page.
    pub max_depth: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    pub layout: String,
    #[serde(flatten)]
    pub point: Point,
    pub strategy: String,
    pub seed: u64,
}

#[derive(Debug, Clone)]
pub struct LayoutData {
    pub name: String,
    /// The matrix, and the number of its nodes that become sites; `None` for the paper's layout.
    matrix: Option<(Matrix, usize)>,
}

impl Settings {
    pub fn committed() -> anyhow::Result<Self> {
        Self::parse(EXPERIMENTS)
    }

    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let settings: Self = parse_toml(text, "the experiments' settings")?;
        settings.validate().context("check the experiments' settings")?;
        Ok(settings)
    }

    fn validate(&self) -> anyhow::Result<()> {
        ensure!(self.growth_share > 0.0 && self.growth_share <= 1.0, "growth_share must be above 0 and at most 1");
        let lists = [
            ("seeds", self.seeds.len()),
            ("strategies", self.strategies.len()),
            ("layouts", self.layouts.len()),
            ("factors.loss", self.factors.loss.len()),
            ("factors.page_kb", self.factors.page_kb.len()),
            ("factors.per_site_rps", self.factors.per_site_rps.len()),
            ("factors.access_mbit", self.factors.access_mbit.len()),
        ];
        for (name, length) in lists {
            ensure!((1..=10).contains(&length), "{name} must have 1 to 10 entries, has {length}");
        }
        ensure!((10..=250).contains(&self.agents), "agents must be 10 to 250, but is {}", self.agents);
        ensure!((1..=2000).contains(&self.sites), "sites must be 1 to 2000, but is {}", self.sites);
        ensure!(
            (4..=self.agents).contains(&self.landmarks),
            "landmarks must be 4 to agents, but is {}",
            self.landmarks
        );
        ensure!((1..=1000).contains(&self.table_seeds), "table_seeds must be 1 to 1000, but is {}", self.table_seeds);
        ensure!(self.strategies.contains(&Strategy::Random), "strategies must have random, the yardstick");
        for layout in &self.layouts {
            let (name, own) = (&layout.name, layout.name == "paper");
            ensure!(own == layout.matrix.is_none(), "layouts: {name}: every layout but the paper's has a matrix");
            ensure!(own == layout.site_nodes.is_none(), "layouts: {name}: site_nodes goes with a matrix");
            ensure!(layout.site_nodes != Some(0), "layouts: {name}: site_nodes must be at least 1");
        }
        ensure!(self.web.max_depth >= 1, "web.max_depth must be at least 1");
        let Factors { loss, page_kb, per_site_rps, access_mbit } = &self.factors;
        for point in self.one_at_a_time().into_iter().chain([self.base]) {
            point.validate()?;
            self.web_rules(point)?;
        }
        let Point { loss: l, page_kb: p, per_site_rps: r, access_mbit: a } = self.base;
        let there = loss.contains(&l) && page_kb.contains(&p) && per_site_rps.contains(&r) && access_mbit.contains(&a);
        ensure!(there, "base must be made of values that the factors have");
        Ok(())
    }

    /// The base cell, followed by the cells that differ from it in one factor.
    pub fn one_at_a_time(&self) -> Vec<Point> {
        let base = self.base;
        let Factors { loss, page_kb, per_site_rps, access_mbit } = &self.factors;
        let mut points = vec![base];
        points.extend(loss.iter().map(|&loss| Point { loss, ..base }));
        points.extend(page_kb.iter().map(|&page_kb| Point { page_kb, ..base }));
        points.extend(per_site_rps.iter().map(|&per_site_rps| Point { per_site_rps, ..base }));
        points.extend(access_mbit.iter().map(|&access_mbit| Point { access_mbit, ..base }));
        let mut once: Vec<Point> = Vec::new();
        for point in points {
            if !once.contains(&point) {
                once.push(point);
            }
        }
        once
    }

    /// All combinations of the values of the factors.
    pub fn product(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for &loss in &self.factors.loss {
            for &page_kb in &self.factors.page_kb {
                for &per_site_rps in &self.factors.per_site_rps {
                    points.extend(self.factors.access_mbit.iter().map(|&access_mbit| Point {
                        loss,
                        page_kb,
                        per_site_rps,
                        access_mbit,
                    }));
                }
            }
        }
        points
    }

    pub fn slots(&self, rate: RequestRate) -> u32 {
        if rate.is_unthrottled() { self.slots.unthrottled.get() } else { self.slots.throttled.get() }
    }

    pub fn web_rules(&self, point: Point) -> anyhow::Result<WebRules> {
        let WebSettings { mean_pages, pages_sigma, max_pages, bytes_sigma, max_bytes, .. } = self.web;
        let WebSettings { broken_share, slow_share, slow_ms, robots_share, .. } = self.web;
        let mean_bytes = f64::from(point.page_kb) * KIB;
        let rules = WebRules {
            mean_pages,
            pages_sigma,
            max_pages,
            mean_bytes,
            bytes_sigma,
            max_bytes,
            broken_share,
            slow_share,
            slow_ms,
            robots_share,
        };
        rules.validate()?;
        Ok(rules)
    }

    /// Reads the layouts whose files exist. The second result has a message for each layout whose
    /// file is missing.
    pub fn available_layouts(&self, data: &Path) -> anyhow::Result<(Vec<LayoutData>, Vec<String>)> {
        let (mut available, mut missing) = (Vec::new(), Vec::new());
        for LayoutRules { name, matrix, site_nodes } in &self.layouts {
            let (Some(file), Some(nodes)) = (matrix, site_nodes) else {
                available.push(LayoutData { name: name.clone(), matrix: None });
                continue;
            };
            let path = data.join(file);
            if path.exists() {
                available.push(LayoutData { name: name.clone(), matrix: Some((Matrix::read(&path)?, *nodes)) });
            } else {
                missing.push(format!("{name} is left out: {} does not exist", path.display()));
            }
        }
        Ok((available, missing))
    }

    pub fn scenario(&self, layout: &LayoutData, seed: u64, point: Point) -> anyhow::Result<Scenario> {
        let mut scenario = match &layout.matrix {
            None => {
                let mut layout = Layout::parse(PAPER, "paper.toml")?;
                layout.seed = seed;
                layout.scenario(Some(self.agents), Some(self.sites))?
            }
            Some((matrix, nodes)) => {
                let drawn = Scenario::from_matrix(matrix, &layout.name, seed, self.agents, *nodes)?;
                spread_over(drawn, self.sites)
            }
        };
        scenario.agent_bytes_per_s = point.access_mbit * 1e6 / 8.0;
        scenario.web = self.web_rules(point)?;
        let links = scenario.mesh.iter_mut().chain(&mut scenario.paths).flatten();
        links.for_each(|link| link.loss = (link.loss * point.loss).min(1.0));
        Ok(scenario)
    }
}

impl LayoutData {
    pub fn matrix(&self) -> Option<&Matrix> {
        self.matrix.as_ref().map(|(matrix, _)| matrix)
    }
}

impl Point {
    fn validate(self) -> anyhow::Result<()> {
        let Self { loss, page_kb, per_site_rps, access_mbit } = self;
        if !(0.0..=50.0).contains(&loss) {
            bail!("loss must be from 0 to 50 times the layout's, but is {loss}");
        }
        ensure!((1..=1000).contains(&page_kb), "page_kb must be 1 to 1000, but is {page_kb}");
        ensure!((0.1..=1000.0).contains(&access_mbit), "access_mbit must be 0.1 to 1000, but is {access_mbit}");
        if let Some(rate) = per_site_rps.0 {
            ensure!(
                (0.01..=100.0).contains(&rate),
                "per_site_rps must be 0.01 to 100 or \"unthrottled\", but is {rate}"
            );
        }
        Ok(())
    }
}

/// Replaces the sites of a scenario with `sites` copies of them. Each copy has its own machine, but
/// the same round trips as the original site.
fn spread_over(mut scenario: Scenario, sites: usize) -> Scenario {
    let nodes = scenario.sites.clone();
    let count = nodes.len();
    scenario.sites = (0..sites)
        .map(|machine| {
            let node = &nodes[machine % count];
            let host = match machine / count {
                0 => node.host.clone(),
                more => format!("s{more}.{}", node.host),
            };
            SiteNode { host, city: node.city.clone(), carrier: node.carrier.clone(), machine }
        })
        .collect();
    for row in &mut scenario.paths {
        *row = (0..sites).map(|site| row[site % count]).collect();
    }
    scenario
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::figures::float;

    fn refused(change: (&str, &str)) -> String {
        let text = EXPERIMENTS.replacen(change.0, change.1, 1);
        assert_ne!(text, EXPERIMENTS, "{change:?}");
        format!("{:#}", Settings::parse(&text).unwrap_err())
    }

    #[test]
    fn the_committed_settings_are_valid() {
        let settings = Settings::committed().unwrap();
        assert_eq!(settings.one_at_a_time().len(), 9);
        assert_eq!(settings.product().len(), 81);
        assert_eq!(settings.one_at_a_time()[0], settings.base);
        // The lab can answer all requests on time only if there are fewer than about 1,000 per
        // second.
        for rate in settings.factors.per_site_rps.iter().filter_map(|rate| rate.0) {
            assert!(rate * float(settings.sites) < 1000.0);
        }
    }

    #[test]
    fn an_invalid_setting_is_refused_by_name() {
        let cases = [
            (("growth_share = 0.9", "growth_share = 1.9"), "growth_share must be above 0 and at most 1"),
            (("seeds = [1, 2, 3]", "seeds = []"), "seeds must have 1 to 10 entries"),
            (("\"gnp-top3\"", "\"gnp-top0\""), "'gnp-top0' is not gnp-topK"),
            (("\"random\", ", ""), "the yardstick"),
            (("landmarks = 9", "landmark = 9"), "landmark"),
            (("max_pages = 50", "max_pages = 50\nmore = 1"), "more"),
            (("per_site_rps = \"unthrottled\"", "per_site_rps = \"fast\""), "'fast' is neither a number"),
            (("per_site_rps = \"unthrottled\"", "per_site_rps = 0"), "per_site_rps must be 0.01 to 100"),
            (("access_mbit = 20.0", "access_mbit = 21.0"), "base must be made of values that the factors have"),
            (("site_nodes = 69", ""), "site_nodes goes with a matrix"),
            (("loss = [0.5", "loss = [-0.5"), "loss must be from 0 to 50"),
            (("unthrottled = 1", "unthrottled = 0"), "nonzero"),
        ];
        for (change, complaint) in cases {
            let error = refused(change);
            assert!(error.contains(complaint), "{change:?}: {error}");
        }
    }

    #[test]
    fn a_point_changes_loss_pages_and_access_but_no_distance() {
        let settings = Settings::committed().unwrap();
        let layout = LayoutData { name: "paper".to_owned(), matrix: None };
        let base = settings.scenario(&layout, 2, settings.base).unwrap();
        let other = Point { loss: 2.0, page_kb: 50, access_mbit: 5.0, ..settings.base };
        let other = settings.scenario(&layout, 2, other).unwrap();
        assert_eq!(base.sites.len(), 203);
        assert!((base.agent_bytes_per_s - 2.5e6).abs() < 1e-6 && (other.agent_bytes_per_s - 0.625e6).abs() < 1e-6);
        for (row, changed) in base.paths.iter().zip(&other.paths) {
            for (link, changed) in row.iter().zip(changed) {
                assert_eq!(link.rtt_ms.to_bits(), changed.rtt_ms.to_bits());
                assert!((changed.loss - 2.0 * link.loss).abs() < 1e-12);
            }
        }
        let drawn = settings.scenario(&layout, 3, settings.base).unwrap();
        assert!(drawn.sites.iter().zip(&base.sites).any(|(one, other)| one.host != other.host));
    }

    #[test]
    fn more_sites_than_nodes_share_the_nodes_in_turn() {
        let settings = Settings::committed().unwrap();
        let matrix = Matrix::of(40, |a, b| Some(10.0 * float(a.abs_diff(b))));
        let layout = LayoutData { name: "line".to_owned(), matrix: Some((matrix, 10)) };
        let scenario = settings.scenario(&layout, 1, settings.base).unwrap();
        assert_eq!((scenario.sites.len(), scenario.machines()), (203, 203));
        assert_eq!(scenario.paths[4][3].rtt_ms.to_bits(), scenario.paths[4][193].rtt_ms.to_bits());
        let hosts: std::collections::BTreeSet<_> = scenario.sites.iter().map(|site| &site.host).collect();
        assert_eq!(hosts.len(), 203);
    }

    #[test]
    fn a_cell_has_the_expected_json() {
        let settings = Settings::committed().unwrap();
        let cell = Cell { layout: "paper".to_owned(), point: settings.base, strategy: "random".to_owned(), seed: 1 };
        let text = serde_json::to_string(&cell).unwrap();
        let expected = r#"{"layout":"paper","loss":1.0,"page_kb":20,"per_site_rps":null,"access_mbit":20.0,"strategy":"random","seed":1}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Cell>(&text).unwrap(), cell);
    }
}
