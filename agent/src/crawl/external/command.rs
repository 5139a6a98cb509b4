//! Runs the operator's command once per lease: finds the site's origin and address, prepares the
//! command's files and environment variables, limits its time, and stops it when the lease ends.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use chrono::{DateTime, SecondsFormat, Utc};
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::outcome::{self, Ending, Target, judge};
use super::output_log::{OutputLog, copy_output};
use super::processes::{Guardian, ProcessGroup};
use crate::config::{ExecConfig, program};
use crate::crawl::fetch::Timeouts;
use crate::crawl::fetch::site_address::SiteAddress;
use crate::crawl::outcome::{CrawlEnd, WalkEnd, rest, rest_after_last_request};
use crate::crawl::policy_and_budget::{Budget, Ledger, Stopwatch};
use crate::crawl::site_crawl::find_origin;
use crate::crawl::{Job, LeasedCrawl, Policy};
use crate::disk::crawl_files::LeaseFolders;
use crate::disk::folder::blocking;
use crate::machine::free_space::LimitedDisk;
use crate::net::origin::Origin;

/// Minimum time between a crawler's crash and the return of its lease. The delay keeps a faulty
/// crawler from being restarted at once. The delay also gives the agent time to notice a signal
/// that stopped both the agent and the crawler; after such a signal the crawl counts as stopped,
/// not as crashed.
const CRASH_REST: Duration = Duration::from_secs(1);

/// The operator's command that crawls leased sites. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ExternalCrawler {
    program: Arc<Path>,
    arguments: Arc<[String]>,
    grace: Duration,
    folders: LeaseFolders,
    min_free_bytes: u64,
    pub(super) guardian: Guardian,
}

impl ExternalCrawler {
    /// Fails if the command's program does not exist, or if the folder for its output cannot be
    /// used.
    pub fn open(config: &ExecConfig) -> anyhow::Result<Self> {
        let program = program::find(&config.command);
        let program = program.map_err(|error| anyhow::anyhow!("{error}: {}", program::REMEDY))?;
        let folders = LeaseFolders::open(&config.folder, config.keep)?;
        let guardian = Guardian::start().context("start /bin/sh, which kills crawlers if the agent is killed")?;
        let arguments = config.command.iter().skip(1).cloned().collect();
        let grace = Duration::from_millis(config.grace_ms);
        let min_free_bytes = config.min_free_bytes;
        Ok(Self { program: program.into(), arguments, grace, folders, min_free_bytes, guardian })
    }

    /// Maximum time between the order to stop and the end of the command.
    pub(crate) const fn grace(&self) -> Duration {
        self.grace
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folders.path()
    }

    /// The disk that stores the command's output.
    pub(crate) fn disk(&self) -> LimitedDisk {
        LimitedDisk::at(self.folder(), self.min_free_bytes)
    }

