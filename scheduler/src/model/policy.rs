//! How far a batch's sites are crawled, and how.
//!
//! A policy is whole; a request for one says some of it, and each value it says is within its bounds.

use std::fmt::{self, Debug, Display};
use std::time::Duration;

use crate::contact::{ContactUrl, InvalidContact};

/// The most pages and links: the store counts with a sign.
const MOST: u32 = i32::MAX.unsigned_abs();
/// The longest crawl of one site.
const LONGEST_CRAWL: Duration = Duration::from_secs(30 * 24 * 3600);
/// The longest pause between two requests to a site.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);
/// The shortest time from a crawl's end to the next: a site is measured and chosen for anew each time, and each round is kept.
const SHORTEST_RECRAWL: Duration = Duration::from_secs(3600);
/// The longest: who waits for longer submits again.
const LONGEST_RECRAWL: Duration = Duration::from_secs(365 * 24 * 3600);
/// The most patterns of a list, and the longest, in bytes: an agent holds each against each link.
const MAX_PATTERNS: usize = 50;
const MAX_PATTERN_BYTES: usize = 200;
/// The longest name of a user agent and its longest version, in bytes: they travel with every request.
const MAX_TOKEN_BYTES: usize = 40;
const MAX_VERSION_BYTES: usize = 20;

/// How far a crawl may go, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrawlPolicy {
    /// Pages fetched at most; 1 or more.
    pub max_pages: u32,
    /// Body bytes fetched at most; 1 or more.
    pub max_bytes: u64,
    /// Links followed from the start page at most.
    pub max_depth: u32,
    /// Time at most.
    pub max_duration: Duration,
    /// The least time between the starts of two requests to a site that is small, or of unknown size.
    pub request_interval: Duration,
    /// As much to a large site; at most `request_interval`.
    pub shortest_interval: Duration,
    /// Whether sitemaps are read.
    pub sitemaps: bool,
    /// Whether agents that store pages store these.
    pub store: bool,
    /// Patterns of the paths that are followed; none: all are.
    pub include: Vec<String>,
    /// Patterns of the paths that are not.
    pub exclude: Vec<String>,
    /// The contact URL of these crawls; none: the fleet's.
    pub contact_url: Option<String>,
    /// What these crawls call themselves, NAME or NAME/VERSION; none: landfall-agent.
    pub user_agent: Option<String>,
    /// From the end of a site's crawl to its next one; none: there is none.
    pub recrawl_interval: Option<Duration>,
}

impl Default for CrawlPolicy {
    fn default() -> Self {
        Self {
            max_pages: 200,
            max_bytes: 64 << 20,
            max_depth: 8,
            max_duration: Duration::from_secs(15 * 60),
            request_interval: Duration::from_secs(1),
            shortest_interval: Duration::from_secs(1),
            sitemaps: true,
            store: true,
            include: Vec::new(),
            exclude: Vec::new(),
            contact_url: None,
            user_agent: None,
            recrawl_interval: None,
        }
    }
}

/// What somebody asks of a policy, each as in [`CrawlPolicy`]; the rest is left to another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the fields are those of a policy")]
pub struct PolicyRequest {
    pub max_pages: Option<u32>,
    pub max_bytes: Option<u64>,
    pub max_depth: Option<u32>,
    pub max_duration: Option<Duration>,
    pub request_interval: Option<Duration>,
    pub shortest_interval: Option<Duration>,
    pub sitemaps: Option<bool>,
    pub store: Option<bool>,
    pub include: Option<Vec<String>>,
    pub exclude: Option<Vec<String>>,
    pub contact_url: Option<String>,
    pub user_agent: Option<String>,
    pub recrawl_interval: Option<Duration>,
}

/// A value out of its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidPolicy {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// What is asked of a field that has another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    field: &'static str,
    has: String,
    asked: String,
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({} was asked for)", self.field, self.has, self.asked)
    }
}

