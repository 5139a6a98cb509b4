//! The rules of a site's robots.txt that apply to a crawl: parses the file once for any product
//! token, and caches it for a day, so that other crawls and resumed crawls need not fetch it again.
//! A crawl that lasts longer than a day fetches it again.
//!
//! The total memory for files is limited, even if many sites send files of the maximum size. Small
//! files are cached, up to a total of [`MAX_CACHED_BYTES`]. A large file is kept only while its
//! crawl runs, and the crawl must first get a permit from a budget of [`LARGE_BYTES`].
//!
//! A parsed file stores the values of all lines with known keys as one text, plus eight bytes per
//! line. The text takes at most three times the size of the file, because each byte of a pattern
//! may become an escape of three bytes. Common misspellings of keys are accepted.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::path_filter::{matches, path_spelling, pattern_spelling};
use super::robots_fetch::{RulesError, fetch};
use crate::crawl::fetch::Fetcher;
use crate::crawl::html::site_urls::{Site, SitePath};
use crate::net::age_ordered_map::AgeOrderedMap;
use crate::net::origin::Origin;
use crate::net::user_agent::UserAgent;

/// The rules that apply to a crawl with a certain product token.
pub(in crate::crawl) struct RobotsRules {
    file: Arc<RobotsFile>,
    groups: Vec<LineRange>,
    /// The time at which the rules expire and must be fetched again.
    stale_at: Instant,
    /// The memory permit, which only a large file needs.
    _room: Option<OwnedSemaphorePermit>,
}

impl RobotsRules {
    /// Rules that allow everything.
    pub(in crate::crawl) fn none() -> Self {
        Self::of(Arc::default(), "", Instant::now(), None)
    }

    /// The rules for a crawler with product token `token`. The rules come from a file that was
    /// requested at `at`.
    fn of(file: Arc<RobotsFile>, token: &str, at: Instant, room: Option<OwnedSemaphorePermit>) -> Self {
        let groups = file.groups_for(token);
        Self { file, groups, stale_at: at + FRESH, _room: room }
    }

    #[cfg(test)]
    pub(in crate::crawl) fn parse(text: &[u8], token: &str) -> Self {
        Self::of(Arc::new(RobotsFile::parse(text)), token, Instant::now(), None)
    }

    pub(in crate::crawl) fn are_stale(&self) -> bool {
        Instant::now() >= self.stale_at
    }

    pub(in crate::crawl) fn allow(&self, path: &SitePath) -> bool {
        self.file.allow(&self.groups, path)
    }

    pub(in crate::crawl) fn sitemaps(&self) -> impl Iterator<Item = &str> {
        self.file.sitemaps()
    }

    pub(in crate::crawl) fn crawl_delay(&self) -> Option<Duration> {
        let seconds = self.file.delay(&self.groups)?;
        // An infinite value, or a value beyond the clock's range, becomes the maximum.
        Some(Duration::try_from_secs_f32(seconds).unwrap_or(Duration::MAX))
    }
}

/// The rules of a site. Fetches the site's robots.txt, unless the cache has one that is less than a
/// day old.
pub(in crate::crawl) async fn rules_of(
    fetcher: &mut Fetcher,
    site: &Site,
    cache: &RobotsCache,
) -> Result<RobotsRules, RulesError> {
    let (at, file) = match cache.get(site.origin(), Instant::now()) {
        Some(known) => known,
        None => {
            let text = fetch(fetcher, site).await?;
            let (at, file) = (Instant::now(), text.map(|text| Arc::new(RobotsFile::parse(&text))));
            cache.put(site.origin().clone(), at, file.clone());
            (at, file)
        }
    };
    let file = file.unwrap_or_default();
    let room = cache.room_for(&file).await;
    Ok(RobotsRules::of(file, fetcher.token(), at, room))
}

/// Maximum time that a robots.txt may be used after it was requested (RFC 9309, 2.4).
const FRESH: Duration = Duration::from_secs(24 * 3600);
/// Maximum bytes of all cached files together.
const MAX_CACHED_BYTES: usize = 8 << 20;
/// Approximate size in bytes of an entry without its rules. This size is added to the size of each
/// file, so the number of entries is limited even if all files are empty.
const ENTRY_BYTES: usize = 256;
/// A file above this size counts as large. Fewer than one file in a thousand is large. If two
/// thousand crawls each use a file that is not large, these files take at most 128 MiB.
const SMALL_BYTES: usize = 64 << 10;
/// Maximum total bytes of the large files in use.
const LARGE_BYTES: usize = 32 << 20;
/// Number of bytes per permit for large files.
const UNIT: usize = 1 << 10;

