//! Parses a robots.txt file once, so that it can be used for any product token. Parses the
//! directives that a page sets for itself, in the `X-Robots-Tag` header and in `meta name=robots`
//! elements.
//!
//! This module is pure. A parsed file stores the values of all lines with known keys as one text,
//! plus eight bytes per line. The text takes at most three times the size of the file, because each
//! byte of a pattern may become an escape of three bytes. Common misspellings of keys are accepted.
//!
//! Commas separate directives. In the header, a list may start with a crawler's product token, and
//! then applies only to that crawler. Lists for other crawlers are ignored. Directives for the
//! default name, landfall-agent, always count, even if the crawler has another name. Only
//! `nofollow`, which `none` includes, matters to this crawler.

use std::ops::Range;

use super::path_patterns::{matches, path_spelling, pattern_spelling};
use crate::crawl::html::site_urls::SitePath;
use crate::net::user_agent::UserAgent;

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
pub(super) type LineRange = Range<usize>;

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
    pub(super) fn groups_for(&self, token: &str) -> Vec<LineRange> {
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

/// Directives that have a value after a colon. The check for product tokens must not mistake the
/// names of these directives for product tokens.
const WITH_VALUE: [&str; 4] = ["unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"];

/// Whether a list of directives forbids following a page's links.
pub(in crate::crawl) fn forbids_following(list: &str) -> bool {
    list.split(',').any(|directive| {
        let directive = directive.trim();
        ["nofollow", "none"].iter().any(|no| directive.eq_ignore_ascii_case(no))
    })
}

/// Whether a value of `X-Robots-Tag` forbids the crawler with the product token `ours` to follow a
/// page's links.
pub(in crate::crawl) fn header_forbids_following<'a>(values: impl IntoIterator<Item = &'a str>, ours: &str) -> bool {
    values.into_iter().any(|value| match value.split_once(':') {
        Some((token, list)) if !token.contains(',') && !is_any(token, &WITH_VALUE) => {
            is_any(token, &[ours, UserAgent::PRODUCT, "*"]) && forbids_following(list)
        }
        _ => forbids_following(value),
    })
}

/// Whether a `meta` element with this name applies to the crawler with the product token `ours`.
pub(in crate::crawl) fn is_for_us(name: &str, ours: &str) -> bool {
    is_any(name, &["robots", ours, UserAgent::PRODUCT])
}

fn is_any(text: &str, known: &[&str]) -> bool {
    known.iter().any(|known| text.trim().eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nofollow_and_none_count_for_all_crawlers_and_for_this_one() {
        for values in [
            &["nofollow"][..],
            &["noindex, NoFollow"],
            &["noindex", "none"],
            &["landfall-agent: nofollow"],
            &["Landfall-Agent : noindex, none"],
            &["unavailable_after: 25 Jun 2030 15:00:00 PST, nofollow"],
            &["max-snippet: 5, nofollow"],
            &["*: nofollow"],
            &["studybot: nofollow"],
        ] {
            assert!(header_forbids_following(values.iter().copied(), "StudyBot"), "{values:?}");
        }
        for values in
            [&[][..], &["noindex"], &["googlebot: nofollow"], &["otherbot: noindex, none"], &["nofollows"], &[":"]]
        {
            assert!(!header_forbids_following(values.iter().copied(), "StudyBot"), "{values:?}");
        }
        for (name, ours) in [("robots", true), ("StudyBot", true), ("landfall-agent", true), ("study", false)] {
            assert_eq!(is_for_us(name, "studybot"), ours, "{name}");
        }
    }
}
