//! A site's origin (scheme, host, port). Derives origins from submitted names, and decides which
//! origins are in one registrable domain (public suffix list).
//!
//! This module is pure. For a bare host, https is tried before http.
//! [`crate::probe::measure_host`] decides which redirects move a site to another origin.

use std::fmt;
use std::str::FromStr;

use url::Url;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// The origin of a site. Displayed as `scheme://host`, with the port unless it is the scheme's
/// default.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    pub scheme: Scheme,
    /// A lower-case ASCII name without a final dot, or an address. IPv6 addresses are in brackets.
    pub host: String,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is neither a host nor an http or https URL")]
pub struct BadOrigin(String);

impl Origin {
    pub fn of(url: &Url) -> Result<Self, BadOrigin> {
        let bad = || BadOrigin(url.as_str().to_owned());
        let scheme = match url.scheme() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(bad()),
        };
        let host = url.host_str().map(|host| host.trim_end_matches('.')).filter(|host| !host.is_empty());
        let port = url.port_or_known_default().filter(|port| *port != 0);
        Ok(Self { scheme, host: host.ok_or_else(bad)?.to_owned(), port: port.ok_or_else(bad)? })
    }

    /// The origins to try for a submitted name, in order. A bare host has two, https and http; any
    /// other name has one.
    pub fn candidates(name: &str) -> Result<Vec<Self>, BadOrigin> {
        if name.contains("://") {
            return Ok(vec![name.parse()?]);
        }
        // An https URL omits its default port, so `host:443` would lose its port. Parse the port
        // from the text.
        let written_port = name.rsplit_once(':').filter(|(host, _)| !host.ends_with(':')).map(|(_, port)| port);
        let https: Self = format!("https://{name}").parse()?;
        let mut http: Self = format!("http://{name}").parse()?;
        if let Some(Ok(port)) = written_port.map(str::parse::<u16>)
            && !name.ends_with(']')
        {
            http.port = port;
        }
        Ok(vec![https, http])
    }

    /// Whether both origins are in the same registrable domain. IP addresses have no domain, so
    /// they must be equal.
    pub fn same_site(&self, other: &Self) -> bool {
        if self.host == other.host {
            return true;
        }
        let is_address = |host: &str| matches!(url::Host::parse(host), Ok(url::Host::Ipv4(_) | url::Host::Ipv6(_)));
        if is_address(&self.host) || is_address(&other.host) {
            return false;
        }
        match (psl::domain_str(&self.host), psl::domain_str(&other.host)) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => false,
        }
    }

    /// The value of the `Host` header, with the port unless it is the scheme's default.
    pub fn authority(&self) -> String {
        if self.has_default_port() { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// The name of the site in a site list: the bare host if the port is the scheme's default.
    pub fn site_name(&self) -> String {
        if self.has_default_port() { self.host.clone() } else { self.to_string() }
    }

    const fn has_default_port(&self) -> bool {
        self.port == self.scheme.default_port()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.authority())
    }
}

impl FromStr for Origin {
    type Err = BadOrigin;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = Url::parse(text).map_err(|_| BadOrigin(text.to_owned()))?;
        Self::of(&url).map_err(|_| BadOrigin(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Origin {
        text.parse().unwrap()
    }

    #[test]
    fn an_origin_reads_what_it_writes() {
        for text in ["http://example.cn", "https://example.cn:8443", "http://127.2.0.1:8080", "https://[2001:db8::1]"] {
            assert_eq!(origin(text).to_string(), text);
        }
        assert_eq!(origin("HTTPS://Example.CN:443/path?x").to_string(), "https://example.cn");
        assert_eq!(origin("https://example.cn").site_name(), "example.cn");
        assert_eq!(origin("http://example.cn:443").site_name(), "http://example.cn:443");
        for text in ["ftp://example.cn", "example.cn", "http://", "mailto:a@b", "http://example.cn:0"] {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_bare_host_is_tried_as_https_then_http() {
        let texts =
            |name: &str| -> Vec<String> { Origin::candidates(name).unwrap().iter().map(ToString::to_string).collect() };
        assert_eq!(texts("example.cn"), ["https://example.cn", "http://example.cn"]);
        assert_eq!(texts("example.cn:8080"), ["https://example.cn:8080", "http://example.cn:8080"]);
        assert_eq!(texts("example.cn:443"), ["https://example.cn", "http://example.cn:443"]);
        assert_eq!(texts("[::1]"), ["https://[::1]", "http://[::1]"]);
        assert_eq!(texts("http://example.cn"), ["http://example.cn"]);
        assert!(Origin::candidates("a b").is_err());
    }
}
