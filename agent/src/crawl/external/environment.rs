//! What an external crawler receives: its files and its environment variables.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};
use tokio::process::Command;

use super::external_crawl::{ExternalCrawl, Target};
use crate::crawl::{Job, Policy};
use crate::disk::folder::blocking;

/// The files in the folder of a lease. The site can influence the names of files only in `output`.
#[derive(Debug)]
pub(super) struct LeaseFiles {
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

    pub(super) async fn prepare(&self, host: &str, address: IpAddr) -> io::Result<()> {
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
pub(super) fn set_environment(command: &mut Command, crawl: &ExternalCrawl, target: &Target<'_>, files: &LeaseFiles) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"LANDFALL_")) {
        command.env_remove(name);
    }
    command.envs(variables(crawl, target, files));
}

/// The environment variables of a crawl, by name.
fn variables(crawl: &ExternalCrawl, target: &Target<'_>, files: &LeaseFiles) -> Vec<(&'static str, String)> {
    let ExternalCrawl { key, job, stores_pages, context, .. } = crawl;
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
        ("LANDFALL_DEADLINE", rfc3339(target.deadline_at())),
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
