//! Site names and site lists.
//!
//! A name has one canonical spelling: a bare lower-case host (punycode for international names,
//! brackets around an IPv6 address), or `scheme://host[:port]` without the scheme's default port. A
//! bare host is crawled by https if it supports https, and by http otherwise. A bare `host:port`
//! means `http://host:port`, or `https://host` if the port is 443. Invariant: parsing a canonical
//! spelling returns it unchanged.
//!
//! A line of a list has one of three forms: a name; a rank and a name; or a name, a latitude and a
//! longitude. Commas separate the columns. A first line with column names, among them `site`,
//! `latitude` and `longitude`, sets the order of the columns.
//!
//! The parser skips blank lines and comments (`#` at the start or after a space), and accepts a
//! byte-order mark and CRLF. It drops and counts duplicate sites, and reports invalid lines by
//! number. Hosts may be IP addresses, because each agent's guard decides to which addresses the
//! agent connects.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use url::{Host, ParseError};

use crate::gnp::Position;

mod line;

use line::Columns;

/// Maximum length of a host name in DNS, in bytes without the final dot.
const MAX_HOST: usize = 253;
/// Maximum length of a label in DNS, in bytes.
const MAX_LABEL: usize = 63;
/// Maximum length of a name's text in bytes.
const MAX_TEXT: usize = 4096;
/// Maximum number of characters shown of a rejected line.
const SHOWN: usize = 80;
/// Maximum number of invalid lines that are reported one by one.
const COMPLAINTS: usize = 20;
/// Number of bytes at the start of a file that are searched for a zero byte, which shows that the
/// file is binary.
const BEGINNING: usize = 8192;
/// The byte-order mark of UTF-8, which some editors write at the start of files.
const UTF8_MARK: &[u8] = &[0xEF, 0xBB, 0xBF];
/// The two byte-order marks of UTF-16.
const UTF16_MARKS: [&[u8]; 2] = [&[0xFF, 0xFE], &[0xFE, 0xFF]];

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

/// A parsed site list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SiteList {
    /// The sites in the order of the list, without duplicates.
    pub sites: Vec<SiteName>,
    /// The positions of the sites for which the list has a position.
    pub positions: HashMap<SiteName, Position>,
    /// Number of lines that repeated a site.
    pub duplicates: usize,
    /// The first invalid lines, at most `COMPLAINTS` of them.
    pub rejected: Vec<Rejected>,
    /// Number of further invalid lines.
    pub unsaid: usize,
}

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The line's number, from 1.
    pub line: usize,
    /// The line, shortened, with control characters escaped.
    pub text: String,
    pub reason: String,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: '{}': {}", self.line, self.text, self.reason)
    }
}

/// Parses a site list.
pub fn parse(bytes: &[u8]) -> SiteList {
    let mut list = SiteList::default();
    if UTF16_MARKS.iter().any(|mark| bytes.starts_with(mark)) {
        let reason = "the list is UTF-16: save it as UTF-8".to_owned();
        list.rejected.push(Rejected { line: 1, text: String::new(), reason });
        return list;
    }
    if bytes.iter().take(BEGINNING).any(|byte| *byte == 0) {
        let reason = "the file is not text: a site list has one host or URL per line".to_owned();
        list.rejected.push(Rejected { line: 1, text: String::new(), reason });
        return list;
    }
    let bytes = bytes.strip_prefix(UTF8_MARK).unwrap_or(bytes);
    let mut seen = HashSet::new();
    let (mut columns, mut begun) = (None, false);
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let text = match line::read(line) {
            Ok("") => continue,
            Ok(text) if !begun => {
                begun = true;
                columns = Columns::named(text);
                if columns.is_some() {
                    continue;
                }
                Ok(text)
            }
            text => text,
        };
        match text.and_then(|text| line::entry(text, columns)) {
            Ok((site, position)) => {
                if let Some(position) = position {
                    list.positions.entry(site.clone()).or_insert(position);
                }
                if seen.insert(site.clone()) {
                    list.sites.push(site);
                } else {
                    list.duplicates += 1;
                }
            }
            Err(_) if list.rejected.len() == COMPLAINTS => list.unsaid += 1,
            Err(InvalidName { text, reason }) => list.rejected.push(Rejected { line: index + 1, text, reason }),
        }
    }
    list
}

