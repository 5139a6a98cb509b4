//! Measures the memory of a crawl of a site with a million pages. The memory may grow only with the
//! number of seen URLs.
//!
//! The real binary crawls a generated site with three links per page, so that up to half a million
//! pages are queued. After every 100,000 pages, the lab reads the memory of the process. To know
//! the size of the crawler's set of seen URLs, the lab adds the same URLs, in crawl order, to its
//! own set. The benchmark takes about a minute.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use landfall_agent::crawl::{SeenPaths, fingerprint};
use landfall_scheduler::model::stats::count;
use tokio::process::Command;

use super::bench_site::{ServedSites, Server, SitePlan};
use super::line::Line;
use crate::cluster::Binaries;
use crate::cluster::process::Process;

const PLAN: SitePlan = SitePlan { pages: 1_000_000, fan: 2, others: 1, bytes: 0 };
/// Number of pages between two samples of the memory.
const EVERY: u64 = 100_000;
/// Interval at which the lab polls the server. The interval is far shorter than the time between
/// two samples.
const POLL: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(30 * 60);
const MOST_BYTES: f64 = 32.0;
/// Maximum variation of the process's memory, not counting its set of seen URLs, in MiB. The sizes
/// of buffers vary, and the allocator keeps free memory that it cannot return to the system.
const MOST_DRIFT: f64 = 1.0;
const MIB: f64 = 1_048_576.0;

/// The memory of the process after `pages` pages.
struct MemorySample {
    pages: u64,
    resident: f64,
    seen: SeenUrls,
}

/// The number of seen URLs, and the memory of the set of seen URLs.
#[derive(Clone, Copy)]
struct SeenUrls {
    urls: f64,
    bytes: f64,
}

pub(super) async fn run() -> anyhow::Result<Vec<Line>> {
    let began = Instant::now();
    let mut server = Server::start(&ServedSites::one(PLAN)).await?;
    let folder = tempfile::tempdir()?;
    let mut crawl =
        Process::spawn("crawl", command(&Binaries::find()?.agent, &server.url, folder.path()), folder.path())?;
    let mut predicted = PredictedCrawl::default();
    // At the first sample, the set of seen URLs is still small, so the sample shows the memory of
    // all other parts of the crawler.
    let mut samples = vec![sample(&mut server, &mut crawl, &mut predicted, EVERY / 100).await?];
    for number in 1..PLAN.pages / EVERY {
        samples.push(sample(&mut server, &mut crawl, &mut predicted, number * EVERY).await?);
    }
    // The last sample is before the last page, because the process ends after the last page.
    samples.push(sample(&mut server, &mut crawl, &mut predicted, PLAN.pages - EVERY / 20).await?);
    let status = crawl.wait(PATIENCE).await?.context("the crawl did not end")?;
    ensure!(status.success(), "the crawl failed: {status}\n{}", crawl.tail());
    let asked = server.asked().await?;
    ensure!(asked.pages == PLAN.pages, "{} of {} pages were fetched\n{}", asked.pages, PLAN.pages, crawl.tail());
    let mut lines = report(&samples);
    lines.push(Line::plain("pages fetched, of a million", asked.pages.to_string()));
    lines.push(Line::plain("from start to end, s", format!("{:.0}", began.elapsed().as_secs_f64())));
    Ok(lines)
}

fn command(agent: &Path, url: &str, folder: &Path) -> Command {
    let mut command = Command::new(agent);
    command.args(["--log", "warn", "crawl", url, "--max-pages", "2000000", "--max-bytes", "100000000000"]);
    command.args(["--max-depth", "1000", "--max-duration", "60m", "--request-interval", "0s"]);
    command.args(["--allow-net", "127.0.0.0/8", "--contact-url", "https://lab.test/crawler", "--dir"]).arg(folder);
    command
}

