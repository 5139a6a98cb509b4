//! The scheduler's configuration: one typed tree, read from TOML, checked once.
//!
//! Unknown keys are refused. Durations are written as `10s` or `250ms`.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use humantime_serde::re::humantime::format_duration;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::contact::ContactUrl;
use crate::model::{CrawlPolicy, PolicyRequest};
use crate::strategy::confidence;

mod keep;
mod leases;
mod politeness;

pub use keep::KeepConfig;
pub use leases::{LeaseConfig, TermConfig};
pub use politeness::PolitenessConfig;

/// Where the scheduler listens unless told otherwise.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7171);

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Nothing that waits on a person or a site is asked to wait less.
const TENTH: Duration = Duration::from_millis(100);

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("read the configuration {path}")]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is not TOML, or has a key that is not known or a value of the wrong kind.
    #[error("{path}:{line}: {message}")]
    Parse {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        message: String,
    },
    /// A value is out of its range, or contradicts another.
    #[error("{key} must be {rule}, is {value}")]
    Value {
        key: &'static str,
        /// What it must be.
        rule: String,
        value: String,
    },
    /// Something is wrong in a file that could be read.
    #[error("{path}")]
    In { path: PathBuf, source: Box<ConfigError> },
}

/// Everything an operator may set.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The gRPC address. Off loopback the scheduler speaks TLS.
    pub listen: SocketAddr,
    /// The Postgres server; without one `landfall up` starts a private one. The file is then for its owner alone.
    pub database_url: Option<String>,
    /// Carried in every user agent; kept in the database once set.
    pub contact_url: Option<String>,
    /// A file of positions by address, in the format MaxMind DB: says where sites are of which no list does. Read at start.
    pub geoip: Option<PathBuf>,
    pub lease: LeaseConfig,
    /// How duties pass from one scheduler to another.
    pub term: TermConfig,
    /// How hosts are measured.
    pub measure: MeasureConfig,
    /// How landmarks are kept up.
    pub landmarks: LandmarksConfig,
    /// How `gnp-confirmed` confirms.
    pub confirm: ConfirmConfig,
    /// How far a batch is crawled where it does not say.
    #[serde(deserialize_with = "crawl")]
    pub crawl: CrawlPolicy,
    /// What all agents together may ask of one address.
    pub politeness: PolitenessConfig,
    /// How long what is over is kept.
    pub keep: KeepConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN,
            database_url: None,
            contact_url: None,
            geoip: None,
            lease: LeaseConfig::default(),
            term: TermConfig::default(),
            measure: MeasureConfig::default(),
            landmarks: LandmarksConfig::default(),
            confirm: ConfirmConfig::default(),
            crawl: CrawlPolicy::default(),
            politeness: PolitenessConfig::default(),
            keep: KeepConfig::default(),
        }
    }
}

impl Config {
    /// Reads and validates a file.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, has an unknown key, or a value that [`Config::validate`] refuses.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let config: Self = toml::from_str(&text).map_err(|error| ConfigError::Parse {
            path: path.to_owned(),
            line: error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count()),
            message: error.message().lines().collect::<Vec<_>>().join(", "),
        })?;
        config.validate().map_err(|source| ConfigError::In { path: path.to_owned(), source: Box::new(source) })?;
        Ok(config)
    }

    /// Checks every range, and what must agree with what.
    ///
    /// # Errors
    /// The first value that is out of its range or contradicts another, by its key.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let Some(url) = &self.contact_url
            && url.parse::<ContactUrl>().is_err()
        {
            let rule = "an http or https URL, or mailto:name@host, of at most 200 bytes";
            return Err(value("contact_url", rule, format!("'{url}'")));
        }
        self.lease.validate()?;
        self.term.validate()?;
        self.measure.validate()?;
        self.landmarks.validate()?;
        self.confirm.validate()?;
        self.politeness.validate()?;
        self.keep.validate(&self.lease, &self.measure)
    }
}

fn value(key: &'static str, rule: impl Into<String>, value: impl Display) -> ConfigError {
    ConfigError::Value { key, rule: rule.into(), value: value.to_string() }
}

fn within(key: &'static str, found: Duration, range: &RangeInclusive<Duration>) -> Result<(), ConfigError> {
    if range.contains(&found) {
        return Ok(());
    }
    let (least, most) = (format_duration(*range.start()), format_duration(*range.end()));
    Err(value(key, format!("{least} to {most}"), format_duration(found)))
}

fn counted<N: PartialOrd + Display>(key: &'static str, found: N, range: &RangeInclusive<N>) -> Result<(), ConfigError> {
    if range.contains(&found) {
        return Ok(());
    }
    Err(value(key, format!("{} to {}", range.start(), range.end()), found))
}

