//! Resolves names to addresses. [`crate::net::guard`] decides to which addresses the agent may
//! connect.
//!
//! Each agent resolves names itself, with the system's or the configured name servers, because DNS
//! may return different addresses to agents in different cities. An IP literal needs no query,
//! whatever its spelling.
//!
//! Answers, including negative ones, are cached for their TTL, which the constants below limit.
//! Callers must vet every address before using it, even if the address comes from the cache.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{ResolverBuilder, TokioResolver};

use crate::metrics::{LookupResult, METRICS};

/// Time limit for a lookup, including retries.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of cached answers. Each name has two answers (A and AAAA). The maximum is enough
/// for the sites that an agent crawls at the same time.
const CACHED_ANSWERS: u64 = 1024;
/// Maximum time for which an address is cached, whatever its TTL. The time is limited because a
/// site may move to another address during a crawl of many hours.
const LONGEST_KEPT: Duration = Duration::from_secs(3600);
/// Maximum time for which a negative answer is cached. The time is short so that a repaired name
/// works within minutes.
const LONGEST_MISSED: Duration = Duration::from_secs(300);
/// Minimum time for which a negative answer is cached. Some servers set no TTL. If their answers
/// were not cached, every connection to a site without an IPv6 address would cause another query
/// for that address.
const SHORTEST_MISSED: Duration = Duration::from_secs(10);
/// Maximum number of a host's addresses to use. A name can have hundreds of addresses, and each may
/// cost a connection attempt.
const MAX_ADDRESSES: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    #[error("'{0}' is not a host name")]
    BadName(String),
    #[error("{0} has no address")]
    NotFound(String),
    #[error("resolving {0} took longer than {LOOKUP_TIMEOUT:?}")]
    Timeout(String),
    /// The name servers sent no usable answer.
    #[error("resolve {host}: {problem}")]
    Failed { host: String, problem: Box<NetError> },
}

