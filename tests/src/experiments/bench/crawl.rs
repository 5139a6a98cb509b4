//! Measures the cost of crawling a page. The agent's crawler is compared with `spider`, wget2 and
//! Scrapy on a site of 5,001 linked pages. `lab measured -- CMD` runs a command and prints its
//! processor time, peak memory and duration as JSON.
//!
//! The cost is processor time (user and system). Elapsed times are not comparable, because the
//! agent requests one page at a time and the other crawlers several. Each run is a process,
//! measured from start to end. The runs of the crawlers alternate. A run fails if the site's server
//! counted too few fetched pages. The server is a separate process, whose cost is not measured.
//!
//! The command is the only child of a separate process, because the system reports only the total
//! cost of all children of a process.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::bench_site::{ServedSites, Server, SitePlan};
use super::line::{Line, median};
use crate::cluster::Binaries;

/// As on an ordinary site, a page has about 4 KiB and 20 links, and about twenty pages link to it.
pub(super) const PLAN: SitePlan = SitePlan { pages: 5001, fan: 4, others: 16, bytes: 4096 };
const RUNS: usize = 5;
const LEAST_RATIO: f64 = 1.2;
const MOST_MIB: f64 = 64.0;

struct Row {
    name: &'static str,
    costs: Vec<ProcessCost>,
}

impl Row {
    /// Pages per second of processor time, one value per run.
    fn rates(&self) -> Vec<f64> {
        let pages = f64::from(u32::try_from(PLAN.pages).unwrap_or(u32::MAX));
        self.costs.iter().map(|cost| pages / cost.cpu_s()).collect()
    }

    fn peak_mib(&self) -> f64 {
        let peaks = self.costs.iter().map(|cost| f64::from(i32::try_from(cost.peak_kib).unwrap_or(i32::MAX)) / 1024.0);
        peaks.fold(0.0, f64::max)
    }

    /// The median of a figure, with its minimum and maximum.
    fn spread(&self, figure: impl Fn(&ProcessCost) -> f64, digits: usize) -> String {
        let figures: Vec<f64> = self.costs.iter().map(figure).collect();
        let (least, most) =
            (figures.iter().copied().fold(f64::MAX, f64::min), figures.iter().copied().fold(0.0, f64::max));
        format!("{:.digits$} ({least:.digits$} - {most:.digits$})", median(figures))
    }
}

pub(super) async fn run() -> anyhow::Result<Vec<Line>> {
    let paths = CrawlerPaths::find()?;
    let mut server = Server::start(&ServedSites::one(PLAN)).await?;
    let (mut rows, mut lines, mut able) = (Vec::new(), Vec::new(), Vec::new());
    for Crawler { name, call } in paths.crawlers() {
        match call {
            Ok(call) => {
                able.push(call);
                rows.push(Row { name, costs: Vec::new() });
            }
            Err(reason) => lines.push(Line::plain(format!("{name}: {reason}"), "-")),
        }
    }
    for _ in 0..RUNS {
        for (row, call) in rows.iter_mut().zip(&able) {
            let folder = tempfile::tempdir()?;
            let command = call(&paths, &server.url);
            row.costs.push(crawl(&mut server, row.name, &command, folder.path()).await?);
        }
    }
    for row in &rows {
        let pages = f64::from(u32::try_from(PLAN.pages)?);
        let Row { name, .. } = row;
        lines
            .push(Line::plain(format!("{name}: pages a processor second"), row.spread(|cost| pages / cost.cpu_s(), 0)));
        lines.push(Line::plain(format!("{name}: of it in the system, s"), row.spread(|cost| cost.system_s, 2)));
        lines.push(Line::plain(format!("{name}: from start to end, s"), row.spread(|cost| cost.wall_s, 2)));
        let (what, mib) = (format!("{name}: peak memory, MiB"), row.peak_mib());
        let ours = [OURS, OURS_WARC].contains(name);
        lines.push(if ours { Line::at_most(what, mib, MOST_MIB) } else { Line::plain(what, format!("{mib:.0}")) });
    }
    for (ours, peer) in [(OURS, SPIDER), (OURS, WGET2), (OURS_WARC, WGET2)] {
        let row = |name: &str| rows.iter().find(|row| row.name == name);
        if let (Some(a), Some(b)) = (row(ours), row(peer)) {
            // Each ratio compares two runs of the same repetition, because other load on the
            // machine affects both runs about equally.
            let ratio = median(a.rates().iter().zip(b.rates()).map(|(a, b)| a / b).collect());
            lines.push(Line::at_least(format!("{ours} to {peer}"), ratio, LEAST_RATIO));
        }
    }
    Ok(lines)
}

