//! Reads `landfall.toml`: the settings outside any section, and all sections. Rejects unknown keys
//! and invalid values.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_proto::traces::Collector;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::gnp::Tier;
use crate::model::CrawlPolicy;
use crate::model::contact_url::ContactUrl;
use crate::strategy::distance_strategies::confirmation_takes;

use super::sections::{
    ConfigError, ConfirmConfig, DashboardConfig, Draws, KeepConfig, LandmarksConfig, LeaseConfig, MeasureConfig,
    PolitenessConfig, PortConfig, TermConfig, crawl, value,
};

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
    pub port: PortConfig,
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
            port: PortConfig::default(),
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
        self.port.check_bounds()?;
        self.port.check_parts()?;
        self.lease.check_life()?;
        self.keep.check_life(&self.lease, &self.measure)
    }

    /// An estimate of how long a confirmation takes. Most confirmations take no longer.
    pub const fn confirming(&self) -> Duration {
        confirmation_takes(self.confirm.agents, self.confirm.samples, self.measure.site_interval)
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