/// Waits until the crawler has fetched `pages` pages, and takes a sample.
async fn sample(
    server: &mut Server,
    crawl: &mut Process,
    predicted: &mut PredictedCrawl,
    pages: u64,
) -> anyhow::Result<MemorySample> {
    let began = Instant::now();
    let (fetched, resident) = loop {
        crawl.ensure_running()?;
        let fetched = server.asked().await?.pages;
        if fetched >= pages {
            break (fetched, crawl.resident_memory()?);
        }
        ensure!(began.elapsed() < PATIENCE, "the crawl stands still at {fetched} pages");
        tokio::time::sleep(POLL).await;
    };
    Ok(MemorySample { pages: fetched, resident, seen: predicted.after(fetched) })
}

/// Predicts the crawler's set of seen URLs. The crawler visits pages in the order in which it finds
/// them.
#[derive(Default)]
struct PredictedCrawl {
    seen: SeenPaths,
    /// The pages in the order in which they are found. The first `visited` pages are fetched.
    queue: Vec<u32>,
    visited: usize,
}

impl PredictedCrawl {
    /// The size of the set of seen URLs after the crawler has fetched `pages` pages.
    fn after(&mut self, pages: u64) -> SeenUrls {
        if self.queue.is_empty() {
            self.find(0);
        }
        while u64::try_from(self.visited).is_ok_and(|visited| visited < pages)
            && let Some(page) = self.queue.get(self.visited).copied()
        {
            self.visited += 1;
            PLAN.links(u64::from(page)).for_each(|link| self.find(link));
        }
        SeenUrls { urls: count(self.seen.count()), bytes: count(self.seen.bytes()) }
    }

    fn find(&mut self, page: u64) {
        if self.seen.insert(fingerprint(&SitePlan::path(page))) {
            self.queue.push(u32::try_from(page).expect("a million pages"));
        }
    }
}

fn report(samples: &[MemorySample]) -> Vec<Line> {
    let mut lines = Vec::new();
    for MemorySample { pages, resident, seen } in samples {
        let rest = (resident - seen.bytes) / MIB;
        let figure = format!("{:.1} - {:.1} = {rest:.1}", resident / MIB, seen.bytes / MIB);
        lines.push(Line::plain(format!("{pages} pages, {} URLs seen: resident - set, MiB", seen.urls), figure));
    }
    if let ([first, .., last], Some((_, settled))) = (samples, samples.split_first()) {
        let each = (last.resident - first.resident) / (last.seen.urls - first.seen.urls);
        lines.push(Line::at_most("all told: resident memory a seen URL, bytes", each, MOST_BYTES));
        let rest = || settled.iter().map(|sample| (sample.resident - sample.seen.bytes) / MIB);
        let drift = rest().fold(f64::MIN, f64::max) - rest().fold(f64::MAX, f64::min);
        lines.push(Line::at_most("beyond the set, from 100,000 pages on: most - least, MiB", drift, MOST_DRIFT));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_predicted_crawl_follows_the_links() {
        let mut predicted = PredictedCrawl::default();
        let urls = predicted.after(1).urls;
        assert!((3.0..=4.0).contains(&urls), "{urls}");
        let SeenUrls { urls, bytes } = predicted.after(10_000);
        assert!(urls > 20_000.0 && bytes / urls < 24.0, "{urls} URLs in {bytes} bytes");
    }

    #[test]
    fn memory_growth_apart_from_the_set_misses_the_target() {
        let sample = |pages: u32, resident: f64| {
            let pages_f = f64::from(pages);
            MemorySample {
                pages: pages.into(),
                resident,
                seen: SeenUrls { urls: 2.0 * pages_f, bytes: 40.0 * pages_f },
            }
        };
        let flat = [sample(1_000, 15e6), sample(100_000, 19e6), sample(200_000, 23e6)];
        assert!(report(&flat).iter().all(|line| line.met != Some(false)));
        let grows = [sample(1_000, 15e6), sample(100_000, 25e6), sample(200_000, 40e6)];
        assert_eq!(report(&grows).iter().filter(|line| line.met == Some(false)).count(), 2);
    }
}
