//! Measures the memory of a crawl of a site with a million pages, which may grow only with the
//! number of seen URLs, and the cost of storing pages: processor time, bytes and memory.
//!
//! The real binary crawls a generated site with three links per page, so that up to half a million
//! pages are queued. After every 100,000 pages, the lab reads the memory of the process. To know
//! the size of the crawler's set of seen URLs, the lab adds the same URLs, in crawl order, to its
//! own set. The benchmark takes about a minute.
//!
//! One recorder stores pages of words, numbers and links, together with their requests. Figures are
//! medians of five interleaved runs. The time is the processor time that the whole process,
//! including system calls, spends on digests, compression and writing.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, ensure};
use landfall_agent::config::StoreConfig;
use landfall_agent::crawl::{SeenPaths, fingerprint};
use landfall_agent::warc::{AnsweredRequest, Recorder, Store};
use landfall_scheduler::model::stats::count;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::unistd::Pid;
use tokio::process::Command;

use super::bench_site::{ServedSites, Server, SitePlan};
use super::line::{Line, median};
use crate::cluster::Binaries;
use crate::cluster::process::Process;
use crate::machine::resident_memory;

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

pub(super) async fn million() -> anyhow::Result<Vec<Line>> {
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
    let mut lines = lines_of(&samples);
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

fn lines_of(samples: &[MemorySample]) -> Vec<Line> {
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

const RUNS: usize = 5;
const PAGES: u32 = 2000;
/// Maximum processor time to store a page, in microseconds. Within this limit, a crawl that stores
/// pages fetches 1.2 times as many pages per second of processor time as wget2.
const MOST_MICROS: f64 = 150.0;
/// Number of concurrent crawls.
const AT_ONCE: usize = 50;
const LARGE: usize = 5 << 20;
const MOST_MIB: f64 = 64.0;
const WORDS: [&str; 16] = [
    "agent",
    "site",
    "crawl",
    "network",
    "distance",
    "measure",
    "lease",
    "token",
    "landmark",
    "embedding",
    "carrier",
    "city",
    "page",
    "queue",
    "sitemap",
    "batch",
];

pub(super) async fn warc() -> anyhow::Result<Vec<Line>> {
    let kinds = [
        ("4 KiB", 4 << 10, true),
        ("8 KiB", 8 << 10, true),
        ("64 KiB", 64 << 10, true),
        ("8 KiB, compressed", 8 << 10, false),
    ];
    let mut lines = vec![memory().await?];
    let mut runs = kinds.map(|_| Vec::new());
    for _ in 0..RUNS {
        for ((_, bytes, is_text), runs) in kinds.iter().zip(&mut runs) {
            runs.push(store(*bytes, *is_text).await?);
        }
    }
    for ((name, bytes, _), runs) in kinds.iter().zip(runs) {
        let micros = median(runs.iter().map(|run| run.0).collect());
        let what = format!("a page of {name}: us of a processor");
        lines.push(if *bytes <= 8 << 10 {
            Line::at_most(what, micros, MOST_MICROS)
        } else {
            Line::plain(what, format!("{micros:.1}"))
        });
        let stored = median(runs.iter().map(|run| run.1).collect());
        lines.push(Line::plain(format!("a page of {name}: bytes stored"), format!("{stored:.0}")));
    }
    Ok(lines)
}

/// Stores pages. Returns the processor time in microseconds and the bytes per page.
async fn store(bytes: usize, is_text: bool) -> anyhow::Result<(f64, f64)> {
    let folder = tempfile::tempdir()?;
    let pages: Vec<Vec<u8>> = (0..64).map(|number| page(number, bytes, is_text)).collect();
    let store = open(folder.path())?;
    let recorder = store.recorder("bench", None);
    let before = processor()?;
    for (number, page) in (0..PAGES).zip(pages.iter().cycle()) {
        recorder.ready().await;
        let mut recording = recorder.begin(answered(number));
        recording.push(page).await;
        recording.end(None);
    }
    recorder.stored().await?;
    let spent = processor()?.saturating_sub(before);
    store.close().await;
    let mut stored = 0;
    for entry in std::fs::read_dir(folder.path())? {
        stored += entry?.metadata()?.len();
    }
    let stored = f64::from(u32::try_from(stored)?) / f64::from(PAGES);
    Ok((spent.as_secs_f64() * 1e6 / f64::from(PAGES), stored))
}

/// Measures the growth of memory while many large pages are received.
async fn memory() -> anyhow::Result<Line> {
    let folder = tempfile::tempdir()?;
    let store = open(folder.path())?;
    let recorders: Vec<Recorder> = (0..AT_ONCE).map(|_| store.recorder("bench", None)).collect();
    let piece = page(1, 16 << 10, false);
    let before = resident_mib()?;
    let mut recordings: Vec<_> = recorders.iter().zip(0..).map(|(to, number)| to.begin(answered(number))).collect();
    let mut most: f64 = 0.0;
    for _ in 0..LARGE / piece.len() {
        for recording in &mut recordings {
            recording.push(&piece).await;
        }
        most = most.max(resident_mib()? - before);
    }
    drop(recordings);
    for recorder in &recorders {
        recorder.stored().await?;
    }
    let most = most.max(resident_mib()? - before);
    store.close().await;
    Ok(Line::at_most(format!("{AT_ONCE} pages of 5 MiB at once: MiB of memory"), most, MOST_MIB))
}

fn open(folder: &Path) -> anyhow::Result<Store> {
    let config = StoreConfig { folder: folder.to_owned(), max_file_bytes: 1 << 30, min_free_bytes: 0 };
    Ok(Store::open(&config, "bench")?)
}

fn answered(number: u32) -> AnsweredRequest {
    AnsweredRequest {
        url: format!("http://bench.example/folder-{}/{number:08x}.html", number % 97),
        at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_341_086),
        address: Some([127, 0, 0, 1].into()),
        request: b"GET /folder/page.html HTTP/1.1\r\nhost: bench.example\r\nuser-agent: landfall-agent/0.1 (+https://example.org/crawler)\r\naccept: text/html,*/*;q=0.5\r\n\r\n".to_vec(),
        head: b"HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: 8192\r\ndate: Sun, 22 Nov 2026 09:51:26 GMT\r\nserver: nginx\r\nlast-modified: Sat, 21 Nov 2026 10:00:00 GMT\r\n\r\n".to_vec(),
        status: 200,
        content_type: Some("text/html; charset=utf-8".to_owned()),
    }
}

/// A page of text, or of bytes that cannot be compressed.
fn page(number: u32, bytes: usize, is_text: bool) -> Vec<u8> {
    let mut random = number.wrapping_mul(2_654_435_761) | 1;
    let mut page = String::new();
    let mut raw = Vec::new();
    while page.len() < bytes && raw.len() < bytes {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        if !is_text {
            raw.extend(random.to_le_bytes());
            continue;
        }
        let word = WORDS[usize::from(random.to_be_bytes()[1]) % WORDS.len()];
        match random % 55 {
            0 | 11 | 22 | 33 | 44 => {
                page += &format!("<p><a href=\"/folder-{}/{random:08x}.html\">{word}</a>", random % 97);
            }
            n if n % 5 == 0 => page += &format!("{:x} ", random % 9999),
            _ => page = page + word + " ",
        }
    }
    if is_text { page.into_bytes() } else { raw }
}

/// The processor time of this process.
fn processor() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(u64::try_from(micros)?))
}

fn resident_mib() -> anyhow::Result<f64> {
    Ok(resident_memory(Pid::this()).context("read this process's memory")? as f64 / f64::from(1 << 20))
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
        assert!(lines_of(&flat).iter().all(|line| line.met != Some(false)));
        let grows = [sample(1_000, 15e6), sample(100_000, 25e6), sample(200_000, 40e6)];
        assert_eq!(lines_of(&grows).iter().filter(|line| line.met == Some(false)).count(), 2);
    }
}