impl SiteName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Splits the name into the scheme, if it has one, and the host. With a scheme, the host may
    /// include a port.
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
fn shown(text: &str) -> String {
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
    use proptest::prelude::{ProptestConfig, any, prop, prop_assert, prop_assert_eq, proptest};

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
    fn a_list_is_read_with_all_that_editors_put_in_it() {
        let text =
            "\u{feff}# sites\r\nA.cn\r\n\r\n  b.cn  # near\r\nhttp://a.cn/x\r\na.cn.\r\nbad site\r\nhttp://a.cn:80";
        let list = parse(text.as_bytes());
        let sites: Vec<&str> = list.sites.iter().map(SiteName::as_str).collect();
        assert_eq!(sites, ["a.cn", "b.cn", "http://a.cn"]);
        assert_eq!(list.duplicates, 2);
        assert_eq!(list.rejected.len(), 1);
        assert_eq!(list.rejected[0].line, 7);
        assert_eq!(list.rejected[0].text, "bad site");
    }

    #[test]
    fn bytes_that_are_no_text_are_reported_by_line() {
        let list = parse(b"a.cn\nb\xFF.cn\nc.cn\n");
        assert_eq!(list.sites.len(), 2);
        assert_eq!(list.rejected[0].line, 2);
        assert_eq!(list.rejected[0].reason, "not UTF-8 from byte 2 of the line");
    }

    #[test]
    fn utf_16_is_named_as_such() {
        let list = parse(b"\xFF\xFEa\0.\0c\0n\0");
        assert!(list.sites.is_empty());
        assert!(list.rejected[0].reason.contains("UTF-16"));
    }

    #[test]
    fn a_long_line_is_shown_clipped_and_escaped() {
        let list = parse(format!("\u{1b}[31m{}", "x".repeat(500)).as_bytes());
        let shown = &list.rejected[0].text;
        assert!(shown.starts_with("\\u{1b}[31m"), "{shown}");
        assert!(shown.ends_with('…') && shown.chars().count() < 100, "{shown}");
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

    #[test]
    fn a_list_may_say_where_its_sites_are() {
        let place = |latitude: f64, longitude: f64| Position::try_new(latitude, longitude).unwrap();
        let plain = parse(
            b"# near and far\na.cn, 39.9, 116.4\nb.cn\nhttps://c.cn/,-1,2.5\nhttp://d.cn/x,1,2\ne.cn,,\nA.cn,1,1\n",
        );
        assert_eq!(plain.rejected, []);
        let names: Vec<&str> = plain.sites.iter().map(SiteName::as_str).collect();
        assert_eq!(names, ["a.cn", "b.cn", "https://c.cn", "http://d.cn", "e.cn"]);
        let expected = [("a.cn", place(39.9, 116.4)), ("https://c.cn", place(-1.0, 2.5))];
        assert_eq!(plain.positions, expected.map(|(name, place)| (name.parse().unwrap(), place)).into());
        assert_eq!(plain.duplicates, 1);
        let columns = parse(b"\n Longitude,rank,SITE, latitude\n116.4,1,a.cn,39.9\n,2,b.cn,\n");
        assert_eq!((columns.rejected, columns.sites.len()), (Vec::new(), 2));
        assert_eq!(columns.positions, [("a.cn".parse().unwrap(), place(39.9, 116.4))].into());
    }

    #[test]
    fn a_position_that_is_none_is_rejected_by_line() {
        let list = parse(b"a.cn,x,1\nb.cn,91,1\nc.cn,1,-181\nd.cn,1\ne.cn,1,2,3\nf.cn,,2\ng.cn,NaN,1\nh cn,1,2\nsite,latitude,longitude\n");
        assert_eq!(list.sites, []);
        let reasons: Vec<(usize, &str)> = list.rejected.iter().map(|one| (one.line, one.reason.as_str())).collect();
        let neither = "not NAME, RANK,NAME or NAME,LATITUDE,LONGITUDE";
        assert_eq!(
            reasons,
            [
                (1, "'x' is not a number of degrees"),
                (2, "a latitude is between -90 and 90 degrees"),
                (3, "a longitude is between -180 and 180 degrees"),
                (4, neither),
                (5, neither),
                (6, "a position needs both a latitude and a longitude"),
                (7, "a latitude is between -90 and 90 degrees"),
                (8, "contains a space: give one site per line"),
                (9, "'latitude' is not a number of degrees"),
            ]
        );
        let short = parse(b"site,latitude,longitude\na.cn,1\n");
        assert_eq!(
            short.rejected[0].to_string(),
            "line 2: 'a.cn,1': the line has fewer columns than the first line names"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn every_line_of_any_bytes_is_accounted_for(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let list = parse(&bytes);
            let lines = bytes.split(|byte| *byte == b'\n').count();
            prop_assert!(list.sites.len() + list.duplicates + list.rejected.len() <= lines);
        }

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