impl PolicyRequest {
    /// What was asked for, and of `otherwise` what was not. No interval is longer than the one that was asked for.
    pub fn or(&self, otherwise: &CrawlPolicy) -> CrawlPolicy {
        let request_interval = self.request_interval.unwrap_or(otherwise.request_interval);
        CrawlPolicy {
            max_pages: self.max_pages.unwrap_or(otherwise.max_pages),
            max_bytes: self.max_bytes.unwrap_or(otherwise.max_bytes),
            max_depth: self.max_depth.unwrap_or(otherwise.max_depth),
            max_duration: self.max_duration.unwrap_or(otherwise.max_duration),
            request_interval,
            shortest_interval: self.shortest_interval.unwrap_or(self.shortest_of(otherwise, request_interval)),
            sitemaps: self.sitemaps.unwrap_or(otherwise.sitemaps),
            store: self.store.unwrap_or(otherwise.store),
            include: self.include.clone().unwrap_or_else(|| otherwise.include.clone()),
            exclude: self.exclude.clone().unwrap_or_else(|| otherwise.exclude.clone()),
            contact_url: self.contact_url.clone().or_else(|| otherwise.contact_url.clone()),
            user_agent: self.user_agent.clone().or_else(|| otherwise.user_agent.clone()),
            recrawl_interval: self.recrawl_interval.or(otherwise.recrawl_interval),
        }
    }

    /// The shortest interval where none was asked for. Who asks for a slower crawl than usual gets one of large sites too.
    fn shortest_of(&self, otherwise: &CrawlPolicy, request_interval: Duration) -> Duration {
        let as_usual = otherwise.shortest_interval < otherwise.request_interval;
        if as_usual { otherwise.shortest_interval.min(request_interval) } else { request_interval }
    }

    /// What it asks for that a policy does not have.
    pub fn differences(&self, has: &CrawlPolicy) -> Vec<Difference> {
        let mut found = Vec::new();
        differ("max_pages", &has.max_pages, self.max_pages.as_ref(), &mut found);
        differ("max_bytes", &has.max_bytes, self.max_bytes.as_ref(), &mut found);
        differ("max_depth", &has.max_depth, self.max_depth.as_ref(), &mut found);
        differ("max_duration", &has.max_duration, self.max_duration.as_ref(), &mut found);
        differ("request_interval", &has.request_interval, self.request_interval.as_ref(), &mut found);
        differ("shortest_interval", &has.shortest_interval, self.shortest_interval.as_ref(), &mut found);
        differ("sitemaps", &has.sitemaps, self.sitemaps.as_ref(), &mut found);
        differ("store", &has.store, self.store.as_ref(), &mut found);
        differ("include", &has.include, self.include.as_ref(), &mut found);
        differ("exclude", &has.exclude, self.exclude.as_ref(), &mut found);
        let contact_url = has.contact_url.clone().unwrap_or_default();
        differ("contact_url", &contact_url, self.contact_url.as_ref(), &mut found);
        let user_agent = has.user_agent.clone().unwrap_or_default();
        differ("user_agent", &user_agent, self.user_agent.as_ref(), &mut found);
        if let Some(asked) = self.recrawl_interval.filter(|asked| has.recrawl_interval != Some(*asked)) {
            let has = has.recrawl_interval.map_or_else(|| "never".to_owned(), |has| format!("{has:?}"));
            found.push(Difference { field: "recrawl_interval", has, asked: format!("{asked:?}") });
        }
        found
    }

    /// Looks whether each value is within its bounds, and brings lists of patterns into an order that says nothing.
    ///
    /// # Errors
    /// When one is not.
    pub fn checked(mut self) -> Result<Self, InvalidPolicy> {
        number("max_pages", self.max_pages, 1, MOST)?;
        number("max_bytes", self.max_bytes, 1, i64::MAX.unsigned_abs())?;
        number("max_depth", self.max_depth, 0, MOST)?;
        time("max_duration", self.max_duration, Duration::from_secs(1), LONGEST_CRAWL)?;
        time("request_interval", self.request_interval, Duration::ZERO, LONGEST_INTERVAL)?;
        time("shortest_interval", self.shortest_interval, Duration::ZERO, LONGEST_INTERVAL)?;
        time("recrawl_interval", self.recrawl_interval, SHORTEST_RECRAWL, LONGEST_RECRAWL)?;
        for (field, patterns) in [("include", &mut self.include), ("exclude", &mut self.exclude)] {
            if let Some(patterns) = patterns {
                patterns.sort_unstable();
                patterns.dedup();
                check_patterns(patterns).map_err(|problem| InvalidPolicy { field, problem })?;
            }
        }
        if let Some(url) = &mut self.contact_url {
            let contact: ContactUrl = url
                .parse()
                .map_err(|error: InvalidContact| InvalidPolicy { field: "contact_url", problem: error.to_string() })?;
            *url = contact.to_string();
        }
        if let Some(name) = &self.user_agent {
            check_user_agent(name).map_err(|problem| InvalidPolicy { field: "user_agent", problem })?;
        }
        Ok(self)
    }
}