/// The parsed robots.txt of recently crawled sites. All crawls of an agent share this cache.
#[derive(Debug)]
pub struct RobotsCache {
    /// This lock is never held across an await.
    kept: Mutex<CacheState>,
    large: Arc<Semaphore>,
}

impl Default for RobotsCache {
    fn default() -> Self {
        Self { kept: Mutex::default(), large: Arc::new(Semaphore::new(LARGE_BYTES / UNIT)) }
    }
}

#[derive(Debug, Default)]
struct CacheState {
    entries: AgeOrderedMap<Origin, Instant, Option<Arc<RobotsFile>>>,
    bytes: usize,
}

fn bytes(entry: &Option<Arc<RobotsFile>>) -> usize {
    ENTRY_BYTES + entry.as_ref().map_or(0, |file| file.bytes())
}

impl RobotsCache {
    /// The cache's entry for a site, if it is fresh: the time at which robots.txt was requested,
    /// and the file. The file is `None` if the site has no robots.txt.
    fn get(&self, origin: &Origin, now: Instant) -> Option<(Instant, Option<Arc<RobotsFile>>)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, file) = kept.entries.get(origin)?;
        (now.saturating_duration_since(at) < FRESH).then(|| (at, file.clone()))
    }

    /// Caches a file unless it is large. If there is too little room, evicts the files that were
    /// requested longest ago.
    pub(in crate::crawl) fn put(&self, origin: Origin, at: Instant, file: Option<Arc<RobotsFile>>) {
        if file.as_ref().is_some_and(|file| is_large(file)) {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += bytes(&file);
        if let Some(former) = kept.entries.insert(origin, at, file) {
            kept.bytes -= bytes(&former);
        }
        while kept.bytes > MAX_CACHED_BYTES
            && let Some((_, oldest)) = kept.entries.pop_oldest()
        {
            kept.bytes -= bytes(&oldest);
        }
    }

    /// Waits for the memory permit for a large file. Returns `None` for a small file, which needs
    /// no permit.
    async fn room_for(&self, file: &RobotsFile) -> Option<OwnedSemaphorePermit> {
        if !is_large(file) {
            return None;
        }
        let units = u32::try_from((file.bytes() / UNIT).min(LARGE_BYTES / UNIT)).unwrap_or(u32::MAX);
        // Never an error, because the semaphore is never closed.
        Arc::clone(&self.large).acquire_many_owned(units).await.ok()
    }
}

fn is_large(file: &RobotsFile) -> bool {
    file.bytes() > SMALL_BYTES
}

/// The accepted spellings of keys, and their meanings.
const KEYS: [(&str, Key); 16] = [
    ("user-agent", Key::Agent),
    ("user agent", Key::Agent),
    ("useragent", Key::Agent),
    ("allow", Key::Allow),
    ("disallow", Key::Disallow),
    ("dissallow", Key::Disallow),
    ("dissalow", Key::Disallow),
    ("disalow", Key::Disallow),
    ("diasllow", Key::Disallow),
    ("disallaw", Key::Disallow),
    ("sitemap", Key::Sitemap),
    ("site-map", Key::Sitemap),
    ("site map", Key::Sitemap),
    ("crawl-delay", Key::Delay),
    ("crawl delay", Key::Delay),
    ("crawldelay", Key::Delay),
];
/// The name of the group of rules for crawlers that no other group names.
const ANYBODY: &str = "*";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Agent,
    Allow,
    Disallow,
    Delay,
    Sitemap,
}

#[derive(Debug, Clone, Copy)]
struct Line {
    key: Key,
    /// The end of the line's value in the text. The value begins at the end of the previous line's
    /// value.
    end: u32,
}

/// A range of line numbers.
type LineRange = Range<usize>;

#[derive(Debug, Default)]
pub(in crate::crawl) struct RobotsFile {
    text: String,
    lines: Vec<Line>,
}