/// How landmarks are kept up.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LandmarksConfig {
    /// How long an elected landmark may be away before another is elected in its place, 10 s to 365 days: a restart or
    /// a line that is down for a minute should not change the map. One set by hand is never replaced.
    #[serde(with = "humantime_serde")]
    pub replace_after: Duration,
}

impl Default for LandmarksConfig {
    fn default() -> Self {
        Self { replace_after: Duration::from_secs(600) }
    }
}

impl LandmarksConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        within("landmarks.replace_after", self.replace_after, &(10 * SECOND..=YEAR))
    }
}

/// What is taken for distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Sending a request on a warm connection to the first byte of the answer: the paper's.
    Ttfb,
    /// The TCP handshake.
    Connect,
    /// ICMP echo; about 30 % of sites do not answer it.
    Icmp,
}

/// How hosts are measured.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MeasureConfig {
    /// What is taken for distance.
    pub metric: Metric,
    /// Samples of a site per landmark at most, 1 to 100. A landmark stops earlier once they agree; 20 are for sites whose
    /// samples do not.
    pub site_samples: u32,
    /// Samples of a site before a landmark may stop, 1 to 100; as many as `site_samples` takes them all.
    pub site_least_samples: u32,
    /// Samples of a beacon per agent, 1 to 100. Beacons are ours, so they may be asked more.
    pub mesh_samples: u32,
    /// Least time between two probes of one site over all landmarks, 100 ms or more; a second is polite.
    #[serde(with = "humantime_serde")]
    pub site_interval: Duration,
    /// Least time between two probes of one beacon by one agent.
    #[serde(with = "humantime_serde")]
    pub mesh_interval: Duration,
    /// How long a sample may take before it counts as lost, 100 ms to 1 min.
    #[serde(with = "humantime_serde")]
    pub sample_timeout: Duration,
    /// Site orders one agent holds at once, 1 to 10000: they mostly wait for the interval.
    pub max_site_orders: u32,
    /// Beacon orders one agent holds at once, 1 to 32: more would queue in the agent and blur each other.
    pub max_mesh_orders: u32,
    /// Other agents each agent measures, at most, beside the landmarks.
    pub max_mesh_peers: u32,
    /// After this a measurement of a beacon is taken again.
    #[serde(with = "humantime_serde")]
    pub mesh_max_age: Duration,
    /// So long a prober's measurement answers for other sites at the same address, at most a day; zero shares nothing.
    #[serde(with = "humantime_serde")]
    pub share_max_age: Duration,
    /// After this a measurement of a site is not used for a new task.
    #[serde(with = "humantime_serde")]
    pub site_max_age: Duration,
}

impl Default for MeasureConfig {
    fn default() -> Self {
        Self {
            metric: Metric::Ttfb,
            site_samples: 20,
            site_least_samples: 3,
            mesh_samples: 10,
            site_interval: Duration::from_secs(1),
            mesh_interval: Duration::from_millis(20),
            sample_timeout: Duration::from_secs(5),
            max_site_orders: 256,
            max_mesh_orders: 4,
            max_mesh_peers: 32,
            mesh_max_age: Duration::from_secs(3600),
            share_max_age: Duration::from_secs(15 * 60),
            site_max_age: Duration::from_secs(24 * 3600),
        }
    }
}

impl MeasureConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        counted("measure.site_samples", self.site_samples, &(1..=100))?;
        counted("measure.site_least_samples", self.site_least_samples, &(1..=100))?;
        counted("measure.mesh_samples", self.mesh_samples, &(1..=100))?;
        within("measure.site_interval", self.site_interval, &(TENTH..=DAY))?;
        within("measure.mesh_interval", self.mesh_interval, &(Duration::ZERO..=MINUTE))?;
        within("measure.sample_timeout", self.sample_timeout, &(TENTH..=MINUTE))?;
        counted("measure.max_site_orders", self.max_site_orders, &(1..=10_000))?;
        counted("measure.max_mesh_orders", self.max_mesh_orders, &(1..=32))?;
        counted("measure.max_mesh_peers", self.max_mesh_peers, &(0..=1000))?;
        within("measure.mesh_max_age", self.mesh_max_age, &(SECOND..=YEAR))?;
        within("measure.share_max_age", self.share_max_age, &(Duration::ZERO..=DAY))?;
        within("measure.site_max_age", self.site_max_age, &(SECOND..=YEAR))
    }
}

/// How `gnp-confirmed` confirms.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfirmConfig {
    /// Agents asked to measure a site at most, 1 to 16. The third still shortens the way to a site by several per cent,
    /// the fifth by one or two; they are asked in turn, and sixteen keep a site waiting for more than a minute.
    pub agents: u32,
    /// Samples each takes, 1 to 100. Three are the fewest whose median survives a bad one; they need only tell a few
    /// agents apart.
    pub samples: u32,
}

impl Default for ConfirmConfig {
    fn default() -> Self {
        Self { agents: 3, samples: 3 }
    }
}

