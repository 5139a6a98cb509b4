//! The network of a cell, and the round trips that the scheduler knows. This module does no I/O.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Context;
use landfall_agent::probe::weighted_mean::{literal, weighted_mean};
use landfall_scheduler::gnp::{Direction, PlainSwitches, Position, SitePlace, fit_with};
use landfall_scheduler::model::seed::spread;
use landfall_scheduler::model::{EmbeddingEpoch, Rtt, Strategy};
use landfall_scheduler::strategy::{AgentLocation, Candidate, Site, choose};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::settings::{LayoutForm, Point, Settings};
use crate::experiments::sweep::measured::{Landmarks, LayoutMeasurements, agent_id};
use crate::experiments::sweep::survey::Survey;
use crate::world::layout::{City, Layout, PAPER};
use crate::world::scenario::{AgentNode, Link, Scenario, SiteNode};
use crate::world::web::{SiteRequest, SiteWeb, normal};

/// Streams of the random generator, one for each kind of drawn values.
const DELAYS: u64 = 1;
const PATHS: u64 = 2;
const PUBLISHED: u64 = 3;
const OURS: u64 = 4;
const SUFFIXES: u64 = 5;
/// The carrier of universities.
const ACADEMIC: &str = "CERNET";
/// Number of pages of a site. A crawl repeats them without end.
const PAGES: usize = 50;

/// The network of all cells of a layout and a seed. `at` sets the rate of access links and the page
/// size of a cell.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) scenario: Scenario,
    /// The round trips that the published system knows.
    pub(super) published: Survey,
    /// The round trips that Landfall knows: before and after all sites are confirmed.
    pub(super) ours: Survey,
    pub(super) confirmed: Survey,
    /// The true round trips.
    pub(super) exact: Survey,
    /// The cities of the layout, with their coordinates.
    cities: Vec<City>,
    /// The names of the sites, with the suffixes of the settings.
    hosts: Vec<String>,
}

impl Network {
    pub(super) fn new(settings: &Settings, form: &LayoutForm, seed: u64) -> anyhow::Result<Self> {
        let scenario = scenario(settings, form, seed)?;
        let by_hand = landmarks(settings, &form.name, &scenario)?;
        let samples = |stream| {
            let mut rng = stream_of(seed, stream);
            move |link: &Link| samples(link, settings, &mut rng)
        };
        let mut drawn = samples(PUBLISHED);
        let by_paper = |link: &Link| literal(&drawn(link)).unwrap_or_default().as_secs_f64() * 1e3;
        let measured = LayoutMeasurements::taken(&scenario, Landmarks::ByHand(&by_hand), by_paper)?;
        let published = published(settings, &scenario, &measured, seed).context("fit the published map")?;
        let mut drawn = samples(OURS);
        let by_us = |link: &Link| weighted_mean(&drawn(link)).map_or(0.0, |mean| mean.rtt.as_secs_f64() * 1e3);
        let measured = LayoutMeasurements::taken(&scenario, Landmarks::Elected(by_hand.len()), by_us)?;
        let ours = Survey::of(&scenario, &measured)?;
        let confirmed = ours.all_confirmed(&scenario);
        let exact = exact(&scenario);
        let (cities, hosts) = (layout(settings, form, seed)?.cities, hosts(settings, &scenario, seed));
        Ok(Self { scenario, published, ours, confirmed, exact, cities, hosts })
    }

    /// A network whose surveys all have exact round trips, so that no map is fitted.
    #[cfg(test)]
    pub(super) fn with_exact_distances(settings: &Settings, form: &LayoutForm, seed: u64) -> anyhow::Result<Self> {
        let scenario = scenario(settings, form, seed)?;
        let [published, ours, confirmed, exact] = std::array::from_fn(|_| exact(&scenario));
        let hosts = hosts(settings, &scenario, seed);
        Ok(Self { scenario, published, ours, confirmed, exact, cities: Vec::new(), hosts })
    }

    pub(super) fn at(&self, point: Point) -> Scenario {
        let mut scenario = self.scenario.clone();
        scenario.agent_bytes_per_s = point.access_mbit * 1e6 / 8.0;
        scenario.web.mean_bytes = f64::from(point.page_kb) * 1024.0;
        scenario
    }

