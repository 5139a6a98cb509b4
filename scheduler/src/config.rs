//! The scheduler's configuration: a typed tree that is read from TOML and validated once.
//!
//! Unknown keys are rejected. Durations are written as `10s` or `250ms`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_proto::traces::Collector;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};

use crate::gnp::Tier;
use crate::model::contact_url::ContactUrl;
use crate::model::{CrawlPolicy, PolicyRequest, words};
use crate::store::schema::retention::RetainedKind;
use crate::strategy::uncertainty;

use error::value;
use section::{DAY, MINUTE, SECOND, Setting, TENTH, YEAR, section, within};

mod error;
mod keep;
mod section;

pub use error::ConfigError;
pub use keep::KeepConfig;

pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7171);

/// All settings that an operator can change.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The gRPC address. Unless it is a loopback address, the scheduler uses TLS.
    pub listen: SocketAddr,
    /// The Postgres server; if absent, `landfall up` starts a private one. If the URL contains a
    /// password, only the file's owner may be able to read the file.
    pub database_url: Option<String>,
    /// The contact URL. Once set, it is also stored in the database.
    pub contact_url: Option<String>,
    /// A MaxMind DB of positions, for sites whose list gives no position. Read at startup.
    pub geoip: Option<PathBuf>,
    /// The OTLP collector that gets a trace for each site.
    pub otlp: Option<Collector>,
    pub lease: LeaseConfig,
    pub term: TermConfig,
    pub measure: MeasureConfig,
    /// The map that predicts distances. A change from or to `gnp` takes effect with the next fit.
    pub map: Tier,
    /// The facts used to draw an agent from the candidates.
    pub draws: Draws,
    pub landmarks: LandmarksConfig,
    pub confirm: ConfirmConfig,
    /// The crawl policy for batches that set none.
    #[serde(deserialize_with = "crawl")]
    pub crawl: CrawlPolicy,
    pub politeness: PolitenessConfig,
    pub keep: KeepConfig,
    pub dashboard: DashboardConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN,
            database_url: None,
            contact_url: None,
            geoip: None,
            otlp: None,
            lease: LeaseConfig::default(),
            term: TermConfig::default(),
            measure: MeasureConfig::default(),
            map: Tier::default(),
            draws: Draws::default(),
            landmarks: LandmarksConfig::default(),
            confirm: ConfirmConfig::default(),
            crawl: CrawlPolicy::default(),
            politeness: PolitenessConfig::default(),
            keep: KeepConfig::default(),
            dashboard: DashboardConfig::default(),
        }
    }
}

impl Config {
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let config: Self = parsed(path, &text)?;
        config.validate().map_err(|source| ConfigError::In { path: path.to_owned(), source: Box::new(source) })?;
        Ok(config)
    }

    /// Checks that every setting is in range, and that no settings contradict each other.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let Some(url) = &self.contact_url
            && url.parse::<ContactUrl>().is_err()
        {
            let rule = "an http or https URL, or mailto:name@host, of at most 200 bytes";
            return Err(value("contact_url", rule, format!("'{url}'")));
        }
        self.lease.check_bounds()?;
        self.term.check_bounds()?;
        self.measure.check_bounds()?;
        self.landmarks.check_bounds()?;
        self.confirm.check_bounds()?;
        self.politeness.check_bounds()?;
        self.keep.check_bounds()?;
        let LeaseConfig { life, heartbeat_interval, .. } = self.lease;
        if life < 2 * heartbeat_interval {
            let rule = format!("at least twice lease.heartbeat_interval ({})", heartbeat_interval.said());
            return Err(value("lease.life", rule, life.said()));
        }
        self.check_keep()
    }

    /// Checks that all rows are kept for at least the life and grace of a lease, and measurements
    /// for at least as long as they are used.
    fn check_keep(&self) -> Result<(), ConfigError> {
        let Self { keep, lease, measure, .. } = self;
        let rows = RetainedKind::ALL.map(|kind| (kind.key(), keep.of(kind)));
        let all = [("keep.events", keep.events)].into_iter().chain(rows);
        let lived = lease.life + lease.grace;
        if let Some((key, kept)) = all.into_iter().find(|(_, kept)| *kept < lived) {
            let rule = format!("at least lease.life and lease.grace together ({})", lived.said());
            return Err(value(key, rule, kept.said()));
        }
        if keep.measurements < measure.site_max_age {
            let rule = format!("at least measure.site_max_age ({})", measure.site_max_age.said());
            return Err(value("keep.measurements", rule, keep.measurements.said()));
        }
        Ok(())
    }

    /// An estimate of how long a confirmation takes. Most confirmations take no longer.
    pub const fn confirming(&self) -> Duration {
        uncertainty::takes(self.confirm.agents, self.confirm.samples, self.measure.site_interval)
    }
}