impl Config {
    /// How long a confirmation takes as a rule at most.
    pub const fn confirming(&self) -> Duration {
        confidence::takes(self.confirm.agents, self.confirm.samples, self.measure.site_interval)
    }
}

impl ConfirmConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        counted("confirm.agents", self.agents, &(1..=16))?;
        counted("confirm.samples", self.samples, &(1..=100))
    }
}

/// Reads `[crawl]` as any request for a policy is read, within the same bounds.
fn crawl<'de, D: Deserializer<'de>>(from: D) -> Result<CrawlPolicy, D::Error> {
    let asked = PolicyRequest::deserialize(from)?.checked();
    let policy = asked.and_then(|asked| asked.or(&CrawlPolicy::default()).agreed());
    policy.map_err(|error| D::Error::custom(format!("crawl.{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Config::load(file.path()).map_err(|error| format!("{:#}", anyhow::Error::new(error)))
    }

    #[test]
    fn the_example_is_the_defaults_written_down() {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/landfall.example.toml");
        let text = std::fs::read_to_string(example).unwrap();
        let as_written = load(&text).unwrap();
        // What is commented out is an example too: it must parse.
        let uncommented: String =
            text.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n").collect();
        assert!(load(&uncommented).unwrap().contact_url.is_some());
        assert_eq!(format!("{as_written:?}"), format!("{:?}", Config::default()));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error = load("[lease]\nlife = \"30s\"\nlive = \"30s\"\n").unwrap_err();
        assert!(error.contains(":3: ") && error.contains("`live`"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn values_out_of_range_are_named_by_key() {
        for (text, key) in [
            ("contact_url = \"example.org\"", "contact_url"),
            ("contact_url = \"ftp://example.org\"", "contact_url"),
            ("[lease]\nheartbeat_interval = \"10ms\"", "lease.heartbeat_interval"),
            ("[lease]\ngrace = \"2m\"", "lease.grace"),
            ("[lease]\nmax_supersessions = 1", "lease.max_supersessions"),
            ("[lease]\nmax_crashes = 0", "lease.max_crashes"),
            ("[term]\nlife = \"100ms\"", "term.life"),
            ("[measure]\nsite_samples = 0", "measure.site_samples"),
            ("[measure]\nmax_mesh_orders = 33", "measure.max_mesh_orders"),
            ("[measure]\nsample_timeout = \"0s\"", "measure.sample_timeout"),
            ("[landmarks]\nreplace_after = \"1s\"", "landmarks.replace_after"),
            ("[confirm]\nagents = 17", "confirm.agents"),
            ("[confirm]\nsamples = 0", "confirm.samples"),
            ("[keep]\nevents = \"1m\"", "keep.events"),
            ("[keep]\nrounds = \"20years\"", "keep.rounds"),
            ("[keep]\nsessions = \"2h\"\n[lease]\nlife = \"1day\"", "keep.sessions"),
            ("[keep]\nmeasurements = \"1h\"", "keep.measurements"),
        ] {
            let error = load(text).unwrap_err();
            assert!(error.contains(&format!("{key} must be ")), "{text}: {error}");
        }
    }

    #[test]
    fn no_default_of_a_batch_is_allowed_that_no_batch_may_have() {
        for (text, said) in [
            ("max_pages = 0", ":1: crawl.max_pages: must be 1 or more"),
            ("max_duration = \"31days\"", ":1: crawl.max_duration: not within 1s to 2592000s"),
            ("request_interval = \"2h\"", ":1: crawl.request_interval: not within 0ns to 3600s"),
            ("shortest_interval = \"2s\"", ":1: crawl.shortest_interval: 2s is more than the request_interval of 1s"),
            ("recrawl_interval = \"1s\"", ":1: crawl.recrawl_interval: not within 3600s to"),
            ("include = [\"news\"]", ":1: crawl.include: the pattern \"news\" does not begin with"),
            ("max_page = 3", ":2: unknown field `max_page`, expected one of `max_pages`, "),
            ("max_depth = -1", ":2: invalid value: integer `-1`, expected u32"),
        ] {
            let error = load(&format!("[crawl]\n{text}")).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        let config = load("[crawl]\nrequest_interval = \"5s\"\nstore = false\nrecrawl_interval = \"7days\"").unwrap();
        let policy = config.crawl;
        assert_eq!(policy.shortest_interval, Duration::from_secs(5), "as the other where it is not said");
        assert_eq!((policy.store, policy.recrawl_interval), (false, Some(Duration::from_secs(7 * 86_400))));
    }

    #[test]
    fn a_life_too_short_for_its_heartbeat_is_a_contradiction() {
        let error = load("[lease]\nlife = \"15s\"").unwrap_err();
        assert!(
            error.ends_with(": lease.life must be at least twice lease.heartbeat_interval (10s), is 15s"),
            "{error}"
        );
    }
}
