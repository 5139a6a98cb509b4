//! `landfall-agent crawl`: crawls one site by the same rules as a leased crawl, shows the progress
//! on standard error, and prints the outcome.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use chrono::{DateTime, Utc};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use super::exit::stop_on_signals;
use super::policy::{CrawlSettings, PolicyArgs};
use super::request::RequestArgs;
use crate::cli::exit::{Code, exit_error};
use crate::config::StoreConfig;
use crate::crawl::{self, AddressPermits, CrawlEnd, CrawlProgress, CrawlStorage, Job, Outcome, OutcomeKind};
use crate::disk::crawl_files::one_off_file;
use crate::machine::clock;
use crate::warc::Store;

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
    #[command(flatten)]
    policy_flags: PolicyArgs,
    #[command(flatten)]
    request: RequestArgs,
}

pub(super) async fn run(args: CrawlArgs) -> anyhow::Result<()> {
    let CrawlSettings { policy, user_agent } = args.policy_flags.settings(args.policy.as_deref())?;
    let context = args.request.context()?;
    let context = Arc::new(match user_agent {
        Some(product) => context.named(&product),
        None => context,
    });
    let stop = CancellationToken::new();
    stop_on_signals(&stop)?;
    let config = args.warc.clone().map(StoreConfig::in_folder);
    let store = config.as_ref().map(|config| Store::open(config, "crawl")).transpose()?;
    let file = args.warc.as_deref().map(|folder| one_off_file(folder, &args.site));
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
        () = show_progress(watching, store.clone()) => bail!("the progress display ended"),
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

/// Interval between updates of the line on a terminal.
const REDRAW: Duration = Duration::from_millis(250);
/// Interval between new lines if standard error is not a terminal.
const LINE: Duration = Duration::from_secs(10);

/// Shows a crawl's progress until this future is dropped.
async fn show_progress(progress: watch::Receiver<CrawlProgress>, store: Option<Store>) {
    let terminal = std::io::stderr().is_terminal();
    let bar = terminal.then(ProgressBar::new_spinner);
    if let (Some(bar), Ok(style)) = (&bar, ProgressStyle::with_template("{spinner} {wide_msg}")) {
        bar.set_style(style);
    }
    let bar = bar.map(ClearOnDrop);
    let began = Instant::now();
    let before = progress.borrow().pages;
    let mut ticks = interval(if terminal { REDRAW } else { LINE });
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let now = *progress.borrow();
        let fetched = f64::from(now.pages.saturating_sub(before));
        let rate = fetched / began.elapsed().as_secs_f64().max(0.001);
        let line = progress_line(&now, rate, store.as_ref().and_then(Store::paused), clock::wall());
        match &bar {
            Some(ClearOnDrop(bar)) => {
                bar.set_message(line);
                bar.tick();
            }
            None => eprintln!("{line}"),
        }
    }
}

/// A progress bar that is cleared when dropped.
struct ClearOnDrop(ProgressBar);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn progress_line(progress: &CrawlProgress, rate: f64, full: Option<String>, now: SystemTime) -> String {
    let CrawlProgress { pages, bytes, queued, errors, paused_until } = *progress;
    let state = match (full, paused_until.filter(|until| *until > now)) {
        (Some(reason), _) => format!("paused: {reason}"),
        (None, Some(until)) => format!("paused until {}", DateTime::<Utc>::from(until).format("%H:%M:%S UTC")),
        (None, None) => "crawling".to_owned(),
    };
    format!("{pages} pages ({} MiB), {queued} queued, {rate:.1} pages/s, {errors} errors; {state}", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_line_shows_the_cause_of_a_pause() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let progress = CrawlProgress { pages: 7, bytes: 3 << 20, queued: 12, errors: 1, paused_until: Some(at(61)) };
        let counts = "7 pages (3 MiB), 12 queued, 1.5 pages/s, 1 errors;";
        assert_eq!(progress_line(&progress, 1.5, None, at(60)), format!("{counts} paused until 00:01:01 UTC"));
        assert_eq!(progress_line(&progress, 1.5, None, at(61)), format!("{counts} crawling"));
        assert_eq!(
            progress_line(&progress, 1.5, Some("no room".to_owned()), at(60)),
            format!("{counts} paused: no room")
        );
    }
}
