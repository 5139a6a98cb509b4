//! Measures the cost of storing pages: processor time, bytes and memory.
//!
//! One recorder stores pages of words, numbers and links, together with their requests. Figures are
//! medians of five interleaved runs. The time is the processor time that the whole process,
//! including system calls, spends on digests, compression and writing.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use landfall_agent::config::StoreConfig;
use landfall_agent::warc::{AnsweredRequest, Recorder, Store};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::unistd::Pid;

use super::line::{Line, median};
use crate::machine::resident_memory;

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

pub(super) async fn run() -> anyhow::Result<Vec<Line>> {
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
