//! Telling seen URLs from new ones: the crawler's set beside a plain hash table of strings and a Bloom filter (paper 002, Figure 7).
//!
//! Ten million URLs, each offered twice, the second time as a link that was seen before. Five interleaved runs, medians. Bytes are
//! what the set and the filter hold, and for the hash table, whose strings lie all over, what the process grew by. All but the hash table first take the crawler's own fingerprint of the URL, which is most of their time.

use std::collections::HashSet;
use std::time::Instant;

use anyhow::{Context, ensure};
use landfall_agent::crawl::{Seen, fingerprint};

use super::Line;
use super::speed::median;

const URLS: u32 = 10_000_000;
const RUNS: usize = 5;
/// Bits of the Bloom filter for each URL, and bits set for one: an error in a thousand.
const BITS: u64 = 14;
const PROBES: u64 = 10;
const MOST_BYTES: f64 = 24.0;
const OURS: &str = "the crawler's set";

/// Runs the section.
pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let kinds: [Kind; 3] = [("a hash table of strings", strings), (OURS, seen), ("a Bloom filter", bloom)];
    let mut runs: [Vec<Run>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for ((_, run), runs) in kinds.iter().zip(&mut runs) {
            runs.push(run()?);
        }
    }
    let mut lines = Vec::new();
    for ((name, _), runs) in kinds.iter().zip(&runs) {
        // The most: in later runs the hash table finds room that the process was given before.
        let bytes = runs.iter().map(|run| run.bytes).fold(0.0, f64::max) / f64::from(URLS);
        let what = format!("{name}: bytes a URL");
        lines.push(if *name == OURS {
            Line::at_most(what, bytes, MOST_BYTES)
        } else {
            Line::plain(what, format!("{bytes:.1}"))
        });
        let nanos = median(runs.iter().map(|run| run.seconds).collect()) * 1e9 / f64::from(2 * URLS);
        lines.push(Line::plain(format!("{name}: ns a URL"), format!("{nanos:.0}")));
        let skipped = runs.iter().map(|run| run.skipped).max().unwrap_or_default();
        let what = format!("{name}: URLs taken for seen that were not");
        lines.push(if *name == OURS {
            Line::at_most(what, f64::from(skipped), 0.0)
        } else {
            Line::plain(what, skipped.to_string())
        });
    }
    Ok(lines)
}

/// A way to tell seen URLs from new ones: its name, and what runs it.
type Kind = (&'static str, fn() -> anyhow::Result<Run>);

struct Run {
    bytes: f64,
    seconds: f64,
    skipped: u32,
}

/// Offers every URL twice to `add`, which says whether it was new.
fn offer(mut add: impl FnMut(&str) -> bool) -> anyhow::Result<(f64, u32)> {
    let started = Instant::now();
    let mut skipped = 0;
    let mut url = String::new();
    for number in 0..URLS {
        write_url(number, &mut url);
        skipped += u32::from(!add(&url));
    }
    for number in 0..URLS {
        write_url(number, &mut url);
        ensure!(!add(&url), "{url} was forgotten");
    }
    Ok((started.elapsed().as_secs_f64(), skipped))
}

/// The URLs of a site with many folders; the numbers are spread, so that neighbours share little.
fn write_url(number: u32, url: &mut String) {
    use std::fmt::Write as _;
    url.clear();
    write!(url, "/folder-{}/{:08x}.html?page={}", number % 997, number.wrapping_mul(2_654_435_761), number % 10)
        .expect("a string takes everything");
}

fn seen() -> anyhow::Result<Run> {
    let mut seen = Seen::default();
    let (seconds, skipped) = offer(|url| seen.insert(fingerprint(url)))?;
    Ok(Run { bytes: float(seen.bytes())?, seconds, skipped })
}

fn strings() -> anyhow::Result<Run> {
    let before = resident_bytes()?;
    let mut seen: HashSet<Box<str>> = HashSet::new();
    let (seconds, skipped) = offer(|url| !seen.contains(url) && seen.insert(url.into()))?;
    Ok(Run { bytes: resident_bytes()? - before, seconds, skipped })
}

fn bloom() -> anyhow::Result<Run> {
    let bits = u64::from(URLS) * BITS;
    let mut words = vec![0_u64; usize::try_from(bits.div_ceil(64)).context("it fits")?];
    let (seconds, skipped) = offer(|url| {
        let print = fingerprint(url);
        let half = |shift: u32| u64::try_from((print >> shift) & u128::from(u64::MAX)).expect("64 bits");
        let (first, step) = (half(0), half(64) | 1);
        let mut new = false;
        for probe in 0..PROBES {
            let bit = first.wrapping_add(probe.wrapping_mul(step)) % bits;
            let word = &mut words[usize::try_from(bit / 64).expect("it fits")];
            new |= *word & (1 << (bit % 64)) == 0;
            *word |= 1 << (bit % 64);
        }
        new
    })?;
    Ok(Run { bytes: float(words.len() * size_of::<u64>())?, seconds, skipped })
}

fn float(bytes: usize) -> anyhow::Result<f64> {
    Ok(f64::from(u32::try_from(bytes).context("less than 4 GiB")?))
}

fn resident_bytes() -> anyhow::Result<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm").context("read /proc/self/statm")?;
    let pages: f64 = statm.split(' ').nth(1).context("the resident pages")?.parse()?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.context("the size of a page")?;
    Ok(pages * f64::from(i32::try_from(page)?))
}