fn differ<T: PartialEq + Debug>(field: &'static str, has: &T, asked: Option<&T>, found: &mut Vec<Difference>) {
    if let Some(asked) = asked.filter(|asked| *asked != has) {
        found.push(Difference { field, has: format!("{has:?}"), asked: format!("{asked:?}") });
    }
}

fn number<N: PartialOrd + Display + Copy>(
    field: &'static str,
    value: Option<N>,
    least: N,
    most: N,
) -> Result<(), InvalidPolicy> {
    match value {
        Some(value) if value < least => Err(InvalidPolicy { field, problem: format!("must be {least} or more") }),
        Some(value) if value > most => Err(InvalidPolicy { field, problem: format!("more than {most}") }),
        _ => Ok(()),
    }
}

fn time(
    field: &'static str,
    value: Option<Duration>,
    shortest: Duration,
    longest: Duration,
) -> Result<(), InvalidPolicy> {
    match value {
        Some(value) if value < shortest || value > longest => {
            Err(InvalidPolicy { field, problem: format!("not within {shortest:?} to {longest:?}") })
        }
        _ => Ok(()),
    }
}

fn check_patterns(patterns: &[String]) -> Result<(), String> {
    if patterns.len() > MAX_PATTERNS {
        return Err(format!("more than {MAX_PATTERNS} patterns"));
    }
    for pattern in patterns {
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(format!("a pattern is longer than {MAX_PATTERN_BYTES} bytes"));
        }
        if !pattern.starts_with(['/', '*']) {
            return Err(format!("the pattern {pattern:?} does not begin with '/' or '*'"));
        }
        if !pattern.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("the pattern {pattern:?} holds a character that a URL writes as an escape, like %20"));
        }
    }
    Ok(())
}

