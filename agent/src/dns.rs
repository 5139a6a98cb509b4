//! Resolves names to addresses. Nothing here decides whether an address may be connected: that is [`crate::guard`].
//!
//! Each agent resolves for itself, with the system's servers or one it is given, because sites answer differently in
//! different places. IP literals come back as they are, in whatever spelling a URL may hold them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{ResolverBuilder, TokioResolver};

/// How long a lookup may take, retries included.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Answers kept while they live: enough for the sites an agent holds at once, and small.
const CACHED_ANSWERS: u64 = 1024;

/// Why a name did not resolve.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// It is no host name.
    #[error("'{0}' is not a host name")]
    BadName(String),
    /// It has no address.
    #[error("{0} has no address")]
    NotFound(String),
    /// No answer within [`LOOKUP_TIMEOUT`].
    #[error("resolving {0} took longer than {LOOKUP_TIMEOUT:?}")]
    Timeout(String),
    /// The name servers did not answer usefully.
    #[error("resolve {host}")]
    Failed {
        /// The name.
        host: String,
        /// What went wrong.
        #[source]
        source: Box<NetError>,
    },
}

/// No resolver could be made.
#[derive(Debug, thiserror::Error)]
#[error("read the system's name servers; set `dns` to one")]
pub struct NoNameServers(#[source] Box<NetError>);

/// A caching stub resolver. Cheap to clone.
#[derive(Clone)]
pub struct Resolver {
    inner: Arc<TokioResolver>,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl Resolver {
    /// A resolver that asks `server`, or the system's servers.
    ///
    /// # Errors
    /// When the system names no servers.
    pub fn new(server: Option<SocketAddr>) -> Result<Self, NoNameServers> {
        let mut builder = match server {
            Some(server) => ask_only(server),
            None => TokioResolver::builder_tokio().map_err(|error| NoNameServers(Box::new(error)))?,
        };
        let options = builder.options_mut();
        options.cache_size = CACHED_ANSWERS;
        options.timeout = LOOKUP_TIMEOUT / 2;
        options.attempts = 2;
        let inner = builder.build().map_err(|error| NoNameServers(Box::new(error)))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The addresses of a host, IPv4 first; never empty.
    ///
    /// # Errors
    /// When there is none.
    pub async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, DnsError> {
        let name = match url_host(host)? {
            url::Host::Ipv4(addr) => return Ok(vec![addr.into()]),
            url::Host::Ipv6(addr) => return Ok(vec![addr.into()]),
            url::Host::Domain(name) => name,
        };
        // The final dot keeps the search list of resolv.conf out of it.
        let absolute = format!("{}.", name.trim_end_matches('.'));
        let lookup = tokio::time::timeout(LOOKUP_TIMEOUT, self.inner.lookup_ip(absolute));
        let answer = match lookup.await {
            Err(_) => return Err(DnsError::Timeout(name)),
            Ok(Err(error)) if error.is_no_records_found() => return Err(DnsError::NotFound(name)),
            Ok(Err(error)) => return Err(DnsError::Failed { host: name, source: Box::new(error) }),
            Ok(Ok(answer)) => answer,
        };
        let mut addresses: Vec<IpAddr> = answer.iter().collect();
        if addresses.is_empty() {
            return Err(DnsError::NotFound(name));
        }
        addresses.sort_by_key(IpAddr::is_ipv6);
        Ok(addresses)
    }
}

fn ask_only(server: SocketAddr) -> ResolverBuilder<TokioRuntimeProvider> {
    let mut name_server = NameServerConfig::udp_and_tcp(server.ip());
    for connection in &mut name_server.connections {
        connection.port = server.port();
    }
    let config = ResolverConfig::from_name_servers(vec![name_server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    builder.options_mut().use_hosts_file = ResolveHosts::Never;
    builder
}

/// Reads a host as a URL's would be: `0x7f.1` is an address, not a name.
fn url_host(host: &str) -> Result<url::Host, DnsError> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(addr) = bare.parse::<std::net::Ipv6Addr>() {
        return Ok(url::Host::Ipv6(addr));
    }
    url::Host::parse(host).map_err(|_| DnsError::BadName(host.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn literals_need_no_server() {
        let resolver = Resolver::new(Some("127.0.0.1:9".parse().unwrap())).unwrap();
        for (host, addr) in [("192.0.2.7", "192.0.2.7"), ("0x7f.1", "127.0.0.1"), ("[2001:db8::1]", "2001:db8::1")] {
            assert_eq!(resolver.resolve(host).await.unwrap(), vec![addr.parse::<IpAddr>().unwrap()]);
        }
    }

    #[tokio::test]
    async fn rubbish_is_refused_before_it_is_asked() {
        let resolver = Resolver::new(Some("127.0.0.1:9".parse().unwrap())).unwrap();
        for host in ["", "a b", "a/b", "[::1", "999.999.999.999"] {
            assert!(matches!(resolver.resolve(host).await, Err(DnsError::BadName(_))), "{host}");
        }
    }
}
