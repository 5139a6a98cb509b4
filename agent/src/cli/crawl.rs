//! `landfall-agent crawl`: crawls one site as for a scheduler, and prints the outcome.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use tokio_util::sync::CancellationToken;

use super::request::{RequestArgs, duration};
use crate::crawl::{self, Ended, Job, Keep, Kind, Outcome, Permits, Policy};

/// What to crawl, and how far.
#[derive(Debug, Args)]
pub(super) struct CrawlArgs {
    /// The site: scheme://host:port, or a bare host (https, then http).
    site: String,
    /// Pages to fetch at most.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    max_pages: u32,
    /// Body bytes to fetch at most.
    #[arg(long, default_value_t = 50 << 20, value_parser = clap::value_parser!(u64).range(1..))]
    max_bytes: u64,
    /// Links to follow from the start page at most.
    #[arg(long, default_value_t = 5)]
    max_depth: u32,
    /// Time to spend at most.
    #[arg(long, default_value = "10m", value_parser = duration)]
    max_duration: Duration,
    /// The least time between the starts of two requests; robots.txt may ask for more.
    #[arg(long, default_value = "1s", value_parser = duration)]
    request_interval: Duration,
    /// Do not read the sitemaps that robots.txt names.
    #[arg(long)]
    no_sitemaps: bool,
    #[command(flatten)]
    request: RequestArgs,
}

/// Crawls, and prints.
pub(super) async fn run(args: CrawlArgs) -> anyhow::Result<()> {
    let context = Arc::new(args.request.context()?);
    let CrawlArgs { site, max_pages, max_bytes, max_depth, max_duration, request_interval, no_sitemaps, .. } = args;
    let policy = Policy { max_pages, max_bytes, max_depth, max_duration, request_interval, sitemaps: !no_sitemaps };
    let job = Job { name: site, origin: None, policy };
    let outcome = match crawl::run(job, Keep::default(), Permits::default(), context, CancellationToken::new()).await {
        Ended::Outcome(outcome) => outcome,
        // Only where there is a scheduler does one pause elsewhere, or has to wait for its turn.
        Ended::Stopped(_) | Ended::Paused(..) | Ended::NotPermitted => bail!("the crawl was stopped"),
        Ended::Broken(reason) => bail!(reason),
    };
    match outcome.kind {
        Kind::Blocked(by) => bail!("blocked by {}: {}", format!("{by:?}").to_lowercase(), outcome.message),
        Kind::Unreachable => bail!("unreachable: {}", outcome.message),
        Kind::Complete => println!("{}", line("complete", &outcome)),
        Kind::Truncated(budget) => println!("{}", line(&format!("truncated by {budget:?}").to_lowercase(), &outcome)),
    }
    Ok(())
}

fn line(how: &str, outcome: &Outcome) -> String {
    let Outcome { pages, bytes, errors, duration, origin, message, .. } = outcome;
    let first = if message.is_empty() { String::new() } else { format!("; the first: {message}") };
    let rtt = outcome.rtt.map_or_else(String::new, |rtt| format!(", round trip {:.2} ms", rtt.as_secs_f64() * 1e3));
    let trapped = match outcome.trapped {
        0 => String::new(),
        links => format!("; {links} links lead into traps and were left out"),
    };
    let (origin, seconds) = (origin.as_deref().unwrap_or_default(), duration.as_secs_f64());
    format!("{origin}: {how}: {pages} pages, {bytes} bytes in {seconds:.1} s{rtt}, {errors} errors{first}{trapped}")
}
