//! `landfall-agent crawl`: crawls one site by the same rules as a leased crawl, shows the progress,
//! and prints the outcome.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::policy::{self, CrawlSettings};
use super::progress;
use super::request::{RequestArgs, duration};
use super::run::stop_on_signals;
use crate::cli::exit::{Code, exit_error, usage};
use crate::config::StoreConfig;
use crate::crawl::{
    self, AddressPermits, CrawlEnd, CrawlProgress, CrawlStorage, Job, MAX_HOSTS, Outcome, OutcomeKind, PathFilter,
    Policy,
};
use crate::net::user_agent::Product;
use crate::warc::Store;

/// The default policy. A `shortest_interval` below `request_interval` shortens the interval for
/// large sites, because their servers can bear more load (`crawl::politeness`). The default
/// `shortest_interval` is above every `request_interval`, so it has no effect.
pub(super) const DEFAULT: Policy = Policy {
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

/// What to crawl, and how far.
#[derive(Debug, Args)]
pub(super) struct CrawlArgs {
    /// The site: scheme://host:port, or a bare host (https, then http).
    site: String,
    /// The crawl's policy as a TOML file with the fields max_pages, max_bytes, max_depth,
    /// max_hosts, max_duration, request_interval, shortest_interval, sitemaps, include, exclude and
    /// user_agent. Flags override it.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Store what is fetched in this folder as WARC files. To resume an interrupted crawl, run the
    /// same command again.
    #[arg(long, value_name = "DIR")]
    warc: Option<PathBuf>,
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
    #[command(flatten)]
    request: RequestArgs,
}

impl CrawlArgs {
    /// Merges the settings: the command line overrides the policy file, which overrides the
    /// defaults.
    fn settings(&self) -> anyhow::Result<CrawlSettings> {
        let mut settings = CrawlSettings { policy: DEFAULT, user_agent: None };
        if let Some(file) = &self.policy {
            policy::read(file, &mut settings)?;
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

pub(super) async fn run(args: CrawlArgs) -> anyhow::Result<()> {
    let CrawlSettings { policy, user_agent } = args.settings()?;
    let context = args.request.context()?;
    let context = Arc::new(match user_agent {
        Some(product) => context.named(&product),
        None => context,
    });
    let stop = CancellationToken::new();
    stop_on_signals(&stop)?;
    let config = args.warc.clone().map(StoreConfig::in_folder);
    let store = config.as_ref().map(|config| Store::open(config, "crawl")).transpose()?;
    let file = args.warc.as_deref().map(|folder| kept(folder, &args.site));
    let (watched, watching) = watch::channel(CrawlProgress::default());
    let storage = CrawlStorage {
        file: file.clone(),
        recorder: store.as_ref().map(|store| store.recorder(&args.site, None)),
        progress: Some(watched),
        ..CrawlStorage::default()
    };
    let job = Job { name: args.site, origin: None, policy, last_pages: None };
    // Run the crawl in its own tokio task. In `block_on`, each wake-up of the crawl would make the
    // runtime ask the operating system for events once more.
    let crawl = tokio::spawn(crawl::run(job, storage, AddressPermits::default(), context, Arc::default(), stop));
    let crawled = tokio::select! {
        ended = crawl => ended.context("the crawl crashed")?,
        () = progress::show(watching, store.clone()) => bail!("the progress display ended"),
    };
    if let Some(store) = store {
        store.close().await;
    }
    let outcome = match crawled {
        CrawlEnd::Outcome(outcome) => outcome,
        CrawlEnd::Stopped(_) if file.is_some() => {
            return Err(exit_error(Code::Interrupted, "the crawl was stopped; run the same command to resume it"));
        }
        // A crawl without a scheduler never ends as `Paused`, because it waits until pauses end.
        // Without a scheduler, a crawl needs no permit for the site's address, so it never ends as
        // `NotPermitted`.
        CrawlEnd::Stopped(_) | CrawlEnd::Paused(..) | CrawlEnd::NotPermitted => {
            return Err(exit_error(Code::Interrupted, "the crawl was stopped"));
        }
        CrawlEnd::Broken(reason) | CrawlEnd::Crashed(reason) => bail!(reason),
    };
    if let Some(file) = file {
        std::fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
    }
    print(&outcome, args.warc.as_deref())
}

/// The file that stores the crawl's state until the crawl ends.
fn kept(folder: &Path, site: &str) -> PathBuf {
    let name: String = site.chars().take(100).map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    folder.join(format!("{name}.crawl"))
}

fn print(outcome: &Outcome, folder: Option<&Path>) -> anyhow::Result<()> {
    match outcome.kind {
        OutcomeKind::Blocked(by) => {
            let by = format!("{by:?}").to_lowercase();
            return Err(exit_error(Code::SiteFailed, format!("blocked by {by}: {}", outcome.message)));
        }
        OutcomeKind::Unreachable => {
            return Err(exit_error(Code::SiteFailed, format!("unreachable: {}", outcome.message)));
        }
        OutcomeKind::Complete => println!("{}", line("complete", outcome)),
        OutcomeKind::Truncated(budget) => {
            println!("{}", line(&format!("truncated by {budget:?}").to_lowercase(), outcome));
        }
    }
    if let Some(folder) = folder {
        println!("stored in {}", folder.display());
    }
    outcome.hosts.iter().for_each(|host| println!("links to {host}"));
    Ok(())
}

fn line(how: &str, outcome: &Outcome) -> String {
    let Outcome { pages, bytes, errors, duration, origin, message, .. } = outcome;
    let first = if message.is_empty() { String::new() } else { format!("; first error: {message}") };
    let rtt = outcome.rtt.map_or_else(String::new, |rtt| format!(", round trip {:.2} ms", rtt.as_secs_f64() * 1e3));
    let trapped = match outcome.trapped {
        0 => String::new(),
        links => format!("; {links} links lead into traps and were left out"),
    };
    let (origin, seconds) = (origin.as_deref().unwrap_or_default(), duration.as_secs_f64());
    format!("{origin}: {how}: {pages} pages, {bytes} bytes in {seconds:.1} s{rtt}, {errors} errors{first}{trapped}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        args: CrawlArgs,
    }

    fn settings(flags: &[&str]) -> Result<(Duration, Duration), String> {
        let typed = ["crawl", "example.cn", "--contact-url", "https://example.org/bot"].iter().chain(flags);
        let policy = Typed::try_parse_from(typed).unwrap().args.settings().map_err(|error| error.to_string())?.policy;
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
            let typed = ["crawl", "example.cn", "--policy", file.to_str().unwrap()];
            Typed::try_parse_from(typed.iter().chain(flags)).unwrap().args.settings().unwrap().user_agent
        };
        assert_eq!(named(&[]), "FileBot".parse().ok());
        assert_eq!(named(&["--user-agent", "FlagBot/2"]), "FlagBot/2".parse().ok());
        let refused =
            Typed::try_parse_from(["crawl", "example.cn", "--user-agent", "Flag Bot"]).unwrap_err().to_string();
        assert!(refused.contains("--user-agent") && refused.contains("'Flag Bot' is not a product name"), "{refused}");
    }
}
