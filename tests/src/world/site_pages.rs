//! The pages of the emulated sites. They are drawn from the scenario's seed by [`WebRules`].
//!
//! Pages form a tree rooted at `/`. Pages also have cross links, broken links and links to other
//! hosts. The server delays its response for some pages. The body of a page is generated for each
//! request, always with the same content. [`SiteWeb::expected_crawl`] computes the pages that a
//! polite crawler reaches.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::ensure;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;

pub const DISALLOWED: &str = "/private/";
/// On a site with a robots.txt, one in `PRIVATE_ONE_IN` pages on average is in the disallowed
/// folder.
const PRIVATE_ONE_IN: usize = 10;
/// A page's parent is one of the `PARENT_WINDOW` pages before it. A smaller window makes the tree
/// deeper.
const PARENT_WINDOW: usize = 12;
const MAX_CROSS_LINKS: usize = 3;
/// A link to another host, which crawlers must not follow.
const ELSEWHERE: &str = "http://www.elsewhere.test/";

/// The rules for the content of sites. Fractions are from 0 to 1.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebRules {
    /// Mean number of pages of a site. The number has a lognormal distribution.
    pub mean_pages: f64,
    /// Standard deviation of the logarithm of the number of pages.
    pub pages_sigma: f64,
    pub max_pages: usize,
    /// Mean size of a page in bytes. The size has a lognormal distribution.
    pub mean_bytes: f64,
    /// Standard deviation of the logarithm of the page size.
    pub bytes_sigma: f64,
    /// Maximum size of a page in bytes.
    pub max_bytes: usize,
    /// Fraction of pages with a broken link.
    pub broken_share: f64,
    /// Fraction of pages to which the server responds with a delay.
    pub slow_share: f64,
    /// The delay of a slow page in milliseconds.
    pub slow_ms: u64,
    /// Fraction of sites whose robots.txt disallows /private/.
    pub robots_share: f64,
}

impl Default for WebRules {
    /// The rules of the paper's layout.
    fn default() -> Self {
        Self {
            mean_pages: 25.0,
            pages_sigma: 0.8,
            max_pages: 120,
            mean_bytes: 12_288.0,
            bytes_sigma: 0.7,
            max_bytes: 200_000,
            broken_share: 0.05,
            slow_share: 0.02,
            slow_ms: 600,
            robots_share: 0.6,
        }
    }
}

impl WebRules {
    pub fn validate(&self) -> anyhow::Result<()> {
        let shares =
            [("broken_share", self.broken_share), ("slow_share", self.slow_share), ("robots_share", self.robots_share)];
        for (field, share) in shares {
            ensure!((0.0..=1.0).contains(&share), "web.{field} must be from 0 to 1");
        }
        ensure!(self.mean_pages >= 1.0 && self.max_pages >= 1, "web.mean_pages and web.max_pages must be 1 or more");
        ensure!(
            self.mean_bytes >= 512.0 && self.max_bytes >= 512,
            "web.mean_bytes and web.max_bytes must be 512 or more"
        );
        ensure!(self.pages_sigma >= 0.0 && self.bytes_sigma >= 0.0, "web: a sigma must not be negative");
        Ok(())
    }
}

#[derive(Debug, Clone)]
pub struct SiteWeb {
    pages: Vec<Page>,
    robots: bool,
}

#[derive(Debug, Clone)]
pub struct Page {
    pub path: String,
    /// Size of the body in bytes.
    pub bytes: usize,
    /// How long the server waits before it responds.
    pub thinking: Duration,
    /// The indices of the pages to which this page links.
    links: Vec<usize>,
    broken: bool,
    /// Whether the page links to another host.
    leaves: bool,
}

/// The properties of a request that determine its duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteRequest {
    /// Size of the response's body in bytes.
    pub bytes: usize,
    pub thinking: Duration,
}

