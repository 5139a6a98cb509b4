//! The settings of `agent.toml` and their defaults, section by section, and how the URLs of
//! schedulers, name servers and networks are written there.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use landfall_proto::traces::Collector;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::net::dns::{NoNameServers, Resolver};
use crate::net::guard::parse_network;

pub const DEFAULT_CAPACITY: u32 = 16;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The scheduler's URL: `https://host:port`, or `http://` on loopback. May be a list of URLs of
    /// schedulers, any of which can serve the agent.
    #[serde(serialize_with = "write_schedulers", deserialize_with = "read_schedulers")]
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

/// The beacon's default address.
pub const DEFAULT_BEACON: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7180);

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BeaconConfig {
    /// Whether to run the beacon. An agent without a beacon cannot be a landmark.
    pub enabled: bool,
    /// The address to listen on; port 0 takes any free port.
    pub listen: SocketAddr,
    /// The URL at which other agents reach the beacon. The URL is needed only if its address
    /// differs from the address from which this agent connects to the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// Private networks in which the agent may measure beacons of other agents. In these networks
    /// the agent connects to nothing else.
    #[serde(deserialize_with = "networks", skip_serializing_if = "Vec::is_empty")]
    pub allow_net: Vec<IpNet>,
}

impl Default for BeaconConfig {
    fn default() -> Self {
        Self { enabled: true, listen: DEFAULT_BEACON, advertise: None, allow_net: Vec::new() }
    }
}

/// The command that crawls sites in place of the agent's own crawler.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecConfig {
    /// The program and its arguments. No shell interprets them.
    pub command: Vec<String>,
    /// The path of the folder for the command's output. The folder is created if missing. Agents
    /// must not share the folder.
    #[serde(default = "default_exec_folder")]
    pub folder: PathBuf,
    /// Milliseconds from SIGTERM until the command is killed, 0 to 30000. If this time exceeds the
    /// scheduler's `lease.grace` (5 s), the command may still crawl a site that another agent has
    /// leased. The maximum is below the `TimeoutStopSec` of the agent's systemd unit.
    #[serde(default = "default_grace")]
    pub grace_ms: u64,
    /// Maximum number of finished leases whose output is kept, 0 to 1000000; the oldest output is
    /// removed first. The default leaves time to move output away, and limits the use of the disk.
    #[serde(default = "default_keep")]
    pub keep: u32,
    /// Free bytes on the folder's disk below which the agent takes no lease, until twice as many
    /// bytes are free. 0 disables the check. Running crawls continue, and their output is not
    /// limited.
    #[serde(default = "default_min_free")]
    pub min_free_bytes: u64,
}

impl ExecConfig {
    /// Permitted values of `grace_ms`.
    pub const GRACE_MS: std::ops::RangeInclusive<u64> = 0..=30_000;
    /// Permitted values of `keep`.
    pub const KEEP: std::ops::RangeInclusive<u32> = 0..=1_000_000;

    pub fn of(command: Vec<String>) -> Self {
        Self {
            command,
            folder: default_exec_folder(),
            grace_ms: default_grace(),
            keep: default_keep(),
            min_free_bytes: default_min_free(),
        }
    }
}

fn default_exec_folder() -> PathBuf {
    PathBuf::from("exec")
}

const fn default_grace() -> u64 {
    3000
}

const fn default_keep() -> u32 {
    1000
}

/// The folder of running crawls: their queues, and the state to resume after a restart.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrawlsConfig {
    /// The path of the folder, which is created if missing. Agents must not share the folder. A
    /// crawl needs a few hundred bytes for every path that it has seen.
    pub folder: PathBuf,
}

impl Default for CrawlsConfig {
    fn default() -> Self {
        Self { folder: PathBuf::from("crawls") }
    }
}

/// The outbox, which keeps outcomes until the scheduler has acknowledged them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutboxConfig {
    /// The path of the folder, which is created if missing. Agents must not share the folder.
    pub folder: PathBuf,
    /// Free bytes on the disk below which no crawl starts. Crawls start again when twice as many
    /// bytes are free. 0 disables the check. An outcome takes a few hundred bytes; the default
    /// leaves enough space for the operating system.
    pub min_free_bytes: u64,
}