    /// Runs the command for a lease, until the command ends or `stop` is cancelled.
    pub(crate) async fn crawl(&self, crawl: LeasedCrawl, stop: &CancellationToken) -> CrawlEnd {
        let watch = Stopwatch::after(Duration::ZERO);
        let deadline = watch.deadline(crawl.job.policy.max_duration);
        let without_run = |end| CrawlEnd::of_walk(end, &crawl.job, Ledger::default(), None, None, None, watch);
        let interval = rest_after_last_request(crawl.job.policy.request_interval);
        let stopped = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = crawl.preempted.cancelled() => {}
            }
        };
        let mut settled_at = None;
        let found = tokio::select! {
            biased;
            () = stopped => None,
            found = timeout_at(deadline, find(&crawl, &mut settled_at)) => Some(found),
        };
        if let Some(settled_at) = settled_at {
            // Wait for the site's request interval before the command or another agent sends its
            // first request.
            rest(Some(settled_at + interval), stop).await;
        }
        let (origin, address) = match found {
            None => return CrawlEnd::Stopped(None),
            Some(Ok(Ok(found))) => found,
            Some(Ok(Err(end))) => return without_run(end),
            Some(Err(_)) => return without_run(WalkEnd::Cut(Budget::Duration)),
        };
        if stop.is_cancelled() || crawl.preempted.is_cancelled() {
            return CrawlEnd::Stopped(None);
        }
        let target = Target { origin: &origin, address, watch, deadline };
        let ended = self.run(&crawl, &target, stop).await;
        let pause = if matches!(ended, CrawlEnd::Crashed(_)) { interval.max(CRASH_REST) } else { interval };
        rest(Some(Instant::now() + pause), stop).await;
        match ended {
            // A signal that crashed the command may also have stopped the agent. In that case the
            // crawl counts as stopped, not as crashed.
            CrawlEnd::Crashed(_) if stop.is_cancelled() => CrawlEnd::Stopped(None),
            ended => ended,
        }
    }

    async fn run(&self, crawl: &LeasedCrawl, target: &Target<'_>, stop: &CancellationToken) -> CrawlEnd {
        let folder = match self.folders.create(crawl.key).await {
            Ok(folder) => folder,
            Err(error) => return CrawlEnd::Broken(format!("the folder for the crawler's output: {error}")),
        };
        let files = LeaseFiles::of(&folder);
        let ended = self.run_in(&files, crawl, target, stop).await;
        let statistics = files.statistics.clone();
        let read = blocking(move || Ok(outcome::read_statistics(&statistics))).await;
        self.folders.finish(folder).await;
        let (ending, last_line) = match ended {
            Ok(ended) => ended,
            Err(error) => return CrawlEnd::Crashed(format!("run {}: {error}", self.program.display())),
        };
        let Some(ending) = ending else { return CrawlEnd::Stopped(None) };
        let read = read.unwrap_or_else(|error| Err(outcome::StatisticsError::Read(error)));
        if let Err(error) = &read {
            tracing::warn!(task.id = crawl.key.task_id, token = crawl.key.token, %error, "a crawler's statistics do not count");
        }
        match judge(ending, &read, &last_line, &crawl.job.policy) {
            Ok(verdict) => verdict.outcome(target.watch, target.origin),
            Err(crash) => CrawlEnd::Crashed(crash),
        }
    }

    /// Returns how the command ended (`None` if it was stopped), and the last line that it printed.
    async fn run_in(
        &self,
        files: &LeaseFiles,
        crawl: &LeasedCrawl,
        target: &Target<'_>,
        stop: &CancellationToken,
    ) -> io::Result<(Option<Ending>, String)> {
        files.prepare(&target.origin.host, target.address).await?;
        let (output, input) = io::pipe()?;
        let mut command = Command::new(&*self.program);
        command.args(&*self.arguments).current_dir(&files.output).stdin(Stdio::null());
        command.stdout(input.try_clone()?).stderr(input);
        set_environment(&mut command, crawl, target, files);
        let mut group = ProcessGroup::spawn(command, &self.guardian)?;
        let closing = CancellationToken::new();
        let copying =
            copy_output(OutputLog::create(&files.log).await?, Receiver::from_owned_fd(output.into())?, &closing);
        let ending = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            () = crawl.preempted.cancelled() => None,
            status = group.ended() => Some(Ending::Exited(status?)),
            () = sleep_until(target.deadline) => Some(Ending::OutOfTime),
        };
        if !matches!(ending, Some(Ending::Exited(_))) {
            group.stop(self.grace).await;
        }
        drop(group);
        closing.cancel();
        Ok((ending, copying.await.map_err(io::Error::other)?))
    }
}

/// Finds the site's origin, and the address to which the scheduler permits requests.
async fn find(crawl: &LeasedCrawl, settled_at: &mut Option<Instant>) -> Result<(Origin, IpAddr), WalkEnd> {
    let timeouts = Timeouts::default();
    let site_address = SiteAddress::new(&crawl.context, crawl.permits.clone(), timeouts.connect);
    let origin = find_origin(&crawl.job, &crawl.context, &site_address, timeouts.first_byte, settled_at).await?;
    let address = site_address.of(&origin.host).await?;
    Ok((origin, address))
}