#[derive(Debug, thiserror::Error)]
#[error("cannot read the system's name servers; set dns in agent.toml, or give --dns")]
pub struct NoNameServers(#[source] Box<NetError>);

/// A stub resolver. Cheap to clone.
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
    /// Makes a resolver that queries `server`, or the system's name servers if `server` is `None`,
    /// and that caches answers.
    pub fn new(server: Option<SocketAddr>) -> Result<Self, NoNameServers> {
        Self::with_limits(
            server,
            CacheLimits {
                answers: CACHED_ANSWERS,
                positive: LONGEST_KEPT,
                negative: (SHORTEST_MISSED, LONGEST_MISSED),
            },
        )
    }

    /// Makes a resolver that sends a query for every lookup, for use if
    /// [`crate::config::Config::dns_cache`] is false.
    pub fn without_cache(server: Option<SocketAddr>) -> Result<Self, NoNameServers> {
        Self::with_limits(
            server,
            CacheLimits { answers: 0, positive: Duration::ZERO, negative: (Duration::ZERO, Duration::ZERO) },
        )
    }

    fn with_limits(server: Option<SocketAddr>, kept: CacheLimits) -> Result<Self, NoNameServers> {
        let mut builder = match server {
            Some(server) => only_server(server),
            None => TokioResolver::builder_tokio().map_err(|error| NoNameServers(Box::new(error)))?,
        };
        let options = builder.options_mut();
        options.cache_size = kept.answers;
        options.positive_max_ttl = Some(kept.positive);
        (options.negative_min_ttl, options.negative_max_ttl) = (Some(kept.negative.0), Some(kept.negative.1));
        options.timeout = LOOKUP_TIMEOUT / 2;
        options.attempts = 2;
        let inner = builder.build().map_err(|error| NoNameServers(Box::new(error)))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The addresses of a host, IPv4 first; never an empty list.
    pub async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, DnsError> {
        let name = match url_host(host)? {
            url::Host::Ipv4(addr) => return Ok(vec![addr.into()]),
            url::Host::Ipv6(addr) => return Ok(vec![addr.into()]),
            url::Host::Domain(name) => name,
        };
        // A final dot prevents the resolver from trying the search list of resolv.conf.
        let absolute = format!("{}.", name.trim_end_matches('.'));
        let lookup = tokio::time::timeout(LOOKUP_TIMEOUT, self.inner.lookup_ip(absolute)).await;
        METRICS.looked_up(match &lookup {
            Err(_) => LookupResult::TimedOut,
            Ok(Err(error)) if error.is_no_records_found() => LookupResult::NotFound,
            Ok(Err(_)) => LookupResult::Failed,
            Ok(Ok(_)) => LookupResult::Answered,
        });
        let answer = match lookup {
            Err(_) => return Err(DnsError::Timeout(name)),
            Ok(Err(error)) if error.is_no_records_found() => return Err(DnsError::NotFound(name)),
            Ok(Err(error)) => return Err(DnsError::Failed { host: name, problem: Box::new(error) }),
            Ok(Ok(answer)) => answer,
        };
        let mut addresses: Vec<IpAddr> = answer.iter().collect();
        if addresses.is_empty() {
            return Err(DnsError::NotFound(name));
        }
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses.truncate(MAX_ADDRESSES);
        Ok(addresses)
    }
}

#[derive(Clone, Copy)]
struct CacheLimits {
    answers: u64,
    positive: Duration,
    /// Minimum and maximum time for which a negative answer is cached.
    negative: (Duration, Duration),
}

fn only_server(server: SocketAddr) -> ResolverBuilder<TokioRuntimeProvider> {
    let mut name_server = NameServerConfig::udp_and_tcp(server.ip());
    for connection in &mut name_server.connections {
        connection.port = server.port();
    }
    let config = ResolverConfig::from_name_servers(vec![name_server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    builder.options_mut().use_hosts_file = ResolveHosts::Never;
    builder
}

/// Parses a host as URLs do. For example, `0x7f.1` is an address, not a name.
fn url_host(host: &str) -> Result<url::Host, DnsError> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(addr) = bare.parse::<std::net::Ipv6Addr>() {
        return Ok(url::Host::Ipv6(addr));
    }
    url::Host::parse(host).map_err(|_| DnsError::BadName(host.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::testing::{DnsAnswer, TestNames};

    #[tokio::test]
    async fn literals_need_no_server() {
        let resolver = Resolver::new(Some("127.0.0.1:9".parse().unwrap())).unwrap();
        for (host, addr) in [("192.0.2.7", "192.0.2.7"), ("0x7f.1", "127.0.0.1"), ("[2001:db8::1]", "2001:db8::1")] {
            assert_eq!(resolver.resolve(host).await.unwrap(), vec![addr.parse::<IpAddr>().unwrap()]);
        }
    }

    #[tokio::test]
    async fn an_invalid_name_is_refused_before_any_query() {
        let resolver = Resolver::new(Some("127.0.0.1:9".parse().unwrap())).unwrap();
        for host in ["", "a b", "a/b", "[::1", "999.999.999.999"] {
            assert!(matches!(resolver.resolve(host).await, Err(DnsError::BadName(_))), "{host}");
        }
    }

    /// Resolves a name repeatedly until the server has received `times` queries for it. Returns how
    /// long that took.
    async fn until_queried(resolver: &Resolver, names: &TestNames, name: &str, times: usize) -> Duration {
        let started = Instant::now();
        while names.queries(name) < times {
            assert!(started.elapsed() < Duration::from_secs(10), "{name} is asked for {} times", names.queries(name));
            drop(resolver.resolve(name).await);
            tokio::task::yield_now().await;
        }
        started.elapsed()
    }

    const DAY: u32 = 86_400;

    async fn names() -> TestNames {
        TestNames::answering(|name, _| {
            let addr = IpAddr::from([192, 0, 2, 7]);
            match name {
                "short.example" => DnsAnswer::At(vec![addr], 1),
                "gone.example" => DnsAnswer::Gone(1),
                "long-gone.example" => DnsAnswer::Gone(DAY),
                "many.example" => DnsAnswer::At((0..30).map(|host| IpAddr::from([192, 0, 2, host])).collect(), DAY),
                "silent.example" => DnsAnswer::Silent,
                _ => DnsAnswer::At(vec![addr], DAY),
            }
        })
        .await
    }

    #[tokio::test]
    async fn an_answer_is_cached_for_its_ttl() {
        let names = names().await;
        let kept = CacheLimits { answers: 100, positive: LONGEST_KEPT, negative: (Duration::ZERO, LONGEST_MISSED) };
        let resolver = Resolver::with_limits(Some(names.addr), kept).unwrap();
        let second = |elapsed: Duration| assert!(elapsed > Duration::from_millis(700), "{elapsed:?}");
        tokio::join!(
            async {
                second(until_queried(&resolver, &names, "short.example", 2).await);
            },
            async {
                second(until_queried(&resolver, &names, "gone.example", 2).await);
            },
        );
        for name in ["long.example", "long-gone.example"] {
            for _ in 0..20 {
                drop(resolver.resolve(name).await);
            }
            assert_eq!(names.queries(name), 1, "{name}");
        }
        assert!(matches!(resolver.resolve("long-gone.example").await, Err(DnsError::NotFound(_))));
    }

    #[tokio::test]
    async fn no_answer_is_cached_longer_than_the_limits() {
        let names = names().await;
        let limit = Duration::from_secs(1);
        let kept = CacheLimits { answers: 100, positive: limit, negative: (Duration::ZERO, limit) };
        let resolver = Resolver::with_limits(Some(names.addr), kept).unwrap();
        let second = |elapsed: Duration| assert!(elapsed > Duration::from_millis(700), "{elapsed:?}");
        tokio::join!(
            async {
                second(until_queried(&resolver, &names, "long.example", 2).await);
            },
            async {
                second(until_queried(&resolver, &names, "long-gone.example", 2).await);
            },
        );
    }

    #[tokio::test]
    async fn the_cache_is_bounded_in_answers() {
        let names = TestNames::answering(|name, _| match name.starts_with("gone") {
            true => DnsAnswer::Gone(DAY),
            false => DnsAnswer::At(vec![[192, 0, 2, 7].into()], DAY),
        })
        .await;
        let (kept, hosts) = (20, 100);
        let limits = CacheLimits { answers: kept, positive: LONGEST_KEPT, negative: (SHORTEST_MISSED, LONGEST_MISSED) };
        let resolver = Resolver::with_limits(Some(names.addr), limits).unwrap();
        for kind in ["gone", "here"] {
            let asked = async || {
                for host in 0..hosts {
                    drop(resolver.resolve(&format!("{kind}-{host}.example")).await);
                }
                (0..hosts).map(|host| names.queries(&format!("{kind}-{host}.example"))).sum::<usize>()
            };
            assert_eq!(asked().await, hosts);
            let again = asked().await - hosts;
            assert!(again >= hosts - usize::try_from(kept).unwrap(), "{kind}: {again} of {hosts} were not kept");
        }
    }

    #[tokio::test]
    async fn a_missing_ipv6_address_is_cached_though_the_server_sets_no_ttl() {
        let names = names().await;
        let resolver = Resolver::new(Some(names.addr)).unwrap();
        for _ in 0..20 {
            resolver.resolve("long.example").await.unwrap();
        }
        assert_eq!(names.all_queries(), 2);
    }

    #[tokio::test]
    async fn every_lookup_is_a_query_without_a_cache() {
        let names = names().await;
        let resolver = Resolver::without_cache(Some(names.addr)).unwrap();
        for name in ["long.example", "long-gone.example"] {
            for _ in 0..5 {
                drop(resolver.resolve(name).await);
            }
            assert_eq!(names.queries(name), 5, "{name}");
        }
    }

    #[tokio::test]
    async fn many_addresses_of_a_name_are_cut() {
        let names = names().await;
        let resolver = Resolver::new(Some(names.addr)).unwrap();
        assert_eq!(resolver.resolve("many.example").await.unwrap().len(), MAX_ADDRESSES);
    }

    #[tokio::test]
    async fn a_silent_name_server_times_out() {
        let names = names().await;
        let resolver = Resolver::new(Some(names.addr)).unwrap();
        let started = Instant::now();
        let error = resolver.resolve("silent.example").await.unwrap_err();
        assert!(started.elapsed() < LOOKUP_TIMEOUT + Duration::from_secs(1), "{:?}", started.elapsed());
        assert!(matches!(error, DnsError::Timeout(_) | DnsError::Failed { .. }), "{error}");
    }
}
