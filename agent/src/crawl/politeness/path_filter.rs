//! Decides from the policy's path patterns which links a crawl may follow, and whether a pattern
//! matches a path. Patterns are as in robots.txt (RFC 9309, 2.2.3): they match a prefix of the
//! path, `*` matches any text, and a final `$` matches the end of the path.
//!
//! This module is pure.
//!
//! Pattern and path are first converted to the same spelling, so that they can be compared
//! literally. A `$` or `*` in a path is escaped, as is a `$` inside a pattern; `%24` and `%2A` in a
//! pattern stay escaped. The pieces between the `*` of a pattern are matched one after another,
//! each at the first position where it matches. The first position leaves the most text for the
//! later pieces, so no match is missed. Matching takes time linear in the lengths of the path and
//! the pattern.

use std::borrow::Cow;

use crate::crawl::html::site_urls::{SitePath, normal_escapes};

/// Maximum number of patterns in a list. The number is limited because every link is matched
/// against every pattern.
const MAX_PATTERNS: usize = 50;
const MAX_PATTERN_BYTES: usize = 200;

/// The links to follow. If `include` is not empty, a link must match one of its patterns. A link
/// that matches a pattern of `exclude` is not followed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathFilter {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern(String);

impl PathFilter {
    pub const ALL: Self = Self { include: Vec::new(), exclude: Vec::new() };

    /// Follows only links that match one of these patterns; all links if there are no patterns.
    pub fn include<T: AsRef<str>>(&mut self, patterns: &[T]) -> Result<(), String> {
        self.include = all(patterns)?;
        Ok(())
    }

    /// Follows no link that matches one of these patterns.
    pub fn exclude<T: AsRef<str>>(&mut self, patterns: &[T]) -> Result<(), String> {
        self.exclude = all(patterns)?;
        Ok(())
    }

    pub(in crate::crawl) fn included(&self) -> impl Iterator<Item = &str> {
        self.include.iter().map(|pattern| pattern.0.as_str())
    }

    pub(in crate::crawl) fn excluded(&self) -> impl Iterator<Item = &str> {
        self.exclude.iter().map(|pattern| pattern.0.as_str())
    }

    pub(in crate::crawl) fn allow(&self, path: &SitePath) -> bool {
        let path = path_spelling(path.as_str());
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| matches(&pattern.0, &path));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }
}

fn all<T: AsRef<str>>(patterns: &[T]) -> Result<Vec<Pattern>, String> {
    if patterns.len() > MAX_PATTERNS {
        return Err(format!("{} patterns are more than {MAX_PATTERNS}", patterns.len()));
    }
    patterns.iter().map(|text| Pattern::parse(text.as_ref())).collect()
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_PATTERN_BYTES {
            return Err(format!("a pattern of {} bytes is longer than {MAX_PATTERN_BYTES}", text.len()));
        }
        if !text.starts_with(['/', '*']) {
            return Err(format!("the pattern {text:?} does not begin with '/' or '*'"));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("the pattern {text:?} holds a character that a URL writes as an escape, like %20"));
        }
        Ok(Self(pattern_spelling(text.as_bytes())))
    }
}

/// Converts a pattern's bytes, as written, to the spelling used for matching.
pub(super) fn pattern_spelling(written: &[u8]) -> String {
    let (text, end) = written.strip_suffix(b"$").map_or((written, ""), |text| (text, "$"));
    normal_escapes(&escaped(text, |byte| byte == b'*' || stands_for_itself(byte))) + end
}

/// Converts a path and query, whose escapes are in normal form, to the spelling used for matching.
pub(super) fn path_spelling(path: &str) -> Cow<'_, str> {
    if path.bytes().all(stands_for_itself) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(escaped(path.as_bytes(), stands_for_itself))
}

/// Whether a pattern matches a path. Both must be in the spelling used for matching.
pub(in crate::crawl) fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, to_end) = pattern.strip_suffix('$').map_or((pattern, false), |pattern| (pattern, true));
    let Some((first, others)) = pattern.split_once('*') else {
        return if to_end { path == pattern } else { path.starts_with(pattern) };
    };
    let Some(mut rest) = path.strip_prefix(first) else { return false };
    let (between, last) = others.rsplit_once('*').map_or((None, others), |(between, last)| (Some(between), last));
    for piece in between.into_iter().flat_map(|between| between.split('*')) {
        let Some(at) = rest.find(piece) else { return false };
        rest = rest.get(at + piece.len()..).unwrap_or_default();
    }
    if to_end { rest.ends_with(last) } else { rest.contains(last) }
}

/// Whether a byte is written without an escape. All other bytes are escaped, because some URLs
/// escape them and others do not.
const fn stands_for_itself(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'/' | b'%' | b'?' | b'&' | b'=' | b'-' | b'.' | b'_' | b'~' | b'+' | b';' | b':')
        || matches!(byte, b'@' | b',' | b'!' | b'(' | b')' | b'[' | b']' | b'#')
}

