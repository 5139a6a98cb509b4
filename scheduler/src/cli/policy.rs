//! A batch's crawl policy, as flags and as a TOML file; what a flag says goes before what the file says. The file may have the batch's
//! constraints as well, which are `constraints`' to read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use humantime_serde::re::humantime::parse_duration;
use landfall_proto::v1::{CrawlPolicy, PathPatterns};
use toml::{Spanned, Value};

use super::constraints;
use crate::constraints::ConstraintsRequest;
use crate::exit::usage;
use crate::model::PolicyRequest;

/// The fields a file may have.
const FIELDS: &str = "max_pages, max_bytes, max_depth, max_duration, request_interval, shortest_interval, sitemaps, store, include, \
                      exclude, contact_url, user_agent, recrawl_interval and the table constraints";

/// How far each site is crawled. What is not said is the scheduler's configuration, or what the batch has.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "How far each site is crawled")]
pub(super) struct PolicyArgs {
    /// All of this as TOML, with the flags' names (max_pages = 100); what is said on the command line goes before it
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Pages at most
    #[arg(long, value_name = "N")]
    max_pages: Option<u32>,
    /// Body bytes at most
    #[arg(long, value_name = "N")]
    max_bytes: Option<u64>,
    /// Links from the start page at most; 0 is the start page alone
    #[arg(long, value_name = "N")]
    max_depth: Option<u32>,
    /// Time at most, as 15m
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_duration: Option<Duration>,
    /// Least time between the starts of two requests to a site, as 1s
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    request_interval: Option<Duration>,
    /// As much to a site of 100,000 pages and more; in between it goes by the logarithm of the size
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    shortest_interval: Option<Duration>,
    /// Whether sitemaps are read
    #[arg(long, value_name = "true|false")]
    sitemaps: Option<bool>,
    /// Whether agents that store pages store these
    #[arg(long, value_name = "true|false")]
    store: Option<bool>,
    /// Follow only links whose path matches, as in robots.txt: /news/ or /*.html$; may be said again
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Follow no links whose path matches; may be said again
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Whom these sites' owners may write to, instead of the fleet's contact URL
    #[arg(long, value_name = "URL")]
    contact_url: Option<String>,
    /// What these crawls call themselves, and what robots.txt knows them by [default: landfall-agent]
    #[arg(long, value_name = "NAME[/VERSION]")]
    user_agent: Option<String>,
    /// Crawl each site again so long after its crawl ended, as 7d; 1h to 365d [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    recrawl_interval: Option<Duration>,
}

impl PolicyArgs {
    /// What is asked of the policy, `None` when nothing is; and what the file asks of the agents.
    pub(super) fn policy(&self) -> anyhow::Result<(Option<CrawlPolicy>, ConstraintsRequest)> {
        let (file, constraints) = self.policy.as_deref().map(read).transpose()?.unwrap_or_default();
        let said = |patterns: &[String]| Some(patterns.to_vec()).filter(|patterns| !patterns.is_empty());
        let flags = PolicyRequest {
            max_pages: self.max_pages,
            max_bytes: self.max_bytes,
            max_depth: self.max_depth,
            max_duration: self.max_duration,
            request_interval: self.request_interval,
            shortest_interval: self.shortest_interval,
            sitemaps: self.sitemaps,
            store: self.store,
            include: said(&self.include),
            exclude: said(&self.exclude),
            contact_url: self.contact_url.clone(),
            user_agent: self.user_agent.clone(),
            recrawl_interval: self.recrawl_interval,
        };
        let flags = flags
            .checked()
            .map_err(|error| usage(format!("--{}: {}", error.field.replace('_', "-"), error.problem)))?;
        let policy = message(flags, file);
        Ok((Some(policy).filter(|policy| *policy != CrawlPolicy::default()), constraints))
    }
}

