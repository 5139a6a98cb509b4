//! The agent's configuration, read from `agent.toml` and checked once. `landfall-agent enrol`
//! writes the file.
//!
//! Unknown keys are errors. Relative paths are resolved against the file's folder, unless the
//! caller gives another folder.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use landfall_proto::traces::Collector;
use serde::{Deserialize, Deserializer, Serialize};

use crate::net::dns::{NoNameServers, Resolver};
use crate::net::guard::parse_network;
use crate::net::user_agent::UserAgent;

pub use error::ConfigError;
pub use exec::ExecConfig;
pub use scheduler_url::{BadSchedulerUrl, SchedulerUrl};
pub use store::StoreConfig;

mod error;
mod exec;
pub(crate) mod program;
mod scheduler_url;
mod store;

pub const FILE: &str = "agent.toml";
/// The beacon's default address.
pub const DEFAULT_BEACON: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7180);
pub const DEFAULT_CAPACITY: u32 = 16;
const MAX_CAPACITY: u32 = 10_000;
const DNS_PORT: u16 = 53;

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

impl Config {
    /// Reads and checks a file. Relative paths are resolved against the file's folder.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_from(path, path.parent().unwrap_or(Path::new(".")))
    }

    /// Reads and checks a file. Relative paths are resolved against `folder`.
    pub fn load_from(path: &Path, folder: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => ConfigError::Missing(path.to_owned()),
            _ => ConfigError::Read { path: path.to_owned(), source },
        })?;
        let mut config = Self::parse(path, &text)?;
        // The folder is made absolute so that error messages do not depend on the working
        // directory.
        let folder = absolute(folder);
        let (always, perhaps) = (
            [&mut config.credential, &mut config.outbox.folder, &mut config.crawls.folder],
            [config.ca.as_mut(), config.extra_ca.as_mut()],
        );
        let store = config.store.as_mut().map(|store| &mut store.folder);
        for file in always.into_iter().chain(perhaps.into_iter().flatten()).chain(store) {
            *file = folder.join(&*file);
        }
        if let Some(exec) = &mut config.exec {
            exec.start_at(&folder);
        }
        config.validate()?;
        Ok(config)
    }

    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text)
            .map_err(|error| ConfigError::Parse { path: path.to_owned(), reason: one_line(text, &error) })
    }

    /// Replaces the command that crawls sites. A relative `exec.folder` is resolved against
    /// `folder`.
    pub fn crawl_with(&mut self, command: Vec<String>, folder: &Path) {
        match &mut self.exec {
            Some(exec) => exec.command = command,
            None => {
                let mut exec = ExecConfig::of(command);
                exec.start_at(&absolute(folder));
                self.exec = Some(exec);
            }
        }
    }

    pub fn resolver(&self) -> Result<Resolver, NoNameServers> {
        if self.dns_cache { Resolver::new(self.dns) } else { Resolver::without_cache(self.dns) }
    }

    /// Checks the rules that concern several fields.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |key, reason: String| Err(ConfigError::Invalid { key, reason });
        for (key, value) in [("name", &self.name), ("city", &self.city), ("carrier", &self.carrier)] {
            if value.trim().is_empty() {
                return invalid(key, "must not be empty".to_owned());
            }
        }
        if !(1..=MAX_CAPACITY).contains(&self.capacity) {
            return invalid("capacity", format!("{} is not in 1 to {MAX_CAPACITY}", self.capacity));
        }
        if let Some(contact) = &self.contact_url
            && let Err(error) = UserAgent::new(contact)
        {
            return invalid("contact_url", error.to_string());
        }
        if let Some(listen) = self.metrics
            && !self.metrics_public
            && !listen.ip().to_canonical().is_loopback()
        {
            return invalid(
                "metrics",
                format!(
                    "{listen} is not a loopback address, and everybody who reaches it could read the metrics; to permit \
                     that, set metrics_public = true in agent.toml"
                ),
            );
        }
        if let Some(url) = &self.beacon.advertise
            && let Err(error) = url.parse::<crate::net::origin::Origin>()
        {
            return invalid("beacon.advertise", error.to_string());
        }
        if let Some(StoreConfig { max_file_bytes, .. }) = &self.store
            && !StoreConfig::FILE_BYTES.contains(max_file_bytes)
        {
            return invalid("store.max_file_bytes", format!("{max_file_bytes} is not in 1 MiB to 10 GiB"));
        }
        self.exec.as_ref().map_or(Ok(()), ExecConfig::validate)?;
        let schedulers = match SchedulerUrl::parse_all(&self.scheduler) {
            Ok(schedulers) => schedulers,
            Err(error) => return invalid("scheduler", error.to_string()),
        };
        if schedulers.iter().any(|scheduler| scheduler.tls) && self.ca.is_none() {
            return invalid(
                "ca",
                "an https scheduler requires the authority that signed its certificate (PEM)".to_owned(),
            );
        }
        Ok(())
    }
}

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

