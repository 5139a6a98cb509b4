//! Checks site names and converts them to their canonical spelling.
//!
//! A name has one canonical spelling: a bare lower-case host (punycode for international names,
//! brackets around an IPv6 address), or `scheme://host[:port]` without the scheme's default port. A
//! bare host is crawled over https if it supports https, and over http otherwise. A bare
//! `host:port` means `http://host:port`, or `https://host` if the port is 443. Invariant: parsing a
//! canonical spelling returns it unchanged.
//!
//! Hosts may be IP addresses, because each agent's guard decides to which addresses the agent
//! connects.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use url::{Host, ParseError};

/// Maximum length of a host name in DNS, in bytes without the final dot.
const MAX_HOST: usize = 253;
/// Maximum length of a label in DNS, in bytes.
const MAX_LABEL: usize = 63;
/// Maximum length of a name's text in bytes.
const MAX_TEXT: usize = 4096;
/// Maximum number of characters shown of a rejected line.
const SHOWN: usize = 80;

/// A site's name in canonical spelling.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteName(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' names no site: {reason}")]
pub struct InvalidName {
    /// The text, shortened, with control characters escaped.
    pub text: String,
    pub reason: String,
}

impl SiteName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Splits the name into the scheme, if it has one, and the host. If the name has a scheme, the
    /// host may include a port.
    fn split(&self) -> (Option<&str>, &str) {
        match self.0.split_once("://") {
            Some((scheme, authority)) => (Some(scheme), authority),
            None => (None, &self.0),
        }
    }

    /// Whether the site may be crawled at `origin`. The origin's host must be the site's own host,
    /// or have the same registrable domain (public suffix list).
    pub fn may_settle_at(&self, origin: &Self) -> bool {
        if origin.split().0.is_none() {
            return false;
        }
        let (ours, theirs) = (self.host(), origin.host());
        let is_address = |host: &str| matches!(Host::parse(host), Ok(Host::Ipv4(_) | Host::Ipv6(_)));
        ours == theirs
            || !is_address(ours)
                && !is_address(theirs)
                && psl::domain_str(ours).is_some_and(|domain| psl::domain_str(theirs) == Some(domain))
    }

    /// The host, without scheme and port.
    pub fn host(&self) -> &str {
        let (_, authority) = self.split();
        match authority.rsplit_once(':') {
            Some((host, _)) if has_port(authority) => host,
            _ => authority,
        }
    }

    /// All spellings that may mean the same site, most likely first, beginning with this spelling.
    /// A bare host may also mean its https origin or its http origin, and an origin with its
    /// scheme's default port may mean the bare host.
    pub fn spellings(&self) -> Vec<String> {
        let mut spellings = vec![self.0.clone()];
        match self.split() {
            (None, host) => spellings.extend([format!("https://{host}"), format!("http://{host}")]),
            (Some(_), authority) if !has_port(authority) => spellings.push(authority.to_owned()),
            (Some(_), _) => {}
        }
        spellings
    }
}

impl fmt::Display for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SiteName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        canonical(text).map(Self).map_err(|reason| InvalidName { text: shown(text), reason })
    }
}

/// Returns the canonical spelling, or the reason why the text is not a site's name.
fn canonical(text: &str) -> Result<String, String> {
    check_characters(text)?;
    let (scheme, rest) = split_scheme(text)?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err("user names and passwords are not allowed".to_owned());
    }
    if authority.is_empty() {
        return Err("no host".to_owned());
    }
    let (host, port) = split_port(authority)?;
    let host = canonical_host(host)?;
    Ok(match (scheme, port) {
        (None, None) => host,
        (Some(scheme), None) => format!("{}://{host}", scheme.name()),
        (None, Some(443)) => format!("https://{host}"),
        (scheme, Some(port)) => {
            let scheme = scheme.unwrap_or(Scheme::Http);
            if port == scheme.port() {
                format!("{}://{host}", scheme.name())
            } else {
                format!("{}://{host}:{port}", scheme.name())
            }
        }
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

fn check_characters(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("empty".to_owned());
    }
    if text.len() > MAX_TEXT {
        return Err(format!("longer than {MAX_TEXT} bytes"));
    }
    for character in text.chars() {
        if character.is_control() && character != '\t' {
            return Err(format!("contains the control character U+{:04X}", u32::from(character)));
        }
        if character.is_whitespace() {
            return Err("contains a space: give one site per line".to_owned());
        }
        if character == '\\' {
            return Err("contains a backslash".to_owned());
        }
    }
    Ok(())
}

fn split_scheme(text: &str) -> Result<(Option<Scheme>, &str), String> {
    // A `://` after the authority belongs to the path or query.
    let authority_end = text.find(['/', '?', '#']).unwrap_or(text.len());
    let Some((scheme, rest)) = text.split_once("://").filter(|(scheme, _)| scheme.len() < authority_end) else {
        return Ok((None, text));
    };
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Ok((Some(Scheme::Http), rest)),
        "https" => Ok((Some(Scheme::Https), rest)),
        _ => Err(format!("the scheme '{}' is not http or https", shown(scheme))),
    }
}