/// A product token as robots.txt may name it (RFC 9309, 2.2.1), and perhaps a version. Agents refuse any other.
fn check_user_agent(name: &str) -> Result<(), String> {
    let (token, version) = name.split_once('/').map_or((name, None), |(token, version)| (token, Some(version)));
    let letter = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_');
    let named = (1..=MAX_TOKEN_BYTES).contains(&token.len()) && token.bytes().all(letter);
    let numbered = version.is_none_or(|version| {
        let known = |byte: u8| letter(byte) || byte.is_ascii_digit() || byte == b'.';
        (1..=MAX_VERSION_BYTES).contains(&version.len()) && version.bytes().all(known)
    });
    if named && numbered {
        return Ok(());
    }
    let shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
    Err(format!(
        "'{shown}' is not NAME or NAME/VERSION: a name has at most {MAX_TOKEN_BYTES} letters, '-' and '_', a version at most \
         {MAX_VERSION_BYTES} letters, digits, '.', '-' and '_'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_asked_for_refused_and_named() {
        let seconds = Duration::from_secs;
        let asked = PolicyRequest {
            max_pages: Some(1),
            max_bytes: Some(2),
            max_depth: Some(3),
            max_duration: Some(seconds(4)),
            request_interval: Some(seconds(6)),
            shortest_interval: Some(seconds(5)),
            sitemaps: Some(false),
            store: Some(false),
            include: Some(vec!["/a".into()]),
            exclude: Some(vec!["/b".into()]),
            contact_url: Some("https://example.org/study".into()),
            user_agent: Some("StudyBot/1.2".into()),
            recrawl_interval: Some(seconds(3600)),
        };
        let has = CrawlPolicy::default();
        let named: Vec<&str> = asked.differences(&has).iter().map(|difference| difference.field).collect();
        assert_eq!(
            named.join(" "),
            "max_pages max_bytes max_depth max_duration request_interval shortest_interval sitemaps store include exclude \
             contact_url user_agent recrawl_interval"
        );
        assert_eq!(asked.differences(&asked.or(&has)), []);
        assert_eq!(PolicyRequest::default().differences(&has), []);
        assert_eq!(PolicyRequest::default().or(&asked.or(&has)), asked.or(&has));
        assert_eq!(asked.clone().checked(), Ok(asked));
    }

    #[test]
    fn no_site_is_asked_more_often_than_was_asked_for() {
        let seconds = Duration::from_secs;
        let slow = PolicyRequest { request_interval: Some(seconds(9)), ..PolicyRequest::default() };
        assert_eq!(slow.or(&CrawlPolicy::default()).shortest_interval, seconds(9));
        let fleet = CrawlPolicy { shortest_interval: Duration::from_millis(100), ..CrawlPolicy::default() };
        assert_eq!(slow.or(&fleet).shortest_interval, Duration::from_millis(100));
        let fast = PolicyRequest { request_interval: Some(Duration::ZERO), ..PolicyRequest::default() };
        assert_eq!(fast.or(&fleet).shortest_interval, Duration::ZERO);
    }

    #[test]
    fn what_is_out_of_its_bounds_is_refused_by_field() {
        let patterns = |text: &str| Some(vec![text.to_owned()]);
        let none = PolicyRequest::default;
        let long = format!("/{}", "x".repeat(MAX_PATTERN_BYTES));
        let many = (0..=MAX_PATTERNS).map(|number| format!("/{number}")).collect();
        for (wrong, field) in [
            (PolicyRequest { max_bytes: Some(0), ..none() }, "max_bytes"),
            (PolicyRequest { max_duration: Some(Duration::ZERO), ..none() }, "max_duration"),
            (PolicyRequest { request_interval: Some(Duration::MAX), ..none() }, "request_interval"),
            (PolicyRequest { shortest_interval: Some(Duration::MAX), ..none() }, "shortest_interval"),
            (PolicyRequest { recrawl_interval: Some(Duration::from_secs(3599)), ..none() }, "recrawl_interval"),
            (
                PolicyRequest { recrawl_interval: Some(Duration::from_secs(365 * 86_400 + 1)), ..none() },
                "recrawl_interval",
            ),
            (PolicyRequest { include: patterns("news/"), ..none() }, "include"),
            (PolicyRequest { include: patterns(""), ..none() }, "include"),
            (PolicyRequest { include: Some(many), ..none() }, "include"),
            (PolicyRequest { exclude: patterns("/a b"), ..none() }, "exclude"),
            (PolicyRequest { exclude: patterns(&long), ..none() }, "exclude"),
            (PolicyRequest { contact_url: Some("nobody".into()), ..none() }, "contact_url"),
            (PolicyRequest { user_agent: Some("Study Bot".into()), ..none() }, "user_agent"),
            (PolicyRequest { user_agent: Some("Bot2".into()), ..none() }, "user_agent"),
            (PolicyRequest { user_agent: Some("StudyBot/".into()), ..none() }, "user_agent"),
            (PolicyRequest { user_agent: Some("*".into()), ..none() }, "user_agent"),
            (PolicyRequest { user_agent: Some("Bot\r\nX: y".into()), ..none() }, "user_agent"),
            (PolicyRequest { user_agent: Some("x".repeat(MAX_TOKEN_BYTES + 1)), ..none() }, "user_agent"),
        ] {
            assert_eq!(wrong.clone().checked().expect_err("refused").field, field, "{wrong:?}");
        }
        let twice = PolicyRequest { include: Some(vec!["/b".into(), "/a".into(), "/b".into()]), ..none() };
        assert_eq!(twice.checked().expect("patterns").include, Some(vec!["/a".into(), "/b".into()]));
    }
}
