//! The emulated agents and sites, and the links between them. A scenario is made from a [`Layout`],
//! an emulated country with cities and carriers, or by [`super::from_matrix`].
//!
//! A layout is read from TOML, and its rules give the round trips. Together with its seed, it fully
//! determines a [`Scenario`]. The scheduler does not see the scenario.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::site_pages::WebRules;

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
    /// Rate of each agent's access link in bytes per second.
    pub agent_bytes_per_s: f64,
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
    /// The probability that a packet is lost, 0 to 1. The rootless grade loses only packets of
    /// response bodies.
    pub loss: f64,
}

impl Link {
    pub fn rtt(&self) -> Duration {
        Duration::from_secs_f64(self.rtt_ms / 1e3)
    }
}

impl Scenario {
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
        Ok(self)
    }

    pub fn machines(&self) -> usize {
        self.sites.iter().map(|site| site.machine + 1).max().unwrap_or(0)
    }

    pub fn sites_of(&self, machine: usize) -> impl Iterator<Item = usize> {
        self.sites.iter().enumerate().filter(move |(_, site)| site.machine == machine).map(|(index, _)| index)
    }
}

/// The paper's layout.
pub const PAPER: &str = include_str!("../../scenarios/paper.toml");
/// A layout for tests: six agents and 24 sites.
pub const SMALL: &str = include_str!("../../scenarios/small.toml");