    /// The survey for a strategy that chooses agents without round trips. For each site, only the
    /// chosen agent's round trip is known, so that this agent counts as the nearest.
    pub(super) fn chosen(&self, strategy: Strategy, seed: u64) -> anyhow::Result<Survey> {
        let position = |name: &str| {
            let city = self.cities.iter().find(|city| city.name == name)?;
            Position::try_new(city.latitude, city.longitude).ok()
        };
        let blocks = AddressBlocks::of(&self.scenario);
        let home = |agent: &AgentNode| AgentLocation {
            direction: position(&agent.city).map(Direction::from),
            address: blocks.address(&agent.city, &agent.carrier),
            ..AgentLocation::default()
        };
        let agents = self.scenario.agents.iter().enumerate();
        let agents: Vec<Candidate> = agents
            .map(|(index, agent)| Candidate { home: home(agent), ..Candidate::new(agent_id(index), 1) })
            .collect();
        let near = Rtt::try_new(Duration::from_millis(1))?;
        let known = |(number, (node, host)): (u64, (&SiteNode, &String))| {
            let address = blocks.address(&node.city, &node.carrier);
            let site = Site { host, address, position: position(&node.city), ..Site::default() };
            let choice = choose(strategy, &site, &agents, spread(seed.rotate_left(32) ^ number))?;
            let one = |agent: &Candidate| Candidate {
                measured: (agent.agent == choice.agent).then_some(near),
                ..Candidate::new(agent.agent, 1)
            };
            choice.fallback.is_none().then(|| agents.iter().map(one).collect())
        };
        let sites = self.scenario.sites.iter().zip(&self.hosts);
        let known = (0..).zip(sites).map(known).collect::<Option<_>>();
        Ok(Survey::given(known.with_context(|| format!("the layout lacks what {strategy} needs"))?))
    }
}

/// Gives each carrier a block of IPv4 addresses, and each city a part of every block.
struct AddressBlocks<'a> {
    carriers: BTreeSet<&'a str>,
    cities: BTreeSet<&'a str>,
}

impl<'a> AddressBlocks<'a> {
    fn of(scenario: &'a Scenario) -> Self {
        let agents = scenario.agents.iter().map(|agent| (agent.carrier.as_str(), agent.city.as_str()));
        let sites = scenario.sites.iter().map(|site| (site.carrier.as_str(), site.city.as_str()));
        let (carriers, cities) = agents.chain(sites).unzip();
        Self { carriers, cities }
    }

    /// An address of the carrier in the city: the first byte is the number of the carrier, and the
    /// second byte is the number of the city.
    fn address(&self, city: &str, carrier: &str) -> Option<IpAddr> {
        let number = |names: &BTreeSet<&str>, name| u8::try_from(names.iter().position(|one| *one == name)?).ok();
        Some(Ipv4Addr::new(number(&self.carriers, carrier)?, number(&self.cities, city)?, 0, 1).into())
    }
}

/// The sites' names. A site on CERNET has the suffix `edu.cn`; other sites have random suffixes of
/// the settings.
fn hosts(settings: &Settings, scenario: &Scenario, seed: u64) -> Vec<String> {
    let mut rng = stream_of(seed, SUFFIXES);
    let host = |(number, site): (usize, &SiteNode)| {
        let drawn = &settings.suffixes[rng.random_range(0..settings.suffixes.len())];
        format!("www.site{number}.{}", if site.carrier == ACADEMIC { "edu.cn" } else { drawn })
    };
    scenario.sites.iter().enumerate().map(host).collect()
}

pub(super) fn requests(scenario: &Scenario, server: Duration) -> Vec<Vec<SiteRequest>> {
    let thinking = |one: SiteRequest| SiteRequest { thinking: server, ..one };
    let site = |site| {
        let requests = SiteWeb::draw(&scenario.web, scenario.seed, site).requests(u32::MAX);
        requests.into_iter().map(thinking).collect()
    };
    (0..scenario.sites.len()).map(site).collect()
}

fn exact(scenario: &Scenario) -> Survey {
    let candidate = |agent: usize, site: usize| Candidate {
        measured: Rtt::try_new(scenario.paths[agent][site].rtt()).ok(),
        ..Candidate::new(agent_id(agent), 1)
    };
    let known = |site| (0..scenario.agents.len()).map(|agent| candidate(agent, site)).collect();
    Survey::given((0..scenario.sites.len()).map(known).collect())
}

fn stream_of(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    rng
}

fn samples(link: &Link, settings: &Settings, rng: &mut ChaCha8Rng) -> Vec<Duration> {
    let late = |_| link.rtt() + Duration::from_secs_f64(settings.jitter_ms * rng.random_range(0.0..1.0) / 1e3);
    (0..settings.samples).map(late).collect()
}