/// Parses the text of a file. An error contains the line number.
pub fn parsed<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error: toml::de::Error| ConfigError::Parse {
        path: path.to_owned(),
        line: error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count()),
        message: error.message().lines().collect::<Vec<_>>().join(", "),
    })
}

words!(
    /// The facts used to draw an agent from a task's candidates.
    #[derive(Default)]
    Draws {
        /// Agents with free slots are preferred, and results of crawls correct the distances. A
        /// task that waits for a slot moves to an agent that would finish it sooner.
        #[default]
        Balanced = "balanced",
        /// Considers only the distances, as in the paper: a full agent is as likely to be chosen as
        /// an idle one, and no waiting task is moved.
        Static = "static",
    }
);

/// What a round trip measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// From sending a request on a warm connection to the first byte of the response, as in the
    /// paper.
    Ttfb,
    /// The TCP handshake.
    Connect,
    /// ICMP echo; about 30 % of sites do not answer it.
    Icmp,
}

section! {
    /// The lifetime of leases.
    LeaseConfig "lease" {
        /// Mean time between heartbeats, 100 ms to 1 min. A shorter interval detects dead agents
        /// sooner; each heartbeat updates one row.
        heartbeat_interval: Duration = 10 * SECOND, TENTH..=MINUTE;
        /// How long an agent may crawl after sending a heartbeat; at least twice the interval, so
        /// that one lost heartbeat does not end a crawl.
        life: Duration = 30 * SECOND, 2 * TENTH..=DAY;
        /// How much longer the scheduler waits before it gives the leases to another agent, 100 ms
        /// to 1 min. This allows for the network's delay and the drift of clocks. A lost agent
        /// also keeps its waiting tasks for this time, because most agents return within a second.
        grace: Duration = 5 * SECOND, TENTH..=MINUTE;
        /// Maximum number of times per minute that a new session of an agent may replace the
        /// agent's previous session, 2 to 600; further sessions are refused. A bad connection
        /// causes one or two replacements a minute; two processes with one credential replace each
        /// other's session all the time.
        max_supersessions: u32 = 10, 2..=600;
        /// Number of crashes after which a task fails as poison, 1 to 100. A page that kills its
        /// crawler crashes every lease of its task. A broken connection or a restarted machine
        /// counts as one crash, seldom as two, for each task that the agent held.
        max_crashes: u32 = 5, 1..=100;
    }
}

section! {
    /// How roles pass from one scheduler to another.
    TermConfig "term" {
        /// How long an unresponsive scheduler keeps its roles, 300 ms to 1 min. A leader renews its
        /// roles four times within this time. With a shorter time, another scheduler takes over
        /// sooner after a crash; with a longer time, roles survive a brief stall of the database or
        /// machine. All schedulers of one database should use the same value.
        life: Duration = 5 * SECOND, 3 * TENTH..=MINUTE;
    }
}

