//! Reads a crawl's policy from a TOML file. The file has the fields of [`Policy`] and the user
//! agent; all are optional.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use toml::{Spanned, Value};

use super::request::duration;
use crate::cli::exit::usage;
use crate::config::one_line;
use crate::crawl::{MAX_HOSTS, Policy};
use crate::net::user_agent::{BadProduct, Product};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct CrawlSettings {
    pub(super) policy: Policy,
    /// The crawler's name in the user agent; `None` means the default, landfall-agent.
    pub(super) user_agent: Option<Product>,
}

/// Overrides `settings` with the settings in the file. Each setting has the same permitted range as
/// in a batch's policy.
pub(super) fn read(path: &Path, settings: &mut CrawlSettings) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let fields: BTreeMap<Spanned<String>, Spanned<Value>> =
        toml::from_str(&text).map_err(|error| usage(format!("{}: {}", path.display(), one_line(&text, &error))))?;
    for (name, value) in &fields {
        let line = text.get(..name.span().start).unwrap_or_default().matches('\n').count() + 1;
        set(settings, name.get_ref(), value.get_ref())
            .map_err(|reason| usage(format!("{}: line {line}: {}: {reason}", path.display(), name.get_ref())))?;
    }
    Ok(())
}

fn set(settings: &mut CrawlSettings, name: &str, value: &Value) -> Result<(), String> {
    let policy = &mut settings.policy;
    match name {
        "max_pages" => policy.max_pages = number(value, &(1..=10_000_000))?,
        "max_bytes" => policy.max_bytes = number(value, &(1..=1 << 50))?,
        "max_depth" => policy.max_depth = number(value, &(0..=10_000))?,
        "max_hosts" => policy.max_hosts = number(value, &(0..=MAX_HOSTS))?,
        "max_duration" => policy.max_duration = time(value, &(SECOND..=YEAR))?,
        "request_interval" => policy.request_interval = time(value, &(Duration::ZERO..=DAY))?,
        "shortest_interval" => policy.shortest_interval = time(value, &(Duration::ZERO..=DAY))?,
        "include" => policy.paths.include(&texts(value)?)?,
        "exclude" => policy.paths.exclude(&texts(value)?)?,
        "sitemaps" => policy.sitemaps = value.as_bool().ok_or_else(|| format!("{value} is not true or false"))?,
        "user_agent" => {
            let name = value.as_str().ok_or_else(|| format!("{value} is not a string"))?;
            settings.user_agent = Some(name.parse().map_err(|error: BadProduct| error.to_string())?);
        }
        _ => {
            let known = "max_pages, max_bytes, max_depth, max_hosts, max_duration, request_interval, shortest_interval, sitemaps, \
                         include, exclude and user_agent";
            return Err(format!("unknown field; the fields are {known}"));
        }
    }
    Ok(())
}

fn number<T>(value: &Value, range: &RangeInclusive<T>) -> Result<T, String>
where
    T: TryFrom<i64> + PartialOrd + std::fmt::Display,
{
    let number = value.as_integer().ok_or_else(|| format!("{value} is not a whole number"))?;
    let fits = T::try_from(number).ok().filter(|number| range.contains(number));
    fits.ok_or_else(|| format!("{number} is not in {} to {}", range.start(), range.end()))
}

fn texts(value: &Value) -> Result<Vec<&str>, String> {
    let texts = value.as_array().and_then(|values| values.iter().map(Value::as_str).collect());
    texts.ok_or_else(|| format!("{value} is not a list of patterns like [\"/news/\", \"/*.html$\"]"))
}

fn time(value: &Value, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let text = value.as_str().ok_or_else(|| format!("{value} is not a time like \"250ms\", \"1s\" or \"2m\""))?;
    let time = duration(text)?;
    let fits = range.contains(&time).then_some(time);
    fits.ok_or_else(|| format!("{text} is not in {:?} to {:?}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::super::crawl::DEFAULT;
    use super::*;
    use crate::crawl::PathFilter;

    fn read_text(text: &str) -> anyhow::Result<CrawlSettings> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        std::fs::write(&path, text).unwrap();
        let mut settings = CrawlSettings { policy: DEFAULT, user_agent: None };
        read(&path, &mut settings).map(|()| settings)
    }

    fn named(policy: Policy, user_agent: Option<&str>) -> CrawlSettings {
        CrawlSettings { policy, user_agent: user_agent.map(|name| name.parse().unwrap()) }
    }

    #[test]
    fn a_file_may_set_some_fields_or_all() {
        assert_eq!(read_text("").unwrap(), named(DEFAULT, None));
        assert_eq!(read_text("max_depth = 0\n").unwrap(), named(Policy { max_depth: 0, ..DEFAULT }, None));
        let all = "max_pages = 7\nmax_bytes = 1_000_000\nmax_depth = 3\nmax_hosts = 4\nmax_duration = '10m'\nrequest_interval = '250ms'\n\
            shortest_interval = '9ms'\nsitemaps = false\ninclude = ['/a']\nexclude = ['/*.pdf$', '/b']\nuser_agent = 'StudyBot/1'\n";
        let (max_duration, request_interval) = (Duration::from_secs(600), Duration::from_millis(250));
        let mut paths = PathFilter::ALL;
        paths.include(&["/a"]).unwrap();
        paths.exclude(&["/*.pdf$", "/b"]).unwrap();
        let expected = Policy {
            max_pages: 7,
            max_bytes: 1_000_000,
            max_depth: 3,
            max_hosts: 4,
            max_duration,
            request_interval,
            shortest_interval: Duration::from_millis(9),
            sitemaps: false,
            paths,
        };
        assert_eq!(read_text(all).unwrap(), named(expected, Some("StudyBot/1")));
    }

    #[test]
    fn mistakes_name_the_file_the_line_and_the_field() {
        let cases = [
            ("max_pages = 0", "line 1: max_pages: 0 is not in 1 to 10000000"),
            ("\n\nmax_pages = -1", "line 3: max_pages: -1 is not in"),
            ("max_depth = 99999999999", "line 1: max_depth: 99999999999 is not in 0 to 10000"),
            ("max_hosts = 1001", "line 1: max_hosts: 1001 is not in 0 to 1000"),
            ("max_bytes = 'much'", "line 1: max_bytes: \"much\" is not a whole number"),
            ("sitemaps = true\nmax_page = 3", "line 2: max_page: unknown field"),
            ("request_interval = 1", "line 1: request_interval: 1 is not a time"),
            ("request_interval = '2 weeks'", "line 1: request_interval: "),
            ("max_duration = '0s'", "line 1: max_duration: 0s is not in 1s to"),
            ("sitemaps = 'yes'", "line 1: sitemaps: \"yes\" is not true or false"),
            ("user_agent = 'Study Bot'", "line 1: user_agent: 'Study Bot' is not a product name: give NAME"),
            ("user_agent = 1", "line 1: user_agent: 1 is not a string"),
            ("include = '/a'", "line 1: include: \"/a\" is not a list"),
            ("include = [1]", "line 1: include: [1] is not a list"),
            ("exclude = [\n'/a',\n'b']", "line 1: exclude: the pattern \"b\" does not begin with"),
            ("shortest_interval = '2880m'", "line 1: shortest_interval: 2880m is not in 0ns to"),
            ("sitemaps = true\nsitemaps = false", "line 2: "),
            ("max_pages = 1\nmax_depth", "line 2: "),
        ];
        for (text, expected) in cases {
            let error = read_text(text).unwrap_err().to_string();
            assert!(error.contains(&format!("policy.toml: {expected}")), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