/// Whether a canonical authority ends with a port.
fn has_port(authority: &str) -> bool {
    authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'))
}

fn split_port(authority: &str) -> Result<(&str, Option<u16>), String> {
    // The colons of an IPv6 address without brackets do not separate a port.
    if authority.parse::<Ipv6Addr>().is_ok() {
        return Ok((authority, None));
    }
    let after_brackets = match authority.find(']') {
        Some(at) => at + 1,
        None if authority.starts_with('[') => authority.len(),
        None => 0,
    };
    let Some(colon) = authority[after_brackets..].find(':') else { return Ok((authority, None)) };
    let (host, port) = authority.split_at(after_brackets + colon);
    let port = &port[1..];
    let number =
        port.parse::<u16>().ok().filter(|number| *number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()));
    match number {
        Some(number) => Ok((host, Some(number))),
        None if port.is_empty() => Err("no port after the colon".to_owned()),
        None => Err(format!("'{}' is not a port", shown(port))),
    }
}

fn canonical_host(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("no host".to_owned());
    }
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        return Ok(Host::<String>::Ipv6(address).to_string());
    }
    match Host::parse(text).map_err(host_problem)? {
        // The URL standard reads `12345` and `1.2` as IP addresses, but in a site list these are
        // mistakes.
        Host::Ipv4(address) if text.trim_end_matches('.').parse::<Ipv4Addr>() != Ok(address) => {
            Err("neither a name nor a complete IPv4 address".to_owned())
        }
        Host::Domain(name) => canonical_name(name.strip_suffix('.').unwrap_or(&name)),
        address @ (Host::Ipv4(_) | Host::Ipv6(_)) => Ok(address.to_string()),
    }
}

fn canonical_name(name: &str) -> Result<String, String> {
    if name.len() > MAX_HOST {
        return Err(format!("the name has {} bytes, but DNS allows {MAX_HOST}", name.len()));
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err("an empty label: two dots together, or a dot first".to_owned());
        }
        if label.len() > MAX_LABEL {
            return Err(format!("the label '{}…' has {} bytes, but DNS allows {MAX_LABEL}", &label[..8], label.len()));
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err(format!("the label '{label}' begins or ends with '-'"));
        }
        let allowed = |character: char| character.is_ascii_alphanumeric() || character == '-' || character == '_';
        if let Some(character) = label.chars().find(|character| !allowed(*character)) {
            return Err(format!("'{}' is not allowed in a host name", character.escape_debug()));
        }
    }
    Ok(name.to_owned())
}

fn host_problem(error: ParseError) -> String {
    match error {
        ParseError::EmptyHost => "no host".to_owned(),
        ParseError::IdnaError | ParseError::InvalidDomainCharacter => {
            "a character is not allowed in a host name, or not at its position".to_owned()
        }
        ParseError::InvalidIpv4Address => "not a valid IPv4 address".to_owned(),
        ParseError::InvalidIpv6Address => "not a valid IPv6 address".to_owned(),
        other => other.to_string(),
    }
}

