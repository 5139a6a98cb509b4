//! The crawl policy of a batch: the limits and other settings of its crawls.
//!
//! [`CrawlPolicy`] has a value for every field. [`PolicyRequest`] may leave values out. The macro
//! `policy` generates both types from one list of fields.

use std::fmt::{self, Debug, Display};
use std::time::Duration;

use clap::Args;
use humantime::parse_duration;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::contact_url::{ContactUrl, InvalidContact};
use crate::model::durations_and_sizes::{self, in_largest_unit};

/// Maximum of `max_pages` and of `max_depth`: the greatest value of the store's 32-bit columns.
const MOST: u32 = i32::MAX.unsigned_abs();
const LONGEST_CRAWL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum time between two requests to a site.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);
/// Minimum recrawl interval. A shorter interval is not allowed, because each round costs
/// measurements, a choice of an agent and rows in the store.
const SHORTEST_RECRAWL: Duration = Duration::from_secs(3600);
const LONGEST_RECRAWL: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum number of patterns in a list, because an agent compares each link with each pattern.
const MAX_PATTERNS: usize = 50;
const MAX_PATTERN_BYTES: usize = 200;
/// Maximum number of discovered hosts per site.
pub const MAX_HOSTS: u32 = 1_000;
/// Maximum length of a user-agent name without its version, because every request contains the
/// name.
const MAX_TOKEN_BYTES: usize = 40;
const MAX_VERSION_BYTES: usize = 20;