/// The files in the folder of a lease. The site can influence the names of files only in `output`.
#[derive(Debug)]
struct LeaseFiles {
    /// The folder in which the crawler runs, and stores what it fetches.
    pub(super) output: PathBuf,
    pub(super) statistics: PathBuf,
    /// The file with the site's name and address in the format of /etc/hosts; empty if the site's
    /// host is an IP literal.
    pub(super) hosts: PathBuf,
    pub(super) log: PathBuf,
}

impl LeaseFiles {
    pub(super) fn of(folder: &Path) -> Self {
        let file = |name| folder.join(name);
        Self { output: file("output"), statistics: file("statistics.json"), hosts: file("hosts"), log: file("log") }
    }

    async fn prepare(&self, host: &str, address: IpAddr) -> io::Result<()> {
        let (output, hosts) = (self.output.clone(), self.hosts.clone());
        let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
        let line = if is_address { String::new() } else { format!("{address} {host}\n") };
        blocking(move || {
            std::fs::create_dir(output)?;
            std::fs::write(hosts, line)
        })
        .await
    }
}

/// Gives a command the agent's environment, except variables of Landfall, and the variables of a
/// crawl.
fn set_environment(command: &mut Command, crawl: &LeasedCrawl, target: &Target<'_>, files: &LeaseFiles) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"LANDFALL_")) {
        command.env_remove(name);
    }
    command.envs(variables(crawl, target, files));
}

/// The environment variables of a crawl, by name.
fn variables(crawl: &LeasedCrawl, target: &Target<'_>, files: &LeaseFiles) -> Vec<(&'static str, String)> {
    let LeasedCrawl { key, job, stores_pages, context, .. } = crawl;
    let Job { name, policy, .. } = job;
    // External crawlers cannot report hosts, so `max_hosts` is not passed to them.
    let Policy { max_pages, max_bytes, max_depth, max_hosts: _, max_duration, request_interval, .. } = policy;
    let Policy { shortest_interval, sitemaps, paths, .. } = policy;
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let mut variables = vec![
        ("LANDFALL_SITE", name.clone()),
        ("LANDFALL_URL", format!("{}/", target.origin)),
        ("LANDFALL_HOST", target.origin.host.clone()),
        ("LANDFALL_ADDRESS", target.address.to_string()),
        ("LANDFALL_HOSTS", path(&files.hosts)),
        ("LANDFALL_TASK", key.task_id.to_string()),
        ("LANDFALL_ATTEMPT", key.token.to_string()),
        ("LANDFALL_USER_AGENT", context.user_agent.as_str().to_owned()),
        ("LANDFALL_OUTPUT", path(&files.output)),
        ("LANDFALL_STATISTICS", path(&files.statistics)),
        ("LANDFALL_DEADLINE", rfc3339(target.watch.deadline_at(*max_duration))),
        ("LANDFALL_MAX_SECONDS", max_duration.as_secs().max(1).to_string()),
        ("LANDFALL_MAX_PAGES", max_pages.to_string()),
        ("LANDFALL_MAX_BYTES", max_bytes.to_string()),
        ("LANDFALL_MAX_DEPTH", max_depth.to_string()),
        ("LANDFALL_REQUEST_INTERVAL_MS", request_interval.as_millis().to_string()),
        ("LANDFALL_REQUEST_INTERVAL_SECONDS", seconds(*request_interval)),
        ("LANDFALL_SHORTEST_INTERVAL_MS", shortest_interval.min(request_interval).as_millis().to_string()),
        ("LANDFALL_SITEMAPS", sitemaps.to_string()),
        ("LANDFALL_INCLUDE", paths.included().collect::<Vec<_>>().join("\n")),
        ("LANDFALL_EXCLUDE", paths.excluded().collect::<Vec<_>>().join("\n")),
        ("LANDFALL_STORE", stores_pages.to_string()),
    ];
    if let Some(bind) = context.bind {
        variables.push(("LANDFALL_BIND", bind.to_string()));
    }
    variables
}

fn rfc3339(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Seconds with three decimal places. Most crawlers accept this format. A shell script could not
/// convert milliseconds to this format, because shells have only integer arithmetic.
fn seconds(duration: Duration) -> String {
    format!("{}.{:03}", duration.as_secs(), duration.subsec_millis())
}