/// The text for display: shortened, with control characters escaped.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for (index, character) in text.trim_end().chars().enumerate() {
        if index == SHOWN {
            shown.push('…');
            break;
        }
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

    fn name(text: &str) -> String {
        text.parse::<SiteName>().unwrap_or_else(|error| panic!("{error}")).to_string()
    }

    fn reason(text: &str) -> String {
        match text.parse::<SiteName>() {
            Ok(site) => panic!("'{text}' became '{site}'"),
            Err(error) => error.reason,
        }
    }

    #[test]
    fn a_site_settles_inside_its_registrable_domain_only() {
        let may = |site: &str, origin: &str| {
            let parse = |text: &str| text.parse::<SiteName>().expect("a name");
            parse(site).may_settle_at(&parse(origin))
        };
        for (site, origin) in [
            ("a.com.cn", "https://a.com.cn"),
            ("a.com.cn", "http://www.a.com.cn:8080"),
            ("http://www.a.com.cn:81", "https://a.com.cn"),
            ("192.0.2.1", "http://192.0.2.1:8080"),
            ("[2001:db8::1]", "https://[2001:db8::1]"),
        ] {
            assert!(may(site, origin), "{site} at {origin}");
        }
        for (site, origin) in [
            ("a.com.cn", "https://b.com.cn"),
            ("a.com.cn", "a.com.cn"),
            ("com.cn", "https://a.com.cn"),
            ("a.cn", "http://192.0.2.1"),
            ("192.0.2.1", "http://192.0.2.2"),
            ("[2001:db8::1]", "https://[2001:db8::2]"),
        ] {
            assert!(!may(site, origin), "{site} at {origin}");
        }
    }

    #[test]
    fn names_have_one_spelling() {
        for (text, canonical) in [
            ("www.Example.CN", "www.example.cn"),
            ("example.cn.", "example.cn"),
            ("  example.cn\t", "example.cn"),
            ("example.cn/a/b?c#d", "example.cn"),
            ("example.cn/?to=http://other.cn", "example.cn"),
            ("HTTP://Example.cn/path", "http://example.cn"),
            ("http://example.cn:80", "http://example.cn"),
            ("https://example.cn:443/", "https://example.cn"),
            ("https://example.cn:80", "https://example.cn:80"),
            ("http://example.cn:08080", "http://example.cn:8080"),
            ("example.cn:8080", "http://example.cn:8080"),
            ("example.cn:443", "https://example.cn"),
            ("example.cn:80", "http://example.cn"),
            ("中国.cn", "xn--fiqs8s.cn"),
            ("http://bücher.example/", "http://xn--bcher-kva.example"),
            ("ＥＸＡＭＰＬＥ。cn", "example.cn"),
            ("under_score.example.cn", "under_score.example.cn"),
            ("192.0.2.1", "192.0.2.1"),
            ("http://192.0.2.1:8080/", "http://192.0.2.1:8080"),
            ("2001:DB8::1", "[2001:db8::1]"),
            ("[2001:db8::1]:8080", "http://[2001:db8::1]:8080"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(name(text), canonical, "{text}");
        }
    }

    #[test]
    fn rubbish_is_refused_with_its_reason() {
        let long_label = format!("{}.cn", "a".repeat(64));
        let long_name = format!("{}cn", "abcdefghi.".repeat(26));
        for (text, expected) in [
            ("", "empty"),
            ("two words.cn", "contains a space"),
            ("ftp://example.cn", "the scheme 'ftp' is not http or https"),
            ("javascript:alert(1)", "is not a port"),
            ("http://user:pass@example.cn", "user names and passwords"),
            ("mailto:someone@example.cn", "user names and passwords"),
            ("a..cn", "an empty label"),
            (".cn", "an empty label"),
            ("a.cn..", "an empty label"),
            ("http://", "no host"),
            ("//example.cn", "no host"),
            ("http:///path", "no host"),
            (":80", "no host"),
            ("example.cn:", "no port after the colon"),
            ("example.cn:0", "is not a port"),
            ("example.cn:65536", "is not a port"),
            ("example.cn:+80", "is not a port"),
            ("a:b:c", "is not a port"),
            (long_label.as_str(), "the label 'aaaaaaaa…' has 64 bytes"),
            (long_name.as_str(), "the name has 262 bytes"),
            ("bad\u{7}bell.cn", "contains the control character U+0007"),
            ("*.example.cn", "'*' is not allowed in a host name"),
            ("a\\b.cn", "a backslash"),
            ("12345", "complete IPv4 address"),
            ("1.2.3", "complete IPv4 address"),
            ("256.1.1.1", "IPv4 address"),
            ("[::1", "IPv6 address"),
            ("[::1]x:80", "not a valid IPv6"),
            ("a]b", "is not allowed in a host name"),
        ] {
            let reason = reason(text);
            assert!(reason.contains(expected), "'{text}': {reason}");
        }
    }

    #[test]
    fn spellings_reach_the_same_site() {
        let site: SiteName = "a.cn".parse().expect("a name");
        assert_eq!(site.spellings(), ["a.cn", "https://a.cn", "http://a.cn"]);
        let site: SiteName = "http://[::1]".parse().expect("a name");
        assert_eq!(site.spellings(), ["http://[::1]", "[::1]"]);
        let site: SiteName = "http://a.cn:81".parse().expect("a name");
        assert_eq!(site.spellings(), ["http://a.cn:81"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn canonical_names_parse_to_themselves(
            text in r"((http|HTTPS|ftp)://)?[\PC]{0,4}[a-zA-Z0-9._ßü中\-]{1,20}(\.(cn|com|中国)\.?)?(:[0-9]{1,5})?(/[a-z:/]{0,9})?"
        ) {
            if let Ok(site) = text.parse::<SiteName>() {
                let again = site.as_str().parse::<SiteName>();
                prop_assert_eq!(again, Ok(site));
            }
        }
    }
}