/// Generates [`CrawlPolicy`], [`PolicyRequest`] and their methods from one list of fields. The list
/// has each field's help, parser, type and default. Fields after `or nothing` are optional in a
/// policy too.
macro_rules! policy {
    (
        $(
            $(#[doc = $help:literal])+
            $(#[arg($($arg:tt)*)])?
            $(#[asked($($asked:tt)*)])?
            $(#[stored($($stored:tt)*)])?
            $field:ident: $type:ty = $usual:expr;
        )*
        or nothing
        $(
            $(#[doc = $may_help:literal])+
            $(#[arg($($may_arg:tt)*)])?
            $(#[asked($($may_asked:tt)*)])?
            $(#[stored($($may_stored:tt)*)])?
            $may:ident: $may_type:ty;
        )*
    ) => {
        /// The limits and other settings of crawls. Policies are stored as JSON, which other
        /// programs read too.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        pub struct CrawlPolicy {
            $($(#[doc = $help])+ $(#[serde($($stored)*)])? pub $field: $type,)*
            $($(#[doc = $may_help])+ $(#[serde($($may_stored)*)])? pub $may: Option<$may_type>,)*
        }

        impl Default for CrawlPolicy {
            fn default() -> Self {
                Self { $($field: $usual,)* $($may: None,)* }
            }
        }

        /// Requested policy values, from flags, a file, the configuration or a message. Absent
        /// values are taken from elsewhere.
        #[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Args)]
        #[serde(default, deny_unknown_fields)]
        pub struct PolicyRequest {
            $($(#[doc = $help])+ $(#[arg($($arg)*)])? $(#[serde($($asked)*)])? pub $field: Option<$type>,)*
            $($(#[doc = $may_help])+ $(#[arg($($may_arg)*)])? $(#[serde($($may_asked)*)])? pub $may: Option<$may_type>,)*
        }

        impl From<CrawlPolicy> for PolicyRequest {
            fn from(policy: CrawlPolicy) -> Self {
                Self { $($field: Some(policy.$field),)* $($may: policy.$may,)* }
            }
        }

        impl PolicyRequest {
            /// Merges two requests: values absent from `self` are taken from `other`.
            #[must_use]
            pub fn before(self, other: Self) -> Self {
                Self { $($field: self.$field.or(other.$field),)* $($may: self.$may.or(other.$may),)* }
            }

            fn laid_over(self, policy: CrawlPolicy) -> CrawlPolicy {
                CrawlPolicy {
                    $($field: self.$field.unwrap_or(policy.$field),)*
                    $($may: self.$may.or(policy.$may),)*
                }
            }

            /// The requested values that differ from the policy `has`.
            pub fn differences(&self, has: &CrawlPolicy) -> Vec<PolicyDifference> {
                let found = [
                    $(differ(stringify!($field), Some(&has.$field), self.$field.as_ref()),)*
                    $(differ(stringify!($may), has.$may.as_ref(), self.$may.as_ref()),)*
                ];
                found.into_iter().flatten().collect()
            }
        }
    };
}

policy! {
    /// Maximum number of pages
    #[arg(long, value_name = "N")]
    max_pages: u32 = 200;
    /// Maximum number of body bytes, such as 64MB or 1.5GiB
    #[arg(long, value_name = "SIZE", value_parser = durations_and_sizes::parse_size)]
    #[asked(deserialize_with = "durations_and_sizes::optional_size")]
    max_bytes: u64 = 64 << 20;
    /// Maximum number of links from the start page; 0 means only the start page
    #[arg(long, value_name = "N")]
    max_depth: u32 = 8;
    /// Maximum number of other sites, linked from a site's pages, to store for `landfall report
    /// hosts`; 0 to 1000
    #[arg(long, value_name = "N")]
    max_hosts: u32 = 50;
    /// Maximum duration, such as 15m
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[asked(deserialize_with = "durations_and_sizes::optional_duration")]
    #[stored(rename = "max_duration_ms", with = "millis")]
    max_duration: Duration = Duration::from_secs(15 * 60);
    /// Minimum time between the starts of two requests to a site, such as 1s
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[asked(deserialize_with = "durations_and_sizes::optional_duration")]
    #[stored(rename = "request_interval_ms", with = "millis")]
    request_interval: Duration = Duration::from_secs(1);
    /// The same for a site of 100,000 pages or more; from 100 pages on, interpolated by the
    /// logarithm of the size
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[asked(deserialize_with = "durations_and_sizes::optional_duration")]
    #[stored(rename = "shortest_interval_ms", with = "millis")]
    shortest_interval: Duration = Duration::from_secs(1);
    /// Whether sitemaps are read
    #[arg(long, value_name = "true|false")]
    sitemaps: bool = true;
    /// Whether agents that store pages store those of this batch
    #[arg(long, value_name = "true|false")]
    store: bool = true;
    /// Follow only links whose path matches this pattern, written as in robots.txt: /news/ or
    /// /*.html$; may be repeated
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String> = Vec::new();
    /// Do not follow links whose path matches this pattern; may be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String> = Vec::new();
    or nothing
    /// The URL at which owners of these sites can contact you, instead of the fleet's contact URL
    #[arg(long, value_name = "URL")]
    contact_url: String;
    /// The crawler's name in the User-Agent header and in robots.txt [default: landfall-agent]
    #[arg(long, value_name = "NAME[/VERSION]")]
    user_agent: String;
    /// Crawl each site again this long after its crawl ended, such as 7d; 1h to 365d [default:
    /// never]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[asked(deserialize_with = "durations_and_sizes::optional_duration")]
    #[stored(rename = "recrawl_interval_ms", serialize_with = "millis::serialize", deserialize_with = "millis::perhaps")]
    recrawl_interval: Duration;
}

/// Stores durations as whole milliseconds, so that SQL queries can compute with them. All values
/// within the bounds are stored exactly.
mod millis {
    use super::{Deserialize, Deserializer, Duration, Serialize, Serializer};

    pub(super) fn serialize<T, S>(time: &T, to: S) -> Result<S::Ok, S::Error>
    where
        T: Copy + Into<Option<Duration>>,
        S: Serializer,
    {
        let time: Option<Duration> = (*time).into();
        time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }

    pub(super) fn perhaps<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::deserialize(from)?.map(Duration::from_millis))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct OutOfBounds {
    pub field: &'static str,
    pub problem: String,
}

/// A requested value that differs from the batch's current value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDifference {
    pub field: &'static str,
    /// The current value, for display.
    pub has: String,
    pub asked: String,
}

impl Display for PolicyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({} was requested)", self.field, self.has, self.asked)
    }
}

fn differ<T: PartialEq + Debug>(field: &'static str, has: Option<&T>, asked: Option<&T>) -> Option<PolicyDifference> {
    let asked = asked.filter(|asked| Some(*asked) != has)?;
    let has = has.map_or_else(|| "none".to_owned(), |has| format!("{has:?}"));
    Some(PolicyDifference { field, has, asked: format!("{asked:?}") })
}

impl CrawlPolicy {
    /// Checks that the request interval of large sites does not exceed the request interval of
    /// small sites.
    pub fn agreed(self) -> Result<Self, OutOfBounds> {
        let (shortest, interval) = (self.shortest_interval, self.request_interval);
        if shortest > interval {
            let problem = format!("{shortest:?} is more than the request_interval of {interval:?}");
            return Err(OutOfBounds { field: "shortest_interval", problem });
        }
        Ok(self)
    }
}

impl PolicyRequest {
    /// Completes a request: absent values are taken from `otherwise`. If no shortest interval was
    /// requested, the shortest interval never exceeds the request interval.
    pub fn or(&self, otherwise: &CrawlPolicy) -> CrawlPolicy {
        let mut policy = self.clone().laid_over(otherwise.clone());
        if self.shortest_interval.is_none() {
            policy.shortest_interval = shortest_of(otherwise, policy.request_interval);
        }
        policy
    }

    /// Checks the bounds of each value, and sorts the pattern lists, because their order has no
    /// meaning.
    pub fn checked(mut self) -> Result<Self, OutOfBounds> {
        number("max_pages", self.max_pages, 1, MOST)?;
        number("max_bytes", self.max_bytes, 1, i64::MAX.unsigned_abs())?;
        number("max_depth", self.max_depth, 0, MOST)?;
        if self.max_hosts.is_some_and(|hosts| hosts > MAX_HOSTS) {
            return Err(OutOfBounds { field: "max_hosts", problem: format!("must be 0 to {MAX_HOSTS}") });
        }
        time("max_duration", self.max_duration, Duration::from_secs(1), LONGEST_CRAWL)?;
        time("request_interval", self.request_interval, Duration::ZERO, LONGEST_INTERVAL)?;
        time("shortest_interval", self.shortest_interval, Duration::ZERO, LONGEST_INTERVAL)?;
        time("recrawl_interval", self.recrawl_interval, SHORTEST_RECRAWL, LONGEST_RECRAWL)?;
        for (field, patterns) in [("include", &mut self.include), ("exclude", &mut self.exclude)] {
            if let Some(patterns) = patterns {
                patterns.sort_unstable();
                patterns.dedup();
                check_patterns(patterns).map_err(|problem| OutOfBounds { field, problem })?;
            }
        }
        if let Some(url) = &mut self.contact_url {
            let contact: ContactUrl = url
                .parse()
                .map_err(|error: InvalidContact| OutOfBounds { field: "contact_url", problem: error.to_string() })?;
            *url = contact.to_string();
        }
        if let Some(name) = &self.user_agent {
            check_user_agent(name).map_err(|problem| OutOfBounds { field: "user_agent", problem })?;
        }
        Ok(self)
    }
}

/// The shortest interval if none was requested. It is the request interval, unless `otherwise` has
/// a shorter interval for large sites.
fn shortest_of(otherwise: &CrawlPolicy, request_interval: Duration) -> Duration {
    let as_usual = otherwise.shortest_interval < otherwise.request_interval;
    if as_usual { otherwise.shortest_interval.min(request_interval) } else { request_interval }
}

fn number<N: PartialOrd + Display + Copy>(
    field: &'static str,
    value: Option<N>,
    least: N,
    most: N,
) -> Result<(), OutOfBounds> {
    match value {
        Some(value) if value < least => Err(OutOfBounds { field, problem: format!("must be {least} or more") }),
        Some(value) if value > most => Err(OutOfBounds { field, problem: format!("must be at most {most}") }),
        _ => Ok(()),
    }
}

fn time(
    field: &'static str,
    value: Option<Duration>,
    shortest: Duration,
    longest: Duration,
) -> Result<(), OutOfBounds> {
    match value {
        Some(value) if value < shortest || value > longest => Err(OutOfBounds {
            field,
            problem: format!("must be {} to {}", in_largest_unit(shortest), in_largest_unit(longest)),
        }),
        Some(value) if value.subsec_nanos() % 1_000_000 > 0 => {
            Err(OutOfBounds { field, problem: format!("{value:?} is not a whole number of milliseconds") })
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
            return Err(format!("the pattern {pattern:?} contains a character that URLs write as an escape, like %20"));
        }
    }
    Ok(())
}

/// Checks that a user-agent name is a product token that robots.txt can name (RFC 9309, section
/// 2.2.1), with an optional version. Agents refuse other names.
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
            max_hosts: Some(7),
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
            "max_pages max_bytes max_depth max_hosts max_duration request_interval shortest_interval sitemaps store \
             include exclude contact_url user_agent recrawl_interval"
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