impl Default for OutboxConfig {
    fn default() -> Self {
        Self { folder: PathBuf::from("outbox"), min_free_bytes: 64 << 20 }
    }
}

/// The folder of fetched pages.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// The path of the folder, which is created if missing. Agents must not share the folder.
    pub folder: PathBuf,
    /// Size in bytes at which a file is closed and another started, 1 MiB to 10 GiB. Smaller limits
    /// make many files; larger files are slow to move.
    #[serde(default = "default_max_file")]
    pub max_file_bytes: u64,
    /// Free bytes on the disk below which crawls pause. Crawls continue when twice as many bytes
    /// are free. 0 disables the check. The default leaves room for the pages that fifty crawls are
    /// fetching.
    #[serde(default = "default_min_free")]
    pub min_free_bytes: u64,
}

impl StoreConfig {
    /// Permitted values of `max_file_bytes`.
    pub const FILE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=10 << 30;

    pub fn in_folder(folder: PathBuf) -> Self {
        Self { folder, max_file_bytes: default_max_file(), min_free_bytes: default_min_free() }
    }
}

const fn default_max_file() -> u64 {
    1 << 30
}

const fn default_min_free() -> u64 {
    256 << 20
}

const DNS_PORT: u16 = 53;

/// Parses `address` or `address:port`.
pub fn parse_name_server(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse::<SocketAddr>();
    with_port
        .or_else(|_| text.parse::<IpAddr>().map(|addr| SocketAddr::new(addr, DNS_PORT)))
        .map_err(|_| format!("'{text}' is not an address or address:port"))
}

fn name_server<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| parse_name_server(&text)).transpose().map_err(serde::de::Error::custom)
}

fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| parse_network(text)).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

#[derive(Debug, Clone)]
pub struct SchedulerUrl {
    pub url: url::Url,
    pub tls: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSchedulerUrl {
    #[error("'{0}' is neither an https URL nor an http URL on loopback")]
    NotUrl(String),
    /// The credential would cross the network unencrypted.
    #[error("plaintext is refused except on loopback: {0} is not a loopback address, use https")]
    Plaintext(String),
}

impl SchedulerUrl {
    /// Parses the URLs of one fleet's schedulers. Refuses an empty list.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Self>, BadSchedulerUrl> {
        let urls = texts.iter().map(|text| Self::parse(text)).collect::<Result<Vec<_>, _>>()?;
        if urls.is_empty() { Err(BadSchedulerUrl::NotUrl(String::new())) } else { Ok(urls) }
    }

    /// Parses a scheduler's URL. An http URL is accepted only on loopback.
    pub fn parse(text: &str) -> Result<Self, BadSchedulerUrl> {
        let not_url = || BadSchedulerUrl::NotUrl(text.to_owned());
        let url = url::Url::parse(text).map_err(|_| not_url())?;
        let loopback = match url.host().ok_or_else(not_url)? {
            url::Host::Domain(name) => name == "localhost",
            url::Host::Ipv4(addr) => addr.is_loopback(),
            url::Host::Ipv6(addr) => addr.is_loopback(),
        };
        match url.scheme() {
            "https" => Ok(Self { url, tls: true }),
            "http" if loopback => Ok(Self { url, tls: false }),
            "http" => Err(BadSchedulerUrl::Plaintext(url.host_str().unwrap_or_default().to_owned())),
            _ => Err(not_url()),
        }
    }
}

/// The setting's value: one URL, or a list of URLs.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// Writes a single URL as a string, and several as a list.
fn write_schedulers<S: Serializer>(addresses: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    match addresses {
        [one] => one.serialize(serializer),
        more => more.serialize(serializer),
    }
}

fn read_schedulers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let read = OneOrMore::deserialize(deserializer);
    match read.map_err(|_| serde::de::Error::custom("scheduler must be a URL, or a list of URLs"))? {
        OneOrMore::One(one) => Ok(vec![one]),
        OneOrMore::More(more) => Ok(more),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_of_schedulers_is_refused() {
        assert!(SchedulerUrl::parse_all(&[]).is_err());
    }
}