/// What a polite crawler finds on a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedCrawl {
    /// The paths of all reachable pages.
    pub pages: BTreeSet<String>,
    /// Total size in bytes of the bodies of reachable pages.
    pub bytes: u64,
    /// Number of broken links on reachable pages.
    pub broken: usize,
}

impl SiteWeb {
    pub fn draw(rules: &WebRules, seed: u64, site: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(u64::try_from(site).unwrap_or(u64::MAX).wrapping_add(1));
        let robots = rng.random_bool(rules.robots_share);
        let count = lognormal(&mut rng, rules.mean_pages, rules.pages_sigma, 1, rules.max_pages);
        let mut pages: Vec<Page> = (0..count)
            .map(|index| {
                let private = robots && index > 0 && rng.random_range(0..PRIVATE_ONE_IN) == 0;
                let bytes = lognormal(&mut rng, rules.mean_bytes, rules.bytes_sigma, 512, rules.max_bytes);
                let slow = index > 0 && rng.random_bool(rules.slow_share);
                Page {
                    path: path(index, private),
                    bytes,
                    thinking: if slow { Duration::from_millis(rules.slow_ms) } else { Duration::ZERO },
                    links: Vec::new(),
                    broken: rng.random_bool(rules.broken_share),
                    leaves: rng.random_range(0..20) == 0,
                }
            })
            .collect();
        for index in 1..count {
            let parent = rng.random_range(index.saturating_sub(PARENT_WINDOW)..index);
            pages[parent].links.push(index);
            for _ in 0..rng.random_range(0..=MAX_CROSS_LINKS) {
                let other = rng.random_range(0..count);
                pages[index].links.push(other);
            }
        }
        let mut site = Self { pages, robots };
        for index in 0..count {
            // A page must be large enough for its links.
            let least = site.head(index).len() + TAIL.len();
            site.pages[index].bytes = site.pages[index].bytes.max(least);
        }
        site
    }

    /// The text of robots.txt; `None` if the site has no robots.txt.
    pub fn robots(&self) -> Option<String> {
        self.robots.then(|| format!("User-agent: *\nDisallow: {DISALLOWED}\n"))
    }

    pub fn page(&self, path: &str) -> Option<(usize, &Page)> {
        self.pages.iter().enumerate().find(|(_, page)| page.path == path)
    }

    /// Number of pages, including pages that a crawler cannot reach.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Always false, because every site has a start page.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The body of a page, padded to the size of the page.
    pub fn body(&self, index: usize) -> String {
        let wanted = self.pages[index].bytes;
        let mut text = self.head(index);
        let mut word = index;
        while text.len() + TAIL.len() < wanted {
            word = word.wrapping_mul(31).wrapping_add(17) % WORDS.len();
            let room = wanted - TAIL.len() - text.len();
            text.push_str(&WORDS[word][..WORDS[word].len().min(room)]);
        }
        text.push_str(TAIL);
        text
    }