fn layout(settings: &Settings, form: &LayoutForm, seed: u64) -> anyhow::Result<Layout> {
    let mut layout = Layout::parse(PAPER, "paper.toml")?;
    layout.seed = seed;
    layout.path.jitter_ms = settings.jitter_ms;
    if let Some(agents) = &form.agents {
        layout.agents.clone_from(agents);
    }
    Ok(layout)
}

/// The paper's layout with random access delays. The round trip of every path is multiplied by a
/// random number.
fn scenario(settings: &Settings, form: &LayoutForm, seed: u64) -> anyhow::Result<Scenario> {
    let layout = layout(settings, form, seed)?;
    let usual = layout.path.agent_access_ms;
    let mut scenario = layout.scenario(None, Some(settings.sites))?;
    scenario.web.mean_pages = f64::from(u32::try_from(PAGES)?);
    (scenario.web.max_pages, scenario.web.pages_sigma) = (PAGES, 0.0);
    (scenario.web.slow_share, scenario.web.broken_share, scenario.web.robots_share) = (0.0, 0.0, 0.0);
    let [least, most] = settings.agent_access_ms;
    let mut delays = stream_of(seed, DELAYS);
    let more: Vec<f64> = scenario.agents.iter().map(|_| delays.random_range(least..most) - usual).collect();
    let mut paths = stream_of(seed, PATHS);
    let mut changed = |rtt_ms: f64, more: f64| (rtt_ms + more) * (settings.path_spread * normal(&mut paths)).exp();
    for from in 0..more.len() {
        scenario.paths[from].iter_mut().for_each(|link| link.rtt_ms = changed(link.rtt_ms, more[from]));
        for to in 0..from {
            let rtt_ms = changed(scenario.mesh[from][to].rtt_ms, more[from] + more[to]);
            scenario.mesh[from][to].rtt_ms = rtt_ms;
            scenario.mesh[to][from].rtt_ms = rtt_ms;
        }
    }
    Ok(scenario)
}

/// The indices of the agents that are the paper's landmarks.
pub(super) fn landmarks(settings: &Settings, layout: &str, scenario: &Scenario) -> anyhow::Result<Vec<usize>> {
    let agent = |place: &super::settings::LandmarkPlace| {
        let found = scenario.agents.iter().position(|agent| agent.city == place.city && agent.carrier == place.carrier);
        found.with_context(|| {
            format!("layout {layout}: no agent for the landmark in {} on {}", place.city, place.carrier)
        })
    };
    settings.landmarks.iter().map(agent).collect()
}