/// The wire's policy: what flags say, else what the file says.
fn message(flags: PolicyRequest, file: PolicyRequest) -> CrawlPolicy {
    // Within bounds, so that it fits.
    let time = |time: Option<Duration>| time.and_then(|time| prost_types::Duration::try_from(time).ok());
    let patterns = |patterns: Option<Vec<String>>| patterns.map(|patterns| PathPatterns { patterns });
    CrawlPolicy {
        max_pages: flags.max_pages.or(file.max_pages),
        max_bytes: flags.max_bytes.or(file.max_bytes),
        max_depth: flags.max_depth.or(file.max_depth),
        max_duration: time(flags.max_duration.or(file.max_duration)),
        request_interval: time(flags.request_interval.or(file.request_interval)),
        shortest_interval: time(flags.shortest_interval.or(file.shortest_interval)),
        sitemaps: flags.sitemaps.or(file.sitemaps),
        store: flags.store.or(file.store),
        include: patterns(flags.include.or(file.include)),
        exclude: patterns(flags.exclude.or(file.exclude)),
        contact_url: flags.contact_url.or(file.contact_url),
        user_agent: flags.user_agent.or(file.user_agent),
        recrawl_interval: time(flags.recrawl_interval.or(file.recrawl_interval)),
    }
}

/// Reads a file; a mistake is one sentence that names the file, the line and the field.
fn read(path: &Path) -> anyhow::Result<(PolicyRequest, ConstraintsRequest)> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| usage(format!("read {shown}: {error}")))?;
    let line = |at: usize| text.get(..at).unwrap_or_default().matches('\n').count() + 1;
    let fields: BTreeMap<Spanned<String>, Spanned<Value>> = toml::from_str(&text).map_err(|error| {
        let at = error.span().map(|span| span.start).unwrap_or_default();
        usage(format!("{shown}: line {}: {}", line(at), error.message().lines().next().unwrap_or_default()))
    })?;
    let (mut policy, mut asked) = (PolicyRequest::default(), ConstraintsRequest::default());
    for (name, value) in &fields {
        let wrong = |error: anyhow::Error| {
            usage(format!("{shown}: line {}: {}: {error}", line(name.span().start), name.get_ref()))
        };
        match name.get_ref().as_str() {
            "constraints" => asked = constraints::table(value.get_ref()).map_err(wrong)?,
            name => policy = set(policy, name, value.get_ref()).map_err(wrong)?,
        }
    }
    Ok((policy, asked))
}

/// The policy with this field, which is within its bounds.
fn set(mut policy: PolicyRequest, name: &str, value: &Value) -> anyhow::Result<PolicyRequest> {
    match name {
        "max_pages" => policy.max_pages = Some(number(value)?),
        "max_bytes" => policy.max_bytes = Some(number(value)?),
        "max_depth" => policy.max_depth = Some(number(value)?),
        "max_duration" => policy.max_duration = Some(time(value)?),
        "request_interval" => policy.request_interval = Some(time(value)?),
        "shortest_interval" => policy.shortest_interval = Some(time(value)?),
        "recrawl_interval" => policy.recrawl_interval = Some(time(value)?),
        "sitemaps" => policy.sitemaps = Some(truth(value)?),
        "store" => policy.store = Some(truth(value)?),
        "include" => policy.include = Some(texts(value)?),
        "exclude" => policy.exclude = Some(texts(value)?),
        "contact_url" => policy.contact_url = Some(word(value)?),
        "user_agent" => policy.user_agent = Some(word(value)?),
        _ => return Err(anyhow!("there is no such field; there are {FIELDS}")),
    }
    policy.checked().map_err(|error| anyhow!(error.problem))
}

fn number<N: TryFrom<i64>>(value: &Value) -> anyhow::Result<N> {
    let number = value.as_integer().ok_or_else(|| anyhow!("{value} is not a whole number"))?;
    N::try_from(number).map_err(|_| anyhow!("{number} is out of range"))
}

fn time(value: &Value) -> anyhow::Result<Duration> {
    let text = value.as_str().ok_or_else(|| anyhow!("{value} is not a time like \"250ms\", \"1s\" or \"2m\""))?;
    parse_duration(text).map_err(|error| anyhow!("{text:?}: {error}"))
}

fn truth(value: &Value) -> anyhow::Result<bool> {
    value.as_bool().ok_or_else(|| anyhow!("{value} is not true or false"))
}

fn word(value: &Value) -> anyhow::Result<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| anyhow!("{value} is not a text"))
}