    /// The beginning of a body: the title and the links.
    fn head(&self, index: usize) -> String {
        let page = &self.pages[index];
        let mut text = format!(
            "<!doctype html>\n<html><head><meta charset=\"utf-8\"><title>Page {index} at {}</title></head>\n<body><h1>Page {index}</h1>\n<ul>\n",
            page.path
        );
        for link in &page.links {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "<li><a href=\"{}\">page {link}</a></li>", self.pages[*link].path);
        }
        if page.broken {
            let _ = writeln!(text, "<li><a href=\"{}\">gone</a></li>", missing(index));
        }
        if page.leaves {
            let _ = writeln!(text, "<li><a href=\"{ELSEWHERE}\">elsewhere</a></li>");
        }
        text.push_str("</ul>\n<p>");
        text
    }

    /// The requests of a crawl that honours robots.txt and follows at most `max_depth` links from
    /// the start page. The first request is for robots.txt. The other requests are for pages and
    /// broken links, in breadth-first order.
    pub fn requests(&self, max_depth: u32) -> Vec<SiteRequest> {
        let plain = |bytes| SiteRequest { bytes, thinking: Duration::ZERO };
        let mut requests = vec![plain(self.robots().map_or(NO_ROBOTS.len(), |text| text.len()))];
        requests.extend(self.crawl(max_depth).into_iter().map(|page| match page {
            Some(page) => SiteRequest { bytes: page.bytes, thinking: page.thinking },
            None => plain(NO_PAGE.len()),
        }));
        requests
    }

    /// The result of a crawl that honours robots.txt and follows at most `max_depth` links from the
    /// start page.
    pub fn expected_crawl(&self, max_depth: u32) -> ExpectedCrawl {
        let all = self.crawl(max_depth);
        let pages = || all.iter().flatten();
        ExpectedCrawl {
            pages: pages().map(|page| page.path.clone()).collect(),
            bytes: pages().map(|page| u64::try_from(page.bytes).unwrap_or(u64::MAX)).sum(),
            broken: all.iter().filter(|page| page.is_none()).count(),
        }
    }

    /// The pages that a polite crawler requests, in breadth-first order. `None` is a broken link.
    fn crawl(&self, max_depth: u32) -> Vec<Option<&Page>> {
        let mut seen = BTreeSet::from([0]);
        let mut queue = VecDeque::from([(Some(0_usize), 0_u32)]);
        let mut crawled = Vec::new();
        while let Some((index, depth)) = queue.pop_front() {
            let page = index.map(|index| &self.pages[index]);
            crawled.push(page);
            let Some(page) = page.filter(|_| depth < max_depth) else { continue };
            for &link in &page.links {
                let allowed = !(self.robots && self.pages[link].path.starts_with(DISALLOWED));
                if allowed && seen.insert(link) {
                    queue.push_back((Some(link), depth + 1));
                }
            }
            if page.broken {
                queue.push_back((None, depth + 1));
            }
        }
        crawled
    }
}

/// The body of the response if a site has no robots.txt.
pub const NO_ROBOTS: &str = "no robots.txt\n";
/// The body of the response if a page does not exist.
pub const NO_PAGE: &str = "no such page\n";
const TAIL: &str = "</p></body></html>\n";

const WORDS: [&str; 16] = [
    "water ",
    "river ",
    "bridge ",
    "evening ",
    "letters ",
    "garden ",
    "stone ",
    "northern ",
    "paper ",
    "window ",
    "market ",
    "silver ",
    "morning ",
    "road ",
    "harbour ",
    "winter ",
];

/// The path of a page. Each folder has eight pages.
fn path(index: usize, private: bool) -> String {
    match (index, private) {
        (0, _) => "/".to_owned(),
        (_, true) => format!("{DISALLOWED}page-{index}.html"),
        (_, false) => format!("/section-{}/page-{index}.html", index / 8),
    }
}

fn missing(index: usize) -> String {
    format!("/gone/from-{index}.html")
}

