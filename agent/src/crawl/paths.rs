//! Which links a policy lets a crawl follow: patterns of paths, as in robots.txt.
//!
//! Pure. A pattern is what a path and query begins with; `*` stands for anything, `$` at the end for the end. It is matched piece by
//! piece, each at the first place it fits: that is enough where only `*` is wild, and takes time by the length of the path alone,
//! whatever the pattern.

use super::normal_form::normal_escapes;
use super::site_path::SitePath;

/// The most patterns of a list: each is held against each link.
const MAX_PATTERNS: usize = 50;
/// The longest pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 200;

/// The links that are followed: those that a pattern of `include` matches, or all where there is none, but for those that one of
/// `exclude` does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

/// One pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    /// What stands between the asterisks.
    pieces: Vec<String>,
    /// Whether it goes to the end.
    to_end: bool,
}

impl Paths {
    /// All links.
    pub const ALL: Self = Self { include: Vec::new(), exclude: Vec::new() };

    /// Follows only links that one of these matches; all when there is none.
    ///
    /// # Errors
    /// When they are too many, or one is no pattern; the sentence says which.
    pub fn include<T: AsRef<str>>(&mut self, patterns: &[T]) -> Result<(), String> {
        self.include = all(patterns)?;
        Ok(())
    }

    /// Follows no links that one of these matches.
    ///
    /// # Errors
    /// As [`Paths::include`].
    pub fn exclude<T: AsRef<str>>(&mut self, patterns: &[T]) -> Result<(), String> {
        self.exclude = all(patterns)?;
        Ok(())
    }

    /// Whether a link is followed.
    pub(super) fn allow(&self, path: &SitePath) -> bool {
        let matches = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(path.as_str()));
        (self.include.is_empty() || matches(&self.include)) && !matches(&self.exclude)
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
        // Paths have their escapes in normal form.
        let text = normal_escapes(text);
        let (text, to_end) = text.strip_suffix('$').map_or((text.as_str(), false), |text| (text, true));
        Ok(Self { pieces: text.split('*').map(str::to_owned).collect(), to_end })
    }

    fn matches(&self, path: &str) -> bool {
        let Some((first, others)) = self.pieces.split_first() else { return false };
        let Some(mut rest) = path.strip_prefix(first.as_str()) else { return false };
        let Some((last, between)) = others.split_last() else { return !self.to_end || rest.is_empty() };
        for piece in between {
            let Some(at) = rest.find(piece.as_str()) else { return false };
            rest = rest.get(at + piece.len()..).unwrap_or_default();
        }
        if self.to_end { rest.ends_with(last.as_str()) } else { rest.contains(last.as_str()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::site_path::tests::site;
    use super::*;

    fn path(text: &str) -> SitePath {
        let site = site("http://example.cn");
        site.path(&site.root().join(text).unwrap()).unwrap()
    }

    fn matches(pattern: &str, text: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(path(text).as_str())
    }

    #[test]
    fn patterns_are_those_of_robots_txt() {
        for (pattern, text) in [
            ("/", "/"),
            ("/fish", "/fish.html"),
            ("/fish*", "/fish"),
            ("/fish/", "/fish/?id=1"),
            ("/*.php", "/a/b.php?x"),
            ("/*.php$", "/a.php/b.php"),
            ("/a$", "/a"),
            ("*/print", "/x/print"),
            ("/*?page=", "/list?page=2"),
            ("/a*b*c$", "/abbcc"),
            ("/%7Eme/%e4", "/~me/%E4"),
            ("/a**b", "/ab"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("/fish", "/Fish"),
            ("/fish", "/catfish"),
            ("/*.php$", "/a.php?x"),
            ("/a$", "/a/"),
            ("/a*a$", "/a"),
            ("/ab*ba", "/aba"),
            ("/a*b*c$", "/acb"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn a_link_is_followed_that_is_included_and_not_excluded() {
        let mut paths = Paths::ALL;
        assert!(paths.allow(&path("/x")));
        paths.exclude(&["/en/private", "/*.pdf$"]).unwrap();
        assert!(paths.allow(&path("/x")) && !paths.allow(&path("/x.pdf")));
        paths.include(&["/en/", "/de/"]).unwrap();
        assert!(paths.allow(&path("/de/x")) && paths.allow(&path("/en/x")));
        assert!(!paths.allow(&path("/x")) && !paths.allow(&path("/en/private/x")));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        let mut paths = Paths::ALL;
        let long = format!("/{}", "x".repeat(MAX_PATTERN_BYTES));
        for wrong in ["", "fish", "http://a.cn/", "/a b", "/a\n", "/\u{e9}", &long] {
            assert!(paths.include(&[wrong]).is_err() && paths.exclude(&[wrong]).is_err(), "{wrong}");
        }
        assert!(paths.include(&["/"; MAX_PATTERNS + 1]).is_err());
        assert!(paths.include(&["/"; MAX_PATTERNS]).is_ok());
        assert_eq!(Paths::ALL, Paths { include: Vec::new(), ..paths });
    }

    #[test]
    fn a_pattern_of_nothing_but_asterisks_takes_no_longer() {
        let text = format!("/{}", "a".repeat(2000));
        let pattern = Pattern::parse(&format!("/{}b", "*a".repeat(99))).unwrap();
        let begin = std::time::Instant::now();
        assert!((0..100).all(|_| !pattern.matches(&text)));
        assert!(begin.elapsed() < std::time::Duration::from_secs(1), "{:?}", begin.elapsed());
    }

    /// Every way to match, tried one after another.
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
        fn the_first_place_that_fits_is_as_good_as_any(pattern in "/[ab*]{0,8}[$]?", text in "/[ab]{0,10}") {
            prop_assert_eq!(Pattern::parse(&pattern).unwrap().matches(&text), matches_slowly(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