fn escaped(bytes: &[u8], stays: impl Fn(u8) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if stays(*byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::crawl::html::site_urls::tests::{path_of, path_of as path};

    #[test]
    fn a_link_is_followed_if_it_is_included_and_not_excluded() {
        let mut paths = PathFilter::ALL;
        assert!(paths.allow(&path("/x")));
        paths.exclude(&["/en/private", "/*.pdf$"]).unwrap();
        assert!(paths.allow(&path("/x")) && !paths.allow(&path("/x.pdf")));
        paths.include(&["/en/", "/de/"]).unwrap();
        assert!(paths.allow(&path("/de/x")) && paths.allow(&path("/en/x")));
        assert!(!paths.allow(&path("/x")) && !paths.allow(&path("/en/private/x")));
    }

    #[test]
    fn an_invalid_pattern_is_refused() {
        let mut paths = PathFilter::ALL;
        let long = format!("/{}", "x".repeat(MAX_PATTERN_BYTES));
        for wrong in ["", "fish", "http://a.cn/", "/a b", "/a\n", "/\u{e9}", &long] {
            assert!(paths.include(&[wrong]).is_err() && paths.exclude(&[wrong]).is_err(), "{wrong}");
        }
        assert!(paths.include(&["/"; MAX_PATTERNS + 1]).is_err());
        assert!(paths.include(&["/"; MAX_PATTERNS]).is_ok());
        assert_eq!(PathFilter::ALL, PathFilter { include: Vec::new(), ..paths });
    }

    fn holds(pattern: &str, path: &str) -> bool {
        matches(&pattern_spelling(pattern.as_bytes()), &path_spelling(path_of(path).as_str()))
    }

    #[test]
    fn a_dollar_and_an_asterisk_are_special_only_as_in_the_rfc() {
        for (pattern, path) in [
            ("/x$/abc", "/x$/abc"),
            ("/x$/abc", "/x%24/abcd"),
            ("/x/abc%24", "/x/abc$"),
            ("/x/abc%24", "/x/abc%24/y"),
            ("/x%2Ax/abc", "/x*x/abc"),
            ("/x%2ax/abc", "/x%2Ax/abc"),
            ("/x*$$", "/x/y$"),
            ("/a$", "/a"),
            ("/*$x*y", "/b$x/y"),
            ("*/print", "/x/print"),
            ("/a*b*c$", "/abbcc"),
            ("/a**b", "/ab"),
            ("/%7Eme/%e4", "/~me/%E4"),
            ("/*?page=", "/list?page=2"),
        ] {
            assert!(holds(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("/x$/abc", "/x"),
            ("/x$/abc", "/x/abc"),
            ("/x/abc%24", "/x/abc"),
            ("/x/abc%24", "/x/abcd"),
            ("/x%2Ax/abc", "/xyx/abc"),
            ("/x%2Ax/abc", "/xx/abc"),
            ("/a*b*c$", "/acb"),
            ("/a$", "/a$"),
            ("/a$$", "/a"),
            ("/x*$$", "/x/y"),
            ("/a*a$", "/a"),
            ("/ab*ba", "/aba"),
        ] {
            assert!(!holds(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn escaped_and_plain_spellings_match() {
        for (pattern, path) in [
            ("/a{b}", "/a{b}"),
            ("/a%7Bb}", "/a{b%7d"),
            ("/a?q='x'", "/a?q='x'"),
            ("/a'b", "/a'b"),
            ("/a?q=`|^", "/a?q=`|^"),
            ("/\u{e9}", "/%c3%a9"),
            ("/a b", "/a%20b"),
        ] {
            assert!(holds(pattern, path), "{pattern} {path}");
        }
        // Pattern and path may be encoded in GBK, as on sites older than UTF-8.
        assert!(matches(&pattern_spelling(b"/\xd6\xd0"), "/%D6%D0/x"));
    }

    #[test]
    fn a_pattern_of_many_asterisks_matches_in_bounded_time() {
        let text = format!("/{}", "a".repeat(2000));
        let pattern = format!("/{}b", "*a".repeat(99));
        let begin = std::time::Instant::now();
        assert!((0..100).all(|_| !matches(&pattern, &text)));
        assert!(begin.elapsed() < std::time::Duration::from_secs(1), "{:?}", begin.elapsed());
    }

    /// A slow reference implementation that tries all possible matches.
    fn matches_slowly(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => true,
            Some((b'$', [])) => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|at| matches_slowly(rest, &text[at..])),
            Some((byte, rest)) => text.first() == Some(byte) && matches_slowly(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn matching_at_the_first_fit_equals_trying_all(pattern in "/[ab*]{0,8}[$]?", text in "/[ab]{0,10}") {
            prop_assert_eq!(matches(&pattern, &text), matches_slowly(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn a_spelling_is_stable(written in "/[a%2A4$*~ \u{e9}]{0,20}") {
            let once = pattern_spelling(written.as_bytes());
            prop_assert_eq!(pattern_spelling(once.as_bytes()), once);
        }
    }
}