/// Makes one run. Fails if the crawler did not fetch every page.
async fn crawl(server: &mut Server, name: &str, command: &[String], folder: &Path) -> anyhow::Result<ProcessCost> {
    server.reset().await?;
    let cost = cost_of(command, folder).await.map_err(|error| error.context(name.to_owned()))?;
    let asked = server.asked().await?;
    ensure!(
        asked.pages == PLAN.pages,
        "{name} fetched {} of {} pages in {} requests",
        asked.pages,
        PLAN.pages,
        asked.requests
    );
    Ok(cost)
}

/// Makes the command line of a crawler for the site at a URL.
type BuildCommand = fn(&CrawlerPaths, &str) -> Vec<String>;

struct Crawler {
    name: &'static str,
    /// The function that makes the command line, or the reason why the crawler is not available.
    call: Result<BuildCommand, String>,
}

struct CrawlerPaths {
    agent: PathBuf,
    spider: PathBuf,
    python: PathBuf,
    scrapy: PathBuf,
}

/// The names of the crawlers. The first two are variants of Landfall's crawler.
const OURS: &str = "landfall-agent crawl, pages discarded";
const OURS_WARC: &str = "landfall-agent crawl --warc";
const SPIDER: &str = "spider (library), pages discarded";
const WGET2: &str = "wget2, 8 threads, pages deleted";
const SCRAPY: &str = "Scrapy, pages discarded";

impl CrawlerPaths {
    /// Finds the crawlers in the target folder.
    fn find() -> anyhow::Result<Self> {
        let agent = Binaries::find()?.agent;
        let target = agent.ancestors().nth(2).context("binaries lie in a folder of the target folder")?;
        let peers = target.join("peers");
        let scrapy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/peers/scrapy_site.py");
        Ok(Self { agent, spider: peers.join("peer-spider"), python: peers.join("scrapy/bin/python"), scrapy })
    }

    /// All crawlers, in the order of their runs.
    fn crawlers(&self) -> [Crawler; 5] {
        let beside =
            |path: &Path| path.exists().then_some(()).ok_or_else(|| "not installed: run ops/peers.sh".to_owned());
        let wget2 = std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("wget2").exists()));
        let wget2 = wget2.then_some(()).ok_or_else(|| "not installed: run ops/peers.sh".to_owned());
        [
            Crawler { name: OURS, call: Ok(Self::ours) },
            Crawler { name: SPIDER, call: beside(&self.spider).map(|()| Self::spider as _) },
            Crawler { name: OURS_WARC, call: Ok(Self::ours_with_warc) },
            Crawler { name: WGET2, call: wget2.map(|()| Self::wget2 as _) },
            Crawler { name: SCRAPY, call: beside(&self.python).map(|()| Self::scrapy as _) },
        ]
    }

    /// The command line of Landfall's crawler. The crawl does everything that a crawl for a
    /// scheduler does, but has no interval between requests.
    fn ours(&self, url: &str) -> Vec<String> {
        let agent = self.agent.display().to_string();
        let budgets = ["--max-pages", "10000", "--max-bytes", "1000000000", "--max-depth", "100"];
        let rest = ["--request-interval", "0s", "--allow-net", "127.0.0.0/8"];
        // These arguments override the configuration of any agent that is installed on this
        // machine.
        let identity = ["--contact-url", "https://lab.test/crawler", "--dir", "."];
        let args = ["--log", "warn", "crawl", url].into_iter().chain(budgets).chain(rest).chain(identity);
        std::iter::once(agent).chain(args.map(str::to_owned)).collect()
    }

    fn ours_with_warc(&self, url: &str) -> Vec<String> {
        let mut command = self.ours(url);
        command.extend(["--warc", "warc"].map(str::to_owned));
        command
    }

    fn spider(&self, url: &str) -> Vec<String> {
        vec![self.spider.display().to_string(), url.to_owned()]
    }

    fn wget2(&self, url: &str) -> Vec<String> {
        let args = ["wget2", "-q", "-r", "-l", "0", "--max-threads=8", "--delete-after", url];
        args.map(str::to_owned).to_vec()
    }

    fn scrapy(&self, url: &str) -> Vec<String> {
        let script = self.scrapy.display().to_string();
        vec![self.python.display().to_string(), script, url.to_owned()]
    }
}