impl RobotsFile {
    /// Parses the file, and ignores lines with unknown keys or invalid values.
    pub(in crate::crawl) fn parse(text: &[u8]) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut file = Self::default();
        for line in text.split(|byte| matches!(byte, b'\n' | b'\r' | 0)) {
            let Some((key, value)) = field(line) else { continue };
            let Some(value) = value_of(key, value) else { continue };
            let Ok(end) = u32::try_from(file.text.len() + value.len()) else { break };
            file.text.push_str(&value);
            file.lines.push(Line { key, end });
        }
        file.text.shrink_to_fit();
        file.lines.shrink_to_fit();
        file
    }

    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.lines.len() * size_of::<Line>()
    }

    /// The groups of rules that apply to a crawler: the groups that name its product token, or else
    /// the groups for the default name, landfall-agent, or else the groups for all crawlers. In a
    /// file that names no crawler, all rules apply.
    fn groups_for(&self, token: &str) -> Vec<LineRange> {
        if !self.lines.iter().any(|line| line.key == Key::Agent) {
            let all = 0..self.lines.len();
            return vec![all];
        }
        let named = [token, UserAgent::PRODUCT, ANYBODY].into_iter().map(|name| self.groups_of(name));
        named.into_iter().find(|groups| !groups.is_empty()).unwrap_or_default()
    }

    fn groups_of(&self, name: &str) -> Vec<LineRange> {
        let (mut groups, mut is_ours, mut is_head) = (Vec::new(), false, false);
        for (number, key, value) in self.values(0..self.lines.len()) {
            match key {
                Key::Agent => {
                    is_ours = value.eq_ignore_ascii_case(name) || is_head && is_ours;
                    is_head = true;
                    if is_ours {
                        // A group without rules still counts as a group, so begin it here.
                        groups.push(number..number);
                    }
                }
                Key::Sitemap => {}
                Key::Allow | Key::Disallow | Key::Delay => {
                    is_head = false;
                    if is_ours && let Some(group) = groups.last_mut() {
                        group.end = number + 1;
                    }
                }
            }
        }
        groups
    }

    /// Whether these groups allow a path. The longest matching pattern decides. If an allowing and
    /// a forbidding pattern have the same length, the allowing pattern decides.
    pub(super) fn allow(&self, groups: &[LineRange], path: &SitePath) -> bool {
        if path.as_str() == "/robots.txt" {
            return true;
        }
        let path = path_spelling(path.as_str());
        let (mut longest, mut allows) = (0, true);
        for (_, key, pattern) in groups.iter().flat_map(|group| self.values(group.clone())) {
            let says = match key {
                Key::Allow => true,
                Key::Disallow => false,
                Key::Agent | Key::Delay | Key::Sitemap => continue,
            };
            let decides = pattern.len() > longest || pattern.len() == longest && says;
            if decides && matches(pattern, &path) {
                (longest, allows) = (pattern.len(), says);
            }
        }
        allows
    }

    /// The crawl-delay of these groups in seconds. If the groups set no crawl-delay, a crawl-delay
    /// written before the first group applies.
    pub(super) fn delay(&self, groups: &[LineRange]) -> Option<f32> {
        let all = 0..self.lines.len();
        let before = self.values(all).take_while(|(_, key, _)| *key != Key::Agent);
        let delays = groups.iter().flat_map(|group| self.values(group.clone())).chain(before);
        delays.filter(|(_, key, _)| *key == Key::Delay).find_map(|(_, _, value)| value.parse().ok())
    }

    pub(super) fn sitemaps(&self) -> impl Iterator<Item = &str> {
        self.values(0..self.lines.len()).filter(|(_, key, _)| *key == Key::Sitemap).map(|(_, _, value)| value)
    }

    /// The numbers, keys and values of these lines.
    fn values(&self, lines: LineRange) -> impl Iterator<Item = (usize, Key, &str)> {
        let end_of = |number: usize| self.lines.get(number).map_or(0, |line| usize::try_from(line.end).unwrap_or(0));
        let mut start = lines.start.checked_sub(1).map_or(0, end_of);
        lines.filter_map(move |number| {
            let key = self.lines.get(number)?.key;
            let value = self.text.get(start..end_of(number))?;
            start = end_of(number);
            Some((number, key, value))
        })
    }
}

/// The key of a line and the text after the separator, which is a colon or only blanks.
fn field(line: &[u8]) -> Option<(Key, &[u8])> {
    let line = line.trim_ascii();
    let (key, rest) = KEYS.into_iter().find_map(|(name, key)| {
        let (written, rest) = line.split_at_checked(name.len())?;
        written.eq_ignore_ascii_case(name.as_bytes()).then_some((key, rest))
    })?;
    let value = rest.trim_ascii_start();
    let value = value.strip_prefix(b":").or_else(|| (value.len() < rest.len()).then_some(value))?;
    let value = value.split(|byte| *byte == b'#').next().unwrap_or_default();
    Some((key, value.trim_ascii()))
}

