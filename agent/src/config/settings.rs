//! The settings of `agent.toml` and their defaults. The settings of a section are in the section's
//! own file.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use landfall_proto::traces::Collector;
use serde::{Deserialize, Serialize};

use super::addresses::{name_server, networks};
use super::beacon::BeaconConfig;
use super::crawls::CrawlsConfig;
use super::exec::ExecConfig;
use super::outbox::OutboxConfig;
use super::scheduler_url;
use super::store::StoreConfig;
use crate::net::dns::{NoNameServers, Resolver};

pub const DEFAULT_CAPACITY: u32 = 16;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The scheduler's URL: `https://host:port`, or `http://` on loopback. May be a list of URLs of
    /// schedulers, any of which can serve the agent.
    #[serde(with = "scheduler_url")]
    pub scheduler: Vec<String>,
    /// The certificate (PEM) of the authority that signed the scheduler's certificate; required for
    /// https.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    #[serde(default = "default_credential")]
    pub credential: PathBuf,
    /// The agent's name, unique in the fleet; written by the enrolment.
    pub name: String,
    pub city: String,
    /// The carrier (ISP) that connects the agent.
    pub carrier: String,
    /// The country as ISO 3166-1 alpha-2 code.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub country: String,
    /// Maximum concurrent crawls, 1 to 10000. Each costs some memory and bandwidth.
    #[serde(default = "default_capacity")]
    pub capacity: u32,
    /// The contact URL in the user agent of every request. If absent, the scheduler's contact URL
    /// is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contact_url: Option<String>,
    /// The source address of every connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind: Option<IpAddr>,
    /// The name server, `address` or `address:port`. If absent, the system's name server is used.
    #[serde(default, deserialize_with = "name_server", skip_serializing_if = "Option::is_none")]
    pub dns: Option<SocketAddr>,
    /// Whether to cache the name server's answers for their TTL, at most an hour. Turn the cache
    /// off only to measure what it saves: without it, every connection queries the name server.
    #[serde(default = "yes")]
    pub dns_cache: bool,
    /// Networks that may be probed and crawled although they are not public.
    #[serde(default, deserialize_with = "networks", skip_serializing_if = "Vec::is_empty")]
    pub allow_net: Vec<IpNet>,
    /// Certificate authorities (PEM) to trust for sites, in addition to the public ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_ca: Option<PathBuf>,
    /// The address at which Prometheus reads the agent's metrics; port 0 takes any free port.
    /// Without an address, the metrics cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
    /// Whether `metrics` may be an address that is not loopback. Everybody who can reach the
    /// address can read the metrics.
    #[serde(default)]
    pub metrics_public: bool,
    /// The OTLP collector that gets a span for each crawl. If absent, no spans are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp: Option<Collector>,
    #[serde(default)]
    pub beacon: BeaconConfig,
    #[serde(default)]
    pub outbox: OutboxConfig,
    #[serde(default)]
    pub crawls: CrawlsConfig,
    /// Where to store fetched pages. If absent, no pages are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreConfig>,
    /// The command that crawls sites. If absent, the agent's own crawler crawls them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecConfig>,
}

impl Config {
    pub fn resolver(&self) -> Result<Resolver, NoNameServers> {
        if self.dns_cache { Resolver::new(self.dns) } else { Resolver::without_cache(self.dns) }
    }
}

fn default_credential() -> PathBuf {
    PathBuf::from("credential")
}

const fn default_capacity() -> u32 {
    DEFAULT_CAPACITY
}

const fn yes() -> bool {
    true
}