/// Time limit of a crawl. The slowest crawler needs about thirty seconds.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProcessCost {
    pub user_s: f64,
    pub system_s: f64,
    pub wall_s: f64,
    /// Peak memory in KiB, which is never less than the few MiB that `lab` occupied when it started
    /// the process.
    pub peak_kib: i64,
}

impl ProcessCost {
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }
}

/// Arguments of `lab measured`.
#[derive(Debug, Clone, Args)]
pub struct MeasuredArgs {
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Runs a command, and prints its cost as JSON.
pub async fn print_cost(args: &MeasuredArgs) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(&measured(&args.command).await?)?);
    Ok(())
}

/// Runs a command and returns its cost. The command's output goes to standard error.
async fn measured(command: &[String]) -> anyhow::Result<ProcessCost> {
    let (program, args) = command.split_first().context("there is a command")?;
    let started = Instant::now();
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(std::io::stderr()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("start {program}"))?;
    let status = tokio::time::timeout(PATIENCE, child.wait()).await;
    let status = status.with_context(|| format!("{program} took longer than {PATIENCE:?}"))??;
    let wall_s = started.elapsed().as_secs_f64();
    ensure!(status.success(), "{program}: {status}");
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("ask what the child cost")?;
    let (user_s, system_s) = (seconds(usage.user_time()), seconds(usage.system_time()));
    Ok(ProcessCost { user_s, system_s, wall_s, peak_kib: usage.max_rss() })
}

fn seconds(time: TimeVal) -> f64 {
    let whole = u64::try_from(time.tv_sec()).unwrap_or_default();
    let micros = u64::try_from(time.tv_usec()).unwrap_or_default();
    (Duration::from_secs(whole) + Duration::from_micros(micros)).as_secs_f64()
}

/// Runs a command in `folder` through `lab measured`, and returns its cost.
async fn cost_of(command: &[String], folder: &Path) -> anyhow::Result<ProcessCost> {
    let own = std::env::current_exe().context("find the lab's own executable")?;
    let mut lab = Command::new(own);
    lab.arg("measured").arg("--").args(command).current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
    let output = lab.output().await.context("start lab measured")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().rev().take(3).collect();
        bail!("{}", last.into_iter().rev().collect::<Vec<_>>().join(" / "));
    }
    serde_json::from_slice(&output.stdout).context("read what lab measured said")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_successful_command_has_a_cost_and_a_failed_one_is_an_error() {
        let sh = |script: &str| ["sh", "-c", script].map(str::to_owned);
        let cost = measured(&sh("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")).await.unwrap();
        assert!(cost.user_s > 0.001 && cost.peak_kib > 100 && cost.wall_s >= cost.user_s * 0.5, "{cost:?}");
        assert!(measured(&sh("exit 3")).await.is_err());
        assert!(measured(&["/no/such/program".to_owned()]).await.is_err());
    }
}