/// Converts a value to the form used for comparison; `None` if the value is invalid.
fn value_of(key: Key, value: &[u8]) -> Option<String> {
    let text = || str::from_utf8(value).ok();
    match key {
        Key::Agent => Some(name_in(value)),
        // Empty patterns are kept: they have no effect on any path, but they end the list of
        // product tokens at the head of a group.
        Key::Allow | Key::Disallow => Some(pattern_spelling(value)),
        Key::Delay => text().filter(|text| text.parse::<f32>().is_ok_and(|seconds| seconds >= 0.0)).map(str::to_owned),
        Key::Sitemap => text().map(str::to_owned),
    }
}

/// The product token that a group names, without a version or other text after it (RFC 9309,
/// 2.2.1).
fn name_in(value: &[u8]) -> String {
    if value.strip_prefix(b"*").is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace)) {
        return ANYBODY.to_owned();
    }
    let letters = value.iter().take_while(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_'));
    letters.map(|byte| char::from(byte.to_ascii_lowercase())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crawl::html::site_urls::tests::path_of;
    use crate::crawl::politeness::robots_fetch::MAX_BYTES;

    fn allows(robots: &str, path: &str) -> bool {
        allows_by(robots, UserAgent::PRODUCT, path)
    }

    fn allows_by(robots: &str, token: &str, path: &str) -> bool {
        RobotsRules::parse(robots.as_bytes(), token).allow(&path_of(path))
    }

    #[test]
    fn our_own_group_precedes_the_wildcard_group() {
        let robots =
            "User-agent: *\nDisallow: /\n\nUser-agent: Landfall-Agent\nDisallow: /private\nAllow: /private/open\n";
        assert!(allows(robots, "/"));
        assert!(!allows(robots, "/private/x"));
        assert!(allows(robots, "/private/open"));
        assert!(!allows("User-agent: *\nDisallow: /\n", "/x"));
        assert!(!allows("User-agent: *\nDisallow: /*?print=1$\n", "/x?print=1"));
        assert!(allows("User-agent: other\nDisallow: /\n", "/x"));
    }

    #[test]
    fn any_crawl_delay_is_a_duration_or_none() {
        let delay = |text: &str| {
            let text = format!("User-agent: *\nCrawl-delay: {text}\n");
            RobotsRules::parse(text.as_bytes(), UserAgent::PRODUCT).crawl_delay()
        };
        assert_eq!(delay("2.5"), Some(Duration::from_millis(2500)));
        assert_eq!(delay("1e30"), Some(Duration::MAX));
        assert_eq!(delay("inf"), Some(Duration::MAX));
        assert_eq!(delay("-1"), None);
        assert_eq!(delay("nan"), None);
        assert_eq!(delay("soon"), None);
    }

    #[test]
    fn patterns_with_an_end_take_no_more_memory_than_the_text() {
        for end in ["\n", "\r\n", "\r", "\0"] {
            let text = format!("User-agent: *{end}") + &format!("Disallow: /*.x${end}").repeat(25_000);
            let file = RobotsFile::parse(text.as_bytes());
            assert!(file.bytes() <= text.len(), "{} of {}", file.bytes(), text.len());
            assert!(!allows(&text, "/y.x") && allows(&text, "/y.x/"), "{end:?}");
        }
    }

    #[test]
    fn the_largest_file_takes_at_most_three_times_its_length() {
        let rule = "Disallow: /*\u{e9}*\u{e9}$\n";
        let text = format!("User-agent: *\n{}", rule.repeat(MAX_BYTES / rule.len()));
        assert!(RobotsFile::parse(text.as_bytes()).bytes() <= 3 * text.len());
        assert!(allows(&text, &format!("/{}", "x".repeat(2000))));
    }

    #[test]
    fn an_empty_rule_has_no_effect_and_a_group_may_have_no_rules() {
        assert!(!allows("User-agent: *\nDisallow:\nDisallow: /\n", "/x"));
        assert!(allows("User-agent: *\nDisallow: /\n\nUser-agent: landfall-agent\nDisallow:\n", "/x"));
        assert!(!allows("Disallow: /x\n", "/x"), "without groups all rules are for anybody");
        assert!(allows("Disallow: /x\nUser-agent: *\nDisallow: /y\n", "/x"));
        assert!(!allows("User-agent: landfall-agent\nSitemap: http://a.cn/\nUser-agent: b\nDisallow: /x\n", "/x"));
        assert!(allows("User-agent: landfall-agent\nCrawl-delay: 1\nUser-agent: b\nDisallow: /x\n", "/x"));
    }

    #[test]
    fn our_token_matches_with_any_suffix_and_no_longer_token_does() {
        let group = |agent: &str| format!("User-agent: *\nDisallow:\n\nUser-Agent : {agent}\nDisallow: /x\n");
        for agent in
            ["landfall-agent", "Landfall-Agent/0.1", "landfall-agent/0.1 (+https://a.cn/)", "landfall-agent # x"]
        {
            assert!(!allows(&group(agent), "/x"), "{agent}");
        }
        for agent in ["landfall", "landfall-agents", "landfall-agent-news/1", "other landfall-agent"] {
            assert!(allows(&group(agent), "/x"), "{agent}");
        }
        assert!(!allows("\u{feff}User-agent: landfall-agent/2\nDisallow: /x\n", "/x"));
    }

    #[test]
    fn the_crawls_product_name_precedes_the_softwares_and_then_the_wildcard() {
        let group = |agent: &str, path: &str| format!("User-agent: {agent}\nDisallow: {path}\n\n");
        let robots =
            [group("*", "/all"), group("landfall-agent/9", "/software"), group("StudyBot/1", "/study")].concat();
        for (token, forbidden) in
            [("studybot", "/study"), ("Study", "/software"), ("landfall-agent", "/software"), ("other", "/software")]
        {
            for path in ["/all", "/software", "/study"] {
                assert_eq!(allows_by(&robots, token, path), path != forbidden, "{token} at {path}");
            }
        }
        assert!(!allows_by(&group("*", "/"), "StudyBot", "/x"));
        assert!(!allows_by(&group("landfall-agent", "/"), "StudyBot", "/x"), "by another name it is kept out as well");
        assert!(allows_by(&group("StudyBot", "/"), "landfall-agent", "/x"));
    }

    fn origin(number: usize) -> Origin {
        format!("http://s{number}.cn").parse().unwrap()
    }

    fn file(bytes: usize) -> Option<Arc<RobotsFile>> {
        let rule = format!("Disallow: /{}\n", "x".repeat(91));
        Some(Arc::new(RobotsFile::parse(rule.repeat(bytes / 100).as_bytes())))
    }

    #[test]
    fn it_forgets_after_a_day() {
        let (cache, now) = (RobotsCache::default(), Instant::now());
        cache.put(origin(1), now, file(100));
        cache.put(origin(2), now, None);
        let just = now + FRESH - Duration::from_secs(1);
        let known = |number, at| cache.get(&origin(number), at).map(|(at, file)| (at, file.map(|file| file.bytes())));
        assert_eq!(known(1, just), Some((now, Some(100))));
        assert_eq!(known(2, just), Some((now, None)));
        assert_eq!(known(1, now + FRESH), None);
        assert_eq!(known(3, now), None);
    }

    #[test]
    fn it_is_bounded_and_keeps_the_newest() {
        let (cache, now) = (RobotsCache::default(), Instant::now());
        let small = file(60_000);
        for number in 0..400 {
            let at = now + Duration::from_secs(u64::try_from(number).unwrap());
            cache.put(origin(number), at, small.clone());
            cache.put(origin(number), at, small.clone());
        }
        cache.put(origin(999), now, file(SMALL_BYTES + 100));
        let kept = cache.kept.lock().unwrap();
        assert!(
            kept.bytes <= MAX_CACHED_BYTES && kept.entries.len() == 139,
            "{} of {} bytes",
            kept.entries.len(),
            kept.bytes
        );
        let entry = |number| kept.entries.get(&origin(number)).is_some();
        assert!(entry(399) && !entry(0) && !entry(999));
    }

    #[tokio::test]
    async fn large_files_wait_for_memory_and_small_ones_do_not() {
        let cache = RobotsCache::default();
        let most = RobotsFile::parse("Disallow: /\u{7f}\n".repeat(42_000).as_bytes());
        let mut rooms = Vec::new();
        while rooms.len() * most.bytes() + most.bytes() <= LARGE_BYTES {
            rooms.push(cache.room_for(&most).await.unwrap());
        }
        assert!(rooms.len() > 30, "{}", rooms.len());
        assert!(cache.room_for(&file(60_000).unwrap()).await.is_none());
        let mut waiting = std::pin::pin!(cache.room_for(&most));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        rooms.pop();
        assert!(futures_util::poll!(&mut waiting).is_ready());
    }
}
