//! Reads a crawl's policy and user agent from the flags of `landfall-agent crawl`, and from a TOML
//! file. The file has the fields of [`Policy`] and the user agent; all are optional.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use toml::{Spanned, Value};

use super::request::duration;
use crate::cli::exit::usage;
use crate::config::one_line;
use crate::crawl::{MAX_HOSTS, PathFilter, Policy};
use crate::net::user_agent::{BadProduct, Product};

/// The default policy. A `shortest_interval` below `request_interval` shortens the interval for
/// large sites, because their servers can bear more load (`crawl::politeness`). The default
/// `shortest_interval` is above every `request_interval`, so it has no effect.
const DEFAULT: Policy = Policy {
    max_pages: 100,
    max_bytes: 50 << 20,
    max_depth: 5,
    max_hosts: 0,
    max_duration: Duration::from_secs(600),
    request_interval: Duration::from_secs(1),
    shortest_interval: Duration::MAX,
    sitemaps: true,
    paths: PathFilter::ALL,
};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct CrawlSettings {
    pub(super) policy: Policy,
    /// The crawler's name in the user agent; `None` means the default, landfall-agent.
    pub(super) user_agent: Option<Product>,
}

/// The flags that set a policy.
#[derive(Debug, Args)]
pub(super) struct PolicyArgs {
    /// Maximum number of pages to fetch [default: 100]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    max_pages: Option<u32>,
    /// Maximum number of body bytes to fetch [default: 52428800]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    max_bytes: Option<u64>,
    /// Maximum number of links from the start page to a page [default: 5]
    #[arg(long)]
    max_depth: Option<u32>,
    /// Print the names of at most this many other sites to which pages link [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_HOSTS)))]
    max_hosts: Option<u32>,
    /// Maximum duration of the crawl [default: 10m]
    #[arg(long, value_parser = duration)]
    max_duration: Option<Duration>,
    /// Minimum time between the starts of two requests; robots.txt may require more [default: 1s]
    #[arg(long, value_parser = duration)]
    request_interval: Option<Duration>,
    /// Minimum time between two requests to a large site [default: --request-interval]
    #[arg(long, value_parser = duration)]
    shortest_interval: Option<Duration>,
    /// Follow only links whose path matches this pattern, written as in robots.txt: /news/ or
    /// /*.html$; may be repeated
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Do not follow links whose path matches this pattern; may be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Do not read the sitemaps that robots.txt names.
    #[arg(long)]
    no_sitemaps: bool,
    /// The crawler's name in the User-Agent header and in robots.txt [default: landfall-agent]
    #[arg(long, value_name = "NAME[/VERSION]")]
    user_agent: Option<Product>,
}

impl PolicyArgs {
    /// Merges the settings: the command line overrides the policy file, which overrides the
    /// defaults.
    pub(super) fn settings(&self, file: Option<&Path>) -> anyhow::Result<CrawlSettings> {
        let mut settings = CrawlSettings { policy: DEFAULT, user_agent: None };
        if let Some(file) = file {
            read(file, &mut settings)?;
        }
        let CrawlSettings { mut policy, user_agent } = settings;
        if !self.include.is_empty() {
            policy.paths.include(&self.include).map_err(|reason| usage(format!("--include: {reason}")))?;
        }
        if !self.exclude.is_empty() {
            policy.paths.exclude(&self.exclude).map_err(|reason| usage(format!("--exclude: {reason}")))?;
        }
        let request_interval = self.request_interval.unwrap_or(policy.request_interval);
        let shortest_interval = self.shortest_interval.unwrap_or(policy.shortest_interval);
        if shortest_interval != Duration::MAX && shortest_interval > request_interval {
            return Err(usage(format!(
                "shortest_interval: {shortest_interval:?} is more than the request_interval of {request_interval:?}"
            )));
        }
        let policy = Policy {
            max_pages: self.max_pages.unwrap_or(policy.max_pages),
            max_bytes: self.max_bytes.unwrap_or(policy.max_bytes),
            max_depth: self.max_depth.unwrap_or(policy.max_depth),
            max_hosts: self.max_hosts.unwrap_or(policy.max_hosts),
            max_duration: self.max_duration.unwrap_or(policy.max_duration),
            request_interval,
            shortest_interval,
            sitemaps: policy.sitemaps && !self.no_sitemaps,
            paths: policy.paths,
        };
        Ok(CrawlSettings { policy, user_agent: self.user_agent.clone().or(user_agent) })
    }
}

/// Overrides `settings` with the settings in the file. Each setting has the same permitted range as
/// in a batch's policy.
fn read(path: &Path, settings: &mut CrawlSettings) -> anyhow::Result<()> {
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
    use std::path::PathBuf;

    use clap::Parser;

    use super::*;

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

    #[derive(Debug, Parser)]
    struct Typed {
        #[arg(long)]
        policy: Option<PathBuf>,
        #[command(flatten)]
        args: PolicyArgs,
    }

    impl Typed {
        fn settings(&self) -> anyhow::Result<CrawlSettings> {
            self.args.settings(self.policy.as_deref())
        }
    }

    fn settings(flags: &[&str]) -> Result<(Duration, Duration), String> {
        let typed = ["crawl"].iter().chain(flags);
        let policy = Typed::try_parse_from(typed).unwrap().settings().map_err(|error| error.to_string())?.policy;
        Ok((policy.request_interval, policy.shortest_interval))
    }

    #[test]
    fn an_interval_longer_for_large_sites_is_refused() {
        let seconds = Duration::from_secs;
        let both = |request, shortest| settings(&["--request-interval", request, "--shortest-interval", shortest]);
        assert_eq!(both("2s", "1s"), Ok((seconds(2), seconds(1))));
        assert_eq!(both("2s", "2s"), Ok((seconds(2), seconds(2))));
        let refused = "shortest_interval: 3s is more than the request_interval of 2s".to_owned();
        assert_eq!(both("2s", "3s"), Err(refused));
        let refused = "shortest_interval: 3s is more than the request_interval of 1s".to_owned();
        assert_eq!(settings(&["--shortest-interval", "3s"]), Err(refused), "than the usual one");
        assert_eq!(settings(&[]).map(|(interval, _)| interval), Ok(seconds(1)));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.toml");
        std::fs::write(&file, "shortest_interval = '3s'\nrequest_interval = '4s'\n").unwrap();
        let file = file.to_str().unwrap();
        assert_eq!(settings(&["--policy", file]), Ok((seconds(4), seconds(3))));
        let refused = "shortest_interval: 3s is more than the request_interval of 2s".to_owned();
        assert_eq!(settings(&["--policy", file, "--request-interval", "2s"]), Err(refused));
    }

    #[test]
    fn a_product_name_on_the_command_line_overrides_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.toml");
        std::fs::write(&file, "user_agent = 'FileBot'\n").unwrap();
        let named = |flags: &[&str]| {
            let typed = ["crawl", "--policy", file.to_str().unwrap()];
            Typed::try_parse_from(typed.iter().chain(flags)).unwrap().settings().unwrap().user_agent
        };
        assert_eq!(named(&[]), "FileBot".parse().ok());
        assert_eq!(named(&["--user-agent", "FlagBot/2"]), "FlagBot/2".parse().ok());
        let refused = Typed::try_parse_from(["crawl", "--user-agent", "Flag Bot"]).unwrap_err().to_string();
        assert!(refused.contains("--user-agent") && refused.contains("'Flag Bot' is not a product name"), "{refused}");
    }
}