/// Draws from the standard normal distribution.
pub fn normal(rng: &mut ChaCha8Rng) -> f64 {
    // The Box–Muller transform. The logarithm is finite, because 1 - u is above 0.
    let (u, v): (f64, f64) = (rng.random_range(0.0..1.0), rng.random_range(0.0..1.0));
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Draws an integer from a lognormal distribution with mean `mean`, and clamps it to `least` and
/// `most`.
fn lognormal(rng: &mut ChaCha8Rng, mean: f64, sigma: f64, least: usize, most: usize) -> usize {
    let drawn = (mean.ln() - sigma * sigma / 2.0 + sigma * normal(rng)).exp();
    let whole = Duration::try_from_secs_f64(drawn / 1e6).map_or(u128::MAX, |scaled| scaled.as_micros());
    usize::try_from(whole).unwrap_or(usize::MAX).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hrefs(body: &str) -> Vec<String> {
        body.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
    }

    #[test]
    fn a_walk_over_the_bodies_finds_exactly_the_truth() {
        let mut robots = 0;
        for index in 0..60 {
            let site = SiteWeb::draw(&WebRules::default(), 5, index);
            robots += usize::from(site.robots().is_some());
            let mut depth_of = std::collections::BTreeMap::from([("/".to_owned(), 0_u32)]);
            let mut queue = VecDeque::from(["/".to_owned()]);
            let (mut pages, mut bytes, mut broken) = (BTreeSet::new(), 0, BTreeSet::new());
            while let Some(path) = queue.pop_front() {
                let Some((page, _)) = site.page(&path) else {
                    broken.insert(path);
                    continue;
                };
                let body = site.body(page);
                bytes += u64::try_from(body.len()).unwrap();
                let depth = depth_of[&path];
                pages.insert(path);
                for link in hrefs(&body) {
                    let disallowed = site.robots().is_some() && link.starts_with(DISALLOWED);
                    if depth < 8 && link.starts_with('/') && !disallowed && !depth_of.contains_key(&link) {
                        depth_of.insert(link.clone(), depth + 1);
                        queue.push_back(link);
                    }
                }
            }
            assert_eq!(site.expected_crawl(8), ExpectedCrawl { pages, bytes, broken: broken.len() }, "site {index}");
        }
        assert!((20..60).contains(&robots), "{robots} of 60 sites have a robots.txt");
    }

    #[test]
    fn bodies_have_the_stated_size_and_never_change() {
        let site = SiteWeb::draw(&WebRules::default(), 5, 3);
        for index in 0..site.len() {
            assert_eq!(site.body(index).len(), site.pages[index].bytes);
        }
        assert_eq!(site.body(0), SiteWeb::draw(&WebRules::default(), 5, 3).body(0));
        assert_ne!(site.body(0), SiteWeb::draw(&WebRules::default(), 5, 4).body(0));
    }

    #[test]
    fn sizes_have_the_stated_means() {
        let rules = WebRules::default();
        let sites: Vec<SiteWeb> = (0..400).map(|index| SiteWeb::draw(&rules, 9, index)).collect();
        let pages: usize = sites.iter().map(SiteWeb::len).sum();
        let bytes: usize = sites.iter().flat_map(|site| &site.pages).map(|page| page.bytes).sum();
        assert!((400 * 21..400 * 28).contains(&pages), "{pages} pages on 400 sites");
        assert!((11_000..13_500).contains(&(bytes / pages)), "{} bytes a page", bytes / pages);
        assert!(sites.iter().all(|site| site.len() <= rules.max_pages));
    }

    #[test]
    fn a_crawl_requests_robots_txt_allowed_pages_and_broken_links_once() {
        for index in 0..40 {
            let site = SiteWeb::draw(&WebRules::default(), 5, index);
            let (asked, expected_crawl) = (site.requests(8), site.expected_crawl(8));
            assert_eq!(asked.len(), 1 + expected_crawl.pages.len() + expected_crawl.broken, "site {index}");
            let robots = site.robots().map_or(NO_ROBOTS.len(), |text| text.len());
            let bytes: usize = asked.iter().map(|asked| asked.bytes).sum();
            let extra = robots + expected_crawl.broken * NO_PAGE.len();
            assert_eq!(bytes, usize::try_from(expected_crawl.bytes).unwrap() + extra);
            assert_eq!((asked[0].bytes, asked[1].bytes), (robots, site.pages[0].bytes));
        }
    }

    #[test]
    fn a_shallow_crawl_reaches_less() {
        let deep =
            (0..20).map(|index| SiteWeb::draw(&WebRules::default(), 5, index)).find(|site| site.len() > 30).unwrap();
        assert_eq!(deep.expected_crawl(0).pages.len(), 1);
        assert!(deep.expected_crawl(1).pages.len() < deep.expected_crawl(8).pages.len());
    }
}