/// A TOML error as one sentence with the line number, instead of the library's excerpt of the file.
pub(crate) fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().lines().next().unwrap_or_default();
    match error.span() {
        Some(span) => {
            let line = text.get(..span.start).unwrap_or_default().matches('\n').count() + 1;
            format!("line {line}: {message}")
        }
        None => message.to_owned(),
    }
}

fn absolute(folder: &Path) -> PathBuf {
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "scheduler = 'http://127.0.0.1:7171'\nname = 'a'\ncity = 'Harbin'\ncarrier = 'CERNET'\n";

    fn load(text: &str) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, text).unwrap();
        Config::load(&path)
    }

    #[test]
    fn a_written_configuration_is_read_again() {
        let more =
            "dns = '127.0.0.1'\nallow_net = ['127.0.0.0/8']\nbind = '127.1.0.1'\n[beacon]\nlisten = '127.0.0.1:0'\n";
        let config = load(&format!("{LEAST}{more}")).unwrap();
        assert_eq!(config.capacity, DEFAULT_CAPACITY);
        assert_eq!(config.dns, Some("127.0.0.1:53".parse().unwrap()));
        assert!(config.credential.is_absolute());
        assert_eq!(config.scheduler, ["http://127.0.0.1:7171"]);
        let store = load(&format!("{LEAST}[store]\nfolder = 'pages'\n")).unwrap().store.unwrap();
        assert!(store.folder.is_absolute() && store.folder.ends_with("pages"));
        assert_eq!((store.max_file_bytes, store.min_free_bytes), (1 << 30, 256 << 20));
        let exec = load(&format!("{LEAST}[exec]\ncommand = ['./crawl.sh', './x']\n")).unwrap().exec.unwrap();
        assert!(exec.command[0].starts_with('/') && exec.command[1] == "./x", "{:?}", exec.command);
        assert!(exec.folder.is_absolute() && exec.folder.ends_with("exec"));
        assert_eq!((exec.grace_ms, exec.keep, exec.min_free_bytes), (3000, 1000, 256 << 20));
        let again = load(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(format!("{config:?}"), format!("{again:?}"));
    }

    /// The dotted key (`a.b`) of every value.
    fn keys(table: &toml::Table, prefix: &str) -> std::collections::BTreeSet<String> {
        let of = |(key, value): (&String, &toml::Value)| match value {
            toml::Value::Table(inner) => keys(inner, &format!("{prefix}{key}.")),
            _ => [format!("{prefix}{key}")].into(),
        };
        table.iter().flat_map(of).collect()
    }

    #[test]
    fn metrics_are_on_loopback_unless_the_operator_says_otherwise() {
        for accepted in ["127.0.0.1:7181", "[::1]:0", "0.0.0.0:7181'\nmetrics_public = true\n#"] {
            assert!(load(&format!("{LEAST}metrics = '{accepted}'\n")).is_ok(), "{accepted}");
        }
        for refused in ["0.0.0.0:7181", "[::]:7181", "192.0.2.7:7181", "[::ffff:192.0.2.7]:7181"] {
            let error = load(&format!("{LEAST}metrics = '{refused}'\n")).unwrap_err().to_string();
            assert!(error.contains("metrics: ") && error.contains("metrics_public = true"), "{error}");
        }
        let error = load(&format!("{LEAST}metrics = 'here'\n")).unwrap_err().to_string();
        assert!(error.contains("line 5: ") && error.contains("socket address"), "{error}");
    }

    #[test]
    fn the_example_names_every_key_with_its_default() {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/agent.example.toml");
        let text = std::fs::read_to_string(example).unwrap();
        // A commented-out key is an example, so it must parse too.
        let uncommented: String =
            text.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n").collect();
        let [as_written, full]: [Config; 2] = [&text, &uncommented].map(|text| toml::from_str(text).unwrap());
        let least = ["scheduler", "name", "city", "carrier"];
        let least: toml::Table =
            text.parse::<toml::Table>().unwrap().into_iter().filter(|(key, _)| least.contains(&&**key)).collect();
        let defaults: Config = least.try_into().unwrap();
        assert_eq!(format!("{as_written:?}"), format!("{defaults:?}"));
        assert_eq!(format!("{:?}", full.store), format!("{:?}", Some(StoreConfig::in_folder(PathBuf::from("pages")))));
        let exec = ExecConfig::of(vec!["./crawl.sh".to_owned()]);
        assert_eq!(format!("{:?}", full.exec), format!("{:?}", Some(exec)));
        // Every key must be in the example. Only keys that are absent by default may be commented
        // out.
        for (text, config) in [(&text, &as_written), (&uncommented, &full)] {
            assert_eq!(keys(&text.parse().unwrap(), ""), keys(&toml::Table::try_from(config).unwrap(), ""));
        }
        let shown = format!("{full:?}");
        for nothing in [": None", ": \"\"", ": []"] {
            assert!(!shown.contains(nothing), "a key is missing from the example: {shown}");
        }
    }

    #[test]
    fn mistakes_name_their_key() {
        let cases = [
            (format!("{LEAST}capacty = 3\n"), "capacty"),
            (format!("{LEAST}capacity = 0\n"), "capacity"),
            (format!("{LEAST}contact_url = 'nowhere'\n"), "contact_url"),
            (format!("{LEAST}dns = 'nowhere'\n"), "line 5"),
            (format!("{LEAST}allow_net = ['127.0.1.0/33']\n"), "line 5: '127.0.1.0/33': a prefix is 0 to 32"),
            (format!("{LEAST}[beacon]\nadvertise = 'here'\n"), "beacon.advertise"),
            (format!("{LEAST}[store]\n"), "folder"),
            (format!("{LEAST}[store]\nfolder = 'p'\nmax_file_bytes = 1048575\n"), "store.max_file_bytes"),
            (format!("{LEAST}[store]\nfolder = 'p'\nmin_free = 1\n"), "min_free"),
            (format!("{LEAST}[exec]\n"), "command"),
            (format!("{LEAST}[exec]\ncommand = []\n"), "exec.command"),
            (format!("{LEAST}[exec]\ncommand = ['a', \"b\\u0000\"]\n"), "exec.command: a word contains a NUL"),
            (format!("{LEAST}[exec]\ncommand = 'wget2 --mirror'\n"), "expected a sequence"),
            (
                format!("{LEAST}[exec]\ncommand = ['a']\ngrace_ms = 30001\n"),
                "exec.grace_ms: 30001 is not in 0 to 30000",
            ),
            (format!("{LEAST}[exec]\ncommand = ['a']\nkeep = 1000001\n"), "exec.keep"),
            (format!("{LEAST}[exec]\ncommand = ['a']\nkeep = -1\n"), "line 7"),
            (LEAST.replace("Harbin", " "), "city"),
            (LEAST.replace("127.0.0.1", "192.0.2.1"), "plaintext is refused except on loopback"),
            (LEAST.replace("http:", "https:"), "ca:"),
            (LEAST.replace("http:", "ftp:"), "scheduler"),
            (LEAST.replace("'http://127.0.0.1:7171'", "[]"), "scheduler"),
            (LEAST.replace("'http://127.0.0.1:7171'", "7171"), "scheduler must be a URL, or a list"),
            (LEAST.replace("'http://127.0.0.1:7171'", "['http://127.0.0.1:7171', 'https://a:1']"), "ca:"),
        ];
        for (text, expected) in cases {
            let error = load(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
