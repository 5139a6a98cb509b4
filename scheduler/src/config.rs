//! The scheduler's configuration: one typed tree, read from TOML, checked once.
//!
//! Unknown keys are refused. Durations are written as `10s` or `250ms`.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::Deserialize;

/// Where the scheduler listens unless told otherwise.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7171);

/// Everything an operator may set.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The gRPC address. Off loopback the scheduler speaks TLS.
    pub listen: SocketAddr,
    /// Carried in every user agent; kept in the database once set.
    pub contact_url: Option<String>,
    /// How leases live.
    pub lease: LeaseConfig,
    /// How hosts are measured.
    pub measure: MeasureConfig,
    /// How far a batch without a policy of its own is crawled.
    pub crawl: CrawlConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN,
            contact_url: None,
            lease: LeaseConfig::default(),
            measure: MeasureConfig::default(),
            crawl: CrawlConfig::default(),
        }
    }
}

/// How leases live (DESIGN §8).
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeaseConfig {
    /// Mean time between two heartbeats, 100 ms to 1 min. Shorter finds dead agents sooner and costs one row update each.
    #[serde(with = "humantime_serde")]
    pub heartbeat_interval: Duration,
    /// How long an agent may crawl after sending a heartbeat; at least twice the interval, so that one may be lost.
    #[serde(with = "humantime_serde")]
    pub life: Duration,
    /// How much longer the scheduler waits before it gives the leases to another, 100 ms to 1 min: it covers the
    /// network's delay and the drift of two clocks over one life.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(10),
            life: Duration::from_secs(30),
            grace: Duration::from_secs(5),
        }
    }
}

/// What is taken for distance (DESIGN §5).
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

/// How hosts are measured (DESIGN §5).
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MeasureConfig {
    /// What is taken for distance.
    pub metric: Metric,
    /// Samples of a site per landmark, 1 to 100. Five is the fewest whose median survives two bad ones.
    pub site_samples: u32,
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
    /// After this a measurement of a site is not used for a new task.
    #[serde(with = "humantime_serde")]
    pub site_max_age: Duration,
}

impl Default for MeasureConfig {
    fn default() -> Self {
        Self {
            metric: Metric::Ttfb,
            site_samples: 5,
            mesh_samples: 10,
            site_interval: Duration::from_secs(1),
            mesh_interval: Duration::from_millis(20),
            sample_timeout: Duration::from_secs(5),
            max_site_orders: 256,
            max_mesh_orders: 4,
            max_mesh_peers: 32,
            mesh_max_age: Duration::from_secs(3600),
            site_max_age: Duration::from_secs(24 * 3600),
        }
    }
}

/// How far a batch without a policy of its own is crawled; see [`crate::model::CrawlPolicy`].
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrawlConfig {
    /// Pages at most, 1 or more.
    pub max_pages: u32,
    /// Body bytes at most, 1 or more.
    pub max_bytes: u64,
    /// Links from the start page at most.
    pub max_depth: u32,
    /// Time at most.
    #[serde(with = "humantime_serde")]
    pub max_duration: Duration,
    /// Least time between the starts of two requests to a site.
    #[serde(with = "humantime_serde")]
    pub request_interval: Duration,
}

impl Default for CrawlConfig {
    fn default() -> Self {
        let policy = crate::model::CrawlPolicy::default();
        Self {
            max_pages: policy.max_pages,
            max_bytes: policy.max_bytes,
            max_depth: policy.max_depth,
            max_duration: policy.max_duration,
            request_interval: policy.request_interval,
        }
    }
}