section! {
    /// How hosts are measured.
    MeasureConfig "measure" [
        metric: Metric = Metric::Ttfb
    ] {
        /// Maximum samples of a site per landmark, 1 to 100. A landmark stops earlier if its
        /// samples agree; the default is enough for sites whose samples do not agree.
        site_samples: u32 = 20, 1..=100;
        /// Samples of a site before a landmark may stop early, 1 to 100. If this is `site_samples`
        /// or more, a landmark never stops early.
        site_least_samples: u32 = 3, 1..=100;
        /// Number of samples that an agent takes of another agent's beacon, 1 to 100. Politeness sets
        /// no limit, because beacons are our own.
        mesh_samples: u32 = 10, 1..=100;
        /// Minimum time between two probes of a site, even by different landmarks, at least 100 ms;
        /// 1 s is polite.
        site_interval: Duration = SECOND, TENTH..=DAY;
        /// Minimum time between two probes of one beacon by one agent.
        mesh_interval: Duration = Duration::from_millis(20), Duration::ZERO..=MINUTE;
        /// Time after which a sample counts as lost, 100 ms to 1 min.
        sample_timeout: Duration = 5 * SECOND, TENTH..=MINUTE;
        /// How many orders to measure sites an agent may have at a time, 1 to 10000. Most of them
        /// wait for `site_interval`.
        max_site_orders: u32 = 256, 1..=10_000;
        /// How many orders to measure beacons an agent may have at a time, 1 to 32. More orders
        /// would queue in the agent and disturb each other's measurements.
        max_mesh_orders: u32 = 4, 1..=32;
        /// Maximum number of other agents that each agent measures, in addition to the landmarks.
        max_mesh_peers: u32 = 32, 0..=1000;
        /// Age at which a measurement of a beacon is repeated.
        mesh_max_age: Duration = 60 * MINUTE, SECOND..=YEAR;
        /// Maximum age, up to a day, of a measurement that sites at one address share. With 0, no
        /// measurement is shared.
        share_max_age: Duration = 15 * MINUTE, Duration::ZERO..=DAY;
        /// Age from which a measurement of a site is no longer used for new tasks.
        site_max_age: Duration = DAY, SECOND..=YEAR;
    }
}

section! {
    /// How lost landmarks are replaced.
    LandmarksConfig "landmarks" {
        /// How long an elected landmark may be disconnected before another is elected to replace
        /// it, 10 s to 365 days. A restart or a brief loss of the connection should not change the
        /// map. A landmark set by hand is never replaced.
        replace_after: Duration = 10 * MINUTE, 10 * SECOND..=YEAR;
    }
}

section! {
    /// The confirmations of the strategy `gnp-confirmed`.
    ConfirmConfig "confirm" {
        /// Maximum number of agents that measure a site, one after another, 1 to 16. A third agent
        /// still shortens the mean distance by several per cent, and a fifth agent by one or two.
        /// Sixteen agents delay a site by more than a minute.
        agents: u32 = 3, 1..=16;
        /// Samples per agent, 1 to 100. The median of three tolerates one bad sample.
        samples: u32 = 3, 1..=100;
    }
}

section! {
    /// Limits per address, over all agents together.
    PolitenessConfig "politeness" {
        /// Maximum number of sites at one address that are crawled at once, over all agents, 1 to
        /// 1000. The limit is lower for an address with few known sites: the square root of their
        /// number. Eight crawls at one request a second load a server as much as one busy person.
        crawls_at_address: u32 = 8, 1..=1000;
    }
}

/// Settings of the pages for browsers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DashboardConfig {
    /// Whether everybody who reaches the scheduler may read the pages without signing in. Only an
    /// operator may change something.
    pub public: bool,
    /// Whether everybody may read the metrics even if the scheduler listens on more than loopback.
    pub public_metrics: bool,
}

/// Parses the section `[crawl]` like a batch's policy, with the same bounds for values.
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
        // Commented-out settings are examples too, so they must parse.
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
            ("max_duration = \"31days\"", ":1: crawl.max_duration: must be 1s to 30d"),
            ("request_interval = \"2h\"", ":1: crawl.request_interval: must be 0ms to 1h"),
            ("shortest_interval = \"2s\"", ":1: crawl.shortest_interval: 2s is more than the request_interval of 1s"),
            ("recrawl_interval = \"1s\"", ":1: crawl.recrawl_interval: must be 1h to 365d"),
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
            error.ends_with(": lease.life must be at least twice lease.heartbeat_interval (10s), but is 15s"),
            "{error}"
        );
    }
}
