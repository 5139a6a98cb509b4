//! Decides from the policy's path patterns which links a crawl may follow. The patterns use the
//! syntax of robots.txt.
//!
//! This module is pure. `pattern` defines the meaning of the patterns.

use super::pattern::{matches, path_spelling, pattern_spelling};
use crate::crawl::html::site_path::SitePath;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crawl::html::site::tests::path_of as path;

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
}