fn texts(value: &Value) -> anyhow::Result<Vec<String>> {
    let texts =
        value.as_array().and_then(|values| values.iter().map(|value| value.as_str().map(str::to_owned)).collect());
    texts.ok_or_else(|| anyhow!("{value} is not a list of patterns like [\"/news/\", \"/*.html$\"]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str, flags: PolicyArgs) -> Result<Option<CrawlPolicy>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        std::fs::write(&path, text).unwrap();
        let asked = PolicyArgs { policy: Some(path), ..flags }.policy();
        asked.map(|(policy, _)| policy).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn what_nobody_says_of_the_policy_is_left_to_the_scheduler() {
        assert_eq!(PolicyArgs::default().policy().unwrap(), (None, ConstraintsRequest::default()));
        assert_eq!(asked("", PolicyArgs::default()), Ok(None));
        let flags = PolicyArgs { max_depth: Some(0), ..PolicyArgs::default() };
        assert_eq!(flags.policy().unwrap().0, Some(CrawlPolicy { max_depth: Some(0), ..CrawlPolicy::default() }));
    }

    #[test]
    fn flags_go_before_the_file() {
        let text = "max_pages = 5\nmax_bytes = 6\nmax_depth = 7\nmax_duration = '8s'\nrequest_interval = '9s'\n\
            shortest_interval = '1s'\nsitemaps = false\nstore = false\ninclude = ['/a']\nexclude = []\n\
            contact_url = 'https://example.org/study'\nuser_agent = 'StudyBot'\nrecrawl_interval = '7d'\n";
        let flags = PolicyArgs { max_pages: Some(50), include: vec!["/b".into()], ..PolicyArgs::default() };
        let asked = asked(text, flags).unwrap().unwrap();
        assert_eq!((asked.max_pages, asked.max_bytes, asked.max_depth), (Some(50), Some(6), Some(7)));
        assert_eq!((asked.sitemaps, asked.store), (Some(false), Some(false)));
        assert_eq!(asked.include, Some(PathPatterns { patterns: vec!["/b".into()] }));
        assert_eq!(asked.exclude, Some(PathPatterns::default()), "no patterns are asked for");
        assert_eq!(asked.shortest_interval, Some(prost_types::Duration { seconds: 1, nanos: 0 }));
        assert_eq!(asked.contact_url.as_deref(), Some("https://example.org/study"));
        assert_eq!(asked.user_agent.as_deref(), Some("StudyBot"));
        assert_eq!(asked.recrawl_interval, Some(prost_types::Duration { seconds: 7 * 86_400, nanos: 0 }));
    }

    #[test]
    fn mistakes_name_the_file_the_line_and_the_field() {
        for (text, expected) in [
            ("max_pages = 0", "line 1: max_pages: must be 1 or more"),
            ("\n\nmax_pages = -1", "line 3: max_pages: -1 is out of range"),
            ("max_bytes = 'much'", "line 1: max_bytes: \"much\" is not a whole number"),
            ("sitemaps = true\nmax_page = 3", "line 2: max_page: there is no such field"),
            ("request_interval = 1", "line 1: request_interval: 1 is not a time"),
            ("max_duration = '31days'", "line 1: max_duration: not within"),
            ("recrawl_interval = '59m'", "line 1: recrawl_interval: not within 3600s to"),
            ("store = 'yes'", "line 1: store: \"yes\" is not true or false"),
            ("include = '/a'", "line 1: include: \"/a\" is not a list"),
            ("exclude = ['a']", "line 1: exclude: the pattern \"a\" does not begin with"),
            ("contact_url = 'nobody'", "line 1: contact_url: 'nobody' is no contact URL"),
            ("user_agent = 'Study Bot'", "line 1: user_agent: 'Study Bot' is not NAME or NAME/VERSION"),
            ("store = true\nstore = false", "line 2: "),
            (
                "store = true\n\n[constraints]\ncountry = 'CHN'",
                "line 3: constraints: country: 'CHN' is not two letters",
            ),
            ("constraints = 3", "line 1: constraints: 3 is not a table"),
        ] {
            let error = asked(text, PolicyArgs::default()).unwrap_err();
            assert!(error.contains(&format!("policy.toml: {expected}")), "{error}");
        }
        let flags = PolicyArgs { exclude: vec!["a".into()], ..PolicyArgs::default() };
        let error = flags.policy().unwrap_err().to_string();
        assert!(error.starts_with("--exclude: the pattern"), "{error}");
    }
}