const EARTH_RADIUS_KM: f64 = 6371.0;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    pub name: String,
    /// The country of all agents, as ISO 3166-1 alpha-2 code.
    pub country: String,
    /// The seed from which the sites, their access delays and their pages are drawn.
    pub seed: u64,
    pub path: PathRules,
    pub sites: SiteRules,
    pub web: WebRules,
    /// The agents, grouped by city and carrier.
    pub agents: Vec<AgentGroup>,
    pub cities: Vec<City>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathRules {
    /// Milliseconds of round trip per 100 km of great-circle distance.
    pub ms_per_100_km: f64,
    /// The cities with an exchange. A path between two carriers goes through the exchange that
    /// makes the path shortest.
    pub exchanges: Vec<String>,
    /// Milliseconds added on a path between two carriers.
    pub between_carriers_ms: f64,
    /// Carriers for which `academic_ms` replaces `between_carriers_ms`.
    pub academic_carriers: Vec<String>,
    /// Milliseconds added on a path to or from an academic carrier.
    pub academic_ms: f64,
    /// Milliseconds added by an agent's access link.
    pub agent_access_ms: f64,
    /// The minimum and maximum of the milliseconds added by a site's access link. The value of each
    /// site is drawn uniformly.
    pub site_access_ms: [f64; 2],
    /// Maximum random delay of a response, in milliseconds. The delay is uniform from zero to the
    /// maximum.
    pub jitter_ms: f64,
    /// Probability that a packet within one carrier is lost, 0 to 1. The rootless grade loses only
    /// packets of response bodies.
    pub loss_inside: f64,
    /// Probability that a packet between two carriers is lost, 0 to 1.
    pub loss_between: f64,
    /// Rate of an agent's access link, in megabits per second.
    pub agent_mbit_per_s: f64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteRules {
    pub count: usize,
    /// Carriers, from which the carrier of each site is drawn uniformly. The city of a site is
    /// drawn from all cities of the layout.
    pub carriers: Vec<String>,
    /// Number of consecutive sites that share one machine and its address; `None` means one site
    /// per machine.
    pub per_machine: Option<NonZeroUsize>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentGroup {
    pub city: String,
    pub carrier: String,
    pub count: usize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct City {
    pub name: String,
    pub latitude: f64,
    pub longitude: f64,
}

struct End<'a> {
    city: &'a City,
    carrier: &'a str,
    access_ms: f64,
}

/// Parses TOML. Error messages contain the line number, and `origin` as the name of the text.
pub fn parse_toml<T: DeserializeOwned>(text: &str, origin: &str) -> anyhow::Result<T> {
    toml::from_str(text).map_err(|error| {
        // Only the error's message is used, because its `Display` would print the whole line of the
        // text.
        let line = error.span().map_or(1, |span| text.get(..span.start).unwrap_or_default().lines().count().max(1));
        anyhow::anyhow!("{origin}: line {line}: {}", error.message())
    })
}

impl Layout {
    /// Parses and validates a layout. Error messages contain `origin`, the name of the layout.
    pub fn parse(text: &str, origin: &str) -> anyhow::Result<Self> {
        let layout: Self = parse_toml(text, origin)?;
        layout.validate().with_context(|| format!("check the scenario {origin}"))?;
        Ok(layout)
    }

    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        Self::parse(&text, &file.display().to_string())
    }

    fn validate(&self) -> anyhow::Result<()> {
        for name in self.path.exchanges.iter().chain(self.agents.iter().map(|group| &group.city)) {
            self.city(name)?;
        }
        ensure!(!self.path.exchanges.is_empty(), "path.exchanges must name at least one city");
        ensure!(!self.sites.carriers.is_empty(), "sites.carriers must name at least one carrier");
        let [least, most] = self.path.site_access_ms;
        ensure!(0.0 <= least && least < most, "path.site_access_ms must be a rising range");
        for (field, share) in [("loss_inside", self.path.loss_inside), ("loss_between", self.path.loss_between)] {
            ensure!((0.0..1.0).contains(&share), "path.{field} must be from 0 to below 1");
        }
        ensure!(self.path.agent_mbit_per_s > 0.0, "path.agent_mbit_per_s must be above 0");
        self.web.validate()
    }

    fn city(&self, name: &str) -> anyhow::Result<&City> {
        match self.cities.iter().find(|city| city.name == name) {
            Some(city) => Ok(city),
            None => bail!("the city '{name}' has no coordinates"),
        }
    }

    /// Draws the scenario. If `agents` is below the number of agents in the layout, the agents are
    /// taken evenly from all groups.
    pub fn scenario(&self, agents: Option<usize>, sites: Option<usize>) -> anyhow::Result<Scenario> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let agents = self.draw_agents(agents)?;
        let sites = self.draw_sites(sites.unwrap_or(self.sites.count), &mut rng);
        let mut agent_ends = Vec::new();
        for agent in &agents {
            let access_ms = self.path.agent_access_ms;
            agent_ends.push(End { city: self.city(&agent.city)?, carrier: &agent.carrier, access_ms });
        }
        let mut site_ends: Vec<End<'_>> = Vec::new();
        for (index, site) in sites.iter().enumerate() {
            let [least, most] = self.path.site_access_ms;
            let neighbour = index.checked_sub(1).filter(|before| sites[*before].machine == site.machine);
            let access_ms = match neighbour {
                Some(before) => site_ends[before].access_ms,
                None => rng.random_range(least..most),
            };
            site_ends.push(End { city: self.city(&site.city)?, carrier: &site.carrier, access_ms });
        }
        let links = |from: &[End<'_>], to: &[End<'_>]| -> anyhow::Result<Vec<Vec<Link>>> {
            from.iter().map(|a| to.iter().map(|b| self.link(a, b)).collect()).collect()
        };
        Ok(Scenario {
            name: self.name.clone(),
            seed: self.seed,
            mesh: links(&agent_ends, &agent_ends)?,
            paths: links(&agent_ends, &site_ends)?,
            agents,
            sites,
            jitter_ms: self.path.jitter_ms,
            agent_bytes_per_s: self.path.agent_mbit_per_s * 1e6 / 8.0,
            web: self.web.clone(),
        })
    }

    fn draw_agents(&self, wanted: Option<usize>) -> anyhow::Result<Vec<AgentNode>> {
        let all: usize = self.agents.iter().map(|group| group.count).sum();
        let wanted = wanted.unwrap_or(all);
        ensure!(wanted >= 1 && wanted <= all, "the scenario {} has {all} agents, not {wanted}", self.name);
        let most = self.agents.iter().map(|group| group.count).max().unwrap_or(0);
        let agents = (0..most)
            .flat_map(|round| {
                self.agents.iter().filter(move |group| round < group.count).map(move |group| (round, group))
            })
            .take(wanted)
            .map(|(round, group)| AgentNode {
                name: format!("{}-{}-{}", group.city, group.carrier, round + 1).to_lowercase(),
                city: group.city.clone(),
                carrier: group.carrier.clone(),
                country: self.country.clone(),
            })
            .collect();
        Ok(agents)
    }

    fn draw_sites(&self, count: usize, rng: &mut ChaCha8Rng) -> Vec<SiteNode> {
        let per_machine = self.sites.per_machine.map_or(1, NonZeroUsize::get);
        let mut sites: Vec<SiteNode> = Vec::with_capacity(count);
        for index in 0..count {
            let machine = index / per_machine;
            let (city, carrier) = match sites.last().filter(|before| before.machine == machine) {
                Some(before) => (before.city.clone(), before.carrier.clone()),
                None => {
                    let city = self.cities[rng.random_range(0..self.cities.len())].name.clone();
                    (city, self.sites.carriers[rng.random_range(0..self.sites.carriers.len())].clone())
                }
            };
            let host = format!("www.site{:03}-{city}-{carrier}.test", index + 1).to_lowercase();
            sites.push(SiteNode { host, city, carrier, machine });
        }
        sites
    }

    /// The link between two ends. The round trip of the link is the time for the distance, plus the
    /// time of both access links. Between two carriers, the path goes through an exchange, and a
    /// penalty is added.
    fn link(&self, a: &End<'_>, b: &End<'_>) -> anyhow::Result<Link> {
        let rules = &self.path;
        let access_ms = a.access_ms + b.access_ms;
        let inside = a.carrier == b.carrier;
        let (km, penalty_ms) = if inside {
            (great_circle_km(a.city, b.city), 0.0)
        } else {
            let mut shortest = f64::INFINITY;
            for name in &rules.exchanges {
                let exchange = self.city(name)?;
                shortest = shortest.min(great_circle_km(a.city, exchange) + great_circle_km(exchange, b.city));
            }
            let academic = |end: &End<'_>| rules.academic_carriers.iter().any(|name| name == end.carrier);
            (shortest, if academic(a) || academic(b) { rules.academic_ms } else { rules.between_carriers_ms })
        };
        Ok(Link {
            rtt_ms: km / 100.0 * rules.ms_per_100_km + access_ms + penalty_ms,
            loss: if inside { rules.loss_inside } else { rules.loss_between },
        })
    }
}