/// The round trips of the published system: measured by landmarks, and otherwise predicted by the
/// published map.
fn published(
    settings: &Settings,
    scenario: &Scenario,
    measured: &LayoutMeasurements,
    seed: u64,
) -> anyhow::Result<Survey> {
    let (mesh, landmarks) = (measured.mesh()?, measured.landmarks());
    let (epoch, dimensions) = (EmbeddingEpoch::new(1), settings.dimensions);
    let map = fit_with(PlainSwitches::GNP, None, epoch, &mesh, &landmarks, dimensions, seed)?;
    let known = |measured: &Vec<_>| {
        let place = SitePlace::Point(&map, map.locate(measured).context("locate a site")?);
        let candidate = |agent| {
            let agent = agent_id(agent);
            Candidate::new(agent, 1).to_site(place.predict(agent), measured)
        };
        anyhow::Ok((0..scenario.agents.len()).map(candidate).collect())
    };
    Ok(Survey::given(measured.sites()?.iter().map(known).collect::<anyhow::Result<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::sweep::measured::agent_index;

    #[test]
    fn agents_of_one_city_and_carrier_differ_and_nine_landmarks_are_the_papers() {
        let settings = Settings { sites: 20, ..Settings::committed().unwrap() };
        for form in &settings.layouts {
            let scenario = scenario(&settings, form, 1).unwrap();
            let twins = |agent: &usize| {
                (scenario.agents[0].city == scenario.agents[*agent].city)
                    && scenario.agents[0].carrier == scenario.agents[*agent].carrier
            };
            let twin = (1..30).find(twins).unwrap();
            let differ = (0..20).filter(|&site| scenario.paths[0][site].rtt_ms < scenario.paths[twin][site].rtt_ms);
            assert!((1..20).contains(&differ.count()), "neither of two twins is always the nearer");
            let landmarks = landmarks(&settings, &form.name, &scenario).unwrap();
            let kinds: std::collections::BTreeSet<_> =
                landmarks.iter().map(|&one| (&scenario.agents[one].city, &scenario.agents[one].carrier)).collect();
            assert_eq!(kinds.len(), 9);
        }
    }

    #[test]
    fn the_published_map_finds_near_agents() {
        let settings = Settings { sites: 10, dimensions: 3, ..Settings::committed().unwrap() };
        let form = &settings.layouts[0];
        let scenario = scenario(&settings, form, 1).unwrap();
        let by_hand = landmarks(&settings, &form.name, &scenario).unwrap();
        let measured = LayoutMeasurements::taken(&scenario, Landmarks::ByHand(&by_hand), |link| link.rtt_ms).unwrap();
        let published = published(&settings, &scenario, &measured, 1).unwrap();
        let (mut chosen_ms, mut mean_ms) = (0.0, 0.0);
        for site in 0..10 {
            let nearest = published.candidates(site).iter().min_by_key(|one| one.distance()).unwrap().agent;
            chosen_ms += scenario.paths[agent_index(nearest).unwrap()][site].rtt_ms;
            mean_ms += scenario.paths.iter().map(|row| row[site].rtt_ms).sum::<f64>() / 30.0;
        }
        assert!(chosen_ms < 0.7 * mean_ms, "{chosen_ms} {mean_ms}");
    }

    #[test]
    fn strategies_without_distances_choose_by_name_address_or_position() {
        let settings = Settings { sites: 60, ..Settings::committed().unwrap() };
        let mut network = Network::with_exact_distances(&settings, &settings.layouts[0], 1).unwrap();
        let refused = network.chosen(Strategy::Geographic, 1).unwrap_err().to_string();
        assert_eq!(refused, "the layout lacks what geographic needs");
        network.cities = layout(&settings, &settings.layouts[0], 1).unwrap().cities;
        let agent_of = |survey: &Survey, site| {
            let known = survey.candidates(site).iter().filter(|one| one.measured.is_some());
            let known: Vec<usize> = known.filter_map(|one| agent_index(one.agent)).collect();
            assert_eq!(known.len(), 1);
            known[0]
        };
        let geographic = network.chosen(Strategy::Geographic, 1).unwrap();
        let hash = network.chosen(Strategy::Hash, 1).unwrap();
        let agents: std::collections::BTreeSet<usize> = (0..60).map(|site| agent_of(&hash, site)).collect();
        assert!(agents.len() > 15, "{agents:?}");
        let at_home = ["Beijing", "Shanghai", "Guangzhou", "Harbin"];
        let home = |site: &usize| at_home.contains(&network.scenario.sites[*site].city.as_str());
        for site in (0..60).filter(home) {
            assert_eq!(network.scenario.agents[agent_of(&geographic, site)].city, network.scenario.sites[site].city);
        }
        let (prefix, domain) =
            (network.chosen(Strategy::Prefix, 1).unwrap(), network.chosen(Strategy::Domain, 1).unwrap());
        let suffix = |site: usize| network.hosts[site].splitn(3, '.').nth(2).unwrap();
        for (site, node) in network.scenario.sites.iter().enumerate() {
            let agents = &network.scenario.agents;
            let chosen = &agents[agent_of(&prefix, site)];
            let beside = agents.iter().any(|agent| (&agent.city, &agent.carrier) == (&node.city, &node.carrier));
            assert!(!beside || (&chosen.city, &chosen.carrier) == (&node.city, &node.carrier), "{node:?} {chosen:?}");
            let alike = (0..60).filter(|other| suffix(*other) == suffix(site));
            assert!(alike.clone().all(|other| agent_of(&domain, other) == agent_of(&domain, site)), "{site}");
            assert_eq!(suffix(site) == "edu.cn", node.carrier == ACADEMIC);
        }
    }

    #[test]
    fn a_missing_landmark_is_named() {
        let settings = Settings::committed().unwrap();
        let mut form = settings.layouts[1].clone();
        form.agents.as_mut().unwrap().pop();
        let scenario = scenario(&settings, &form, 1).unwrap();
        let error = landmarks(&settings, &form.name, &scenario).unwrap_err().to_string();
        assert_eq!(error, "layout named: no agent for the landmark in Harbin on CERNET");
    }
}