/// The great-circle distance in kilometres (haversine formula).
fn great_circle_km(a: &City, b: &City) -> f64 {
    let (from, to) = (a.latitude.to_radians(), b.latitude.to_radians());
    let half_height = ((to - from) / 2.0).sin();
    let half_width = ((b.longitude - a.longitude).to_radians() / 2.0).sin();
    let chord = half_height * half_height + from.cos() * to.cos() * half_width * half_width;
    2.0 * EARTH_RADIUS_KM * chord.sqrt().min(1.0).asin()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn paper() -> Scenario {
        Layout::parse(PAPER, "paper.toml").unwrap().scenario(None, None).unwrap()
    }

    fn agent(scenario: &Scenario, city: &str, carrier: &str) -> usize {
        scenario.agents.iter().position(|agent| agent.city == city && agent.carrier == carrier).unwrap()
    }

    #[test]
    fn the_paper_layout_has_the_papers_fleet() {
        let scenario = paper();
        let count = |city: &str| scenario.agents.iter().filter(|agent| agent.city == city).count();
        assert_eq!([count("Beijing"), count("Shanghai"), count("Guangzhou"), count("Harbin")], [10, 10, 9, 1]);
        let kinds: BTreeSet<_> = scenario.agents.iter().map(|agent| (&agent.city, &agent.carrier)).collect();
        let landmarks = [
            ("Beijing", "Telecom"),
            ("Beijing", "Unicom"),
            ("Beijing", "Netcom"),
            ("Shanghai", "Telecom"),
            ("Shanghai", "Unicom"),
            ("Shanghai", "Netcom"),
            ("Guangzhou", "Telecom"),
            ("Guangzhou", "Unicom"),
            ("Harbin", "CERNET"),
        ];
        for (city, carrier) in landmarks {
            assert!(kinds.contains(&(&city.to_owned(), &carrier.to_owned())), "the paper's landmark {city} {carrier}");
        }
        assert_eq!(scenario.sites.len(), 203);
        let carriers: BTreeSet<_> = scenario.sites.iter().map(|site| &site.carrier).collect();
        assert_eq!(carriers.len(), 4);
        let hosts: BTreeSet<_> = scenario.sites.iter().map(|site| &site.host).collect();
        assert_eq!(hosts.len(), 203);
        let layout = Layout::parse(PAPER, "paper.toml").unwrap();
        assert_eq!(layout.cities.len(), 31);
    }

    #[test]
    fn paths_follow_the_rule() {
        let scenario = paper();
        let (telecom, unicom) = (agent(&scenario, "Beijing", "Telecom"), agent(&scenario, "Beijing", "Unicom"));
        let shanghai = agent(&scenario, "Shanghai", "Telecom");
        let harbin = agent(&scenario, "Harbin", "CERNET");
        // Beijing to Shanghai is 1,068 km, which takes 16 ms. Each access link adds 1 ms.
        let inside = scenario.mesh[telecom][shanghai];
        assert!((inside.rtt_ms - 18.0).abs() < 0.2, "{inside:?}");
        assert!((inside.loss - 0.001).abs() < 1e-12);
        // Between two carriers in one city, the round trip is access links plus penalty.
        assert!((scenario.mesh[telecom][unicom].rtt_ms - 10.0).abs() < 1e-9);
        assert!((scenario.mesh[telecom][unicom].loss - 0.01).abs() < 1e-12);
        // Harbin to Beijing is 1,054 km. The penalty for an academic carrier is 25 ms.
        assert!((scenario.mesh[harbin][telecom].rtt_ms - (15.8 + 2.0 + 25.0)).abs() < 0.2);
        assert_eq!(scenario.mesh[harbin][telecom].rtt_ms.to_bits(), scenario.mesh[telecom][harbin].rtt_ms.to_bits());
    }

    #[test]
    fn the_same_seed_draws_the_same_sites() {
        let (one, two) = (paper(), paper());
        assert!(one.sites.iter().zip(&two.sites).all(|(a, b)| a.host == b.host));
        assert_eq!(one.paths[3][77].rtt_ms.to_bits(), two.paths[3][77].rtt_ms.to_bits());
    }

    #[test]
    fn sites_of_one_machine_are_equally_far() {
        let shared = PAPER.replace("[sites]", "[sites]\nper_machine = 8");
        let scenario = Layout::parse(&shared, "x").unwrap().scenario(None, None).unwrap();
        assert_eq!((scenario.sites.len(), scenario.machines()), (203, 26));
        assert_eq!(scenario.sites_of(1).collect::<Vec<_>>(), (8..16).collect::<Vec<_>>());
        let rtt = |site: usize| scenario.paths[3][site].rtt_ms.to_bits();
        assert!((9..16).all(|site| rtt(site) == rtt(8)) && rtt(8) != rtt(16));
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        let unknown_city = PAPER.replace("exchanges = [\"Beijing\"", "exchanges = [\"Atlantis\"");
        let error = Layout::parse(&unknown_city, "x.toml").unwrap_err();
        assert!(format!("{error:#}").contains("'Atlantis'"), "{error:#}");
        let error = Layout::parse(&PAPER.replace("jitter_ms", "jiter_ms"), "x.toml").unwrap_err();
        assert!(format!("{error:#}").contains("jiter_ms"), "{error:#}");
        let error = Layout::parse(PAPER, "x").unwrap().scenario(Some(31), None).unwrap_err();
        assert_eq!(error.to_string(), "the scenario paper has 30 agents, not 31");
    }
}
