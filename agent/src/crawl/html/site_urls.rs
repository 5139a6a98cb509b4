//! The crawled site, and its URLs: decides which URLs are inside the site, and gives equivalent
//! URLs the same spelling, their normal form.
//!
//! This module is pure. A [`SitePath`] is made only from a URL of the site's origin, and its URL
//! always has this origin. So a path never leaves the site.
//!
//! Equivalent URLs have the same [`SitePath`]. A `SitePath` has no fragment, default port,
//! credentials, dot segments, empty query, unnecessary escapes or session identifiers. [`Site`]
//! makes paths from URLs.
//!
//! Unnecessary escapes are decoded, and the other escapes are written with capital letters (RFC
//! 3986, 6.2.2). Session identifiers and advertising parameters are removed, because they give the
//! same page a new URL on every visit. The parameters of a query keep their order, which may matter
//! to the site.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use sha2::{Digest, Sha256};
use url::{Position, Url};

use crate::net::origin::Origin;

/// Maximum length of a host name in DNS, in bytes.
const MAX_HOST_BYTES: usize = 253;

#[derive(Debug, Clone)]
pub(in crate::crawl) struct Site {
    origin: Origin,
    root: Url,
}

impl Site {
    /// The site at an origin; `None` if no valid URL can have this origin.
    pub(in crate::crawl) fn new(origin: &Origin) -> Option<Self> {
        let root = Url::parse(&format!("{origin}/")).ok()?;
        // Parse the origin again: its fields are public, so they may not be in normal form.
        let origin = Origin::of(&root).ok()?;
        Some(Self { origin, root })
    }

    pub(in crate::crawl) const fn origin(&self) -> &Origin {
        &self.origin
    }

    pub(in crate::crawl) const fn root(&self) -> &Url {
        &self.root
    }

    /// The normal form of a URL; `None` if the URL is outside the site or too long.
    pub(in crate::crawl) fn path(&self, url: &Url) -> Option<SitePath> {
        // If the text before the URL's path is the same as in the site's root, the URL's origin
        // need not be parsed.
        let alike = url[..Position::BeforePath] == self.root[..Position::BeforePath];
        if !alike && Origin::of(url).ok()? != self.origin {
            return None;
        }
        let path = normal_form(&url[Position::BeforePath..Position::AfterQuery]);
        (path.len() <= MAX_PATH_BYTES).then(|| SitePath::new(&path))
    }

    /// The name of the other site to which a URL leads, in the canonical spelling of site lists.
    /// `None` if the URL is inside this site, or neither http nor https. The site's host with the
    /// other scheme is not another site, because both are named by the bare host.
    pub(in crate::crawl) fn other_site(&self, url: &Url) -> Option<String> {
        let origin = Origin::of(url).ok().filter(|origin| origin.host.len() <= MAX_HOST_BYTES)?;
        let name = origin.site_name();
        (name != self.origin.site_name()).then_some(name)
    }

    /// The URL of a path; `None` only if the URL parser would change the path.
    pub(in crate::crawl) fn url(&self, path: &SitePath) -> Option<Url> {
        if path.is_plain() {
            let mut url = self.root.clone();
            url.set_path(path.as_str());
            return Some(url);
        }
        // `join` would be wrong here, because it would read a path such as `//host/` as a URL of
        // another host.
        let url = Url::parse(&format!("{}{}", self.origin, path.as_str())).ok()?;
        (self.path(&url)? == *path).then_some(url)
    }
}

/// Maximum length of a path and query in bytes. Longer paths belong to traps, not to pages.
const MAX_PATH_BYTES: usize = 2048;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::crawl) struct SitePath {
    text: Box<str>,
    /// The fingerprint is computed once per path, because every lookup needs it.
    fingerprint: Fingerprint,
}

/// Represents a [`SitePath`] in sets, so that the known paths of a large site take little memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::crawl) struct Fingerprint(u128);

pub(in crate::crawl) type Fingerprints = HashSet<Fingerprint, BuildHasherDefault<FingerprintHasher>>;

/// Uses half of a fingerprint's bits as its hash, because a cryptographic digest has already mixed
/// them.
#[derive(Debug, Default)]
pub(in crate::crawl) struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn write_u128(&mut self, bits: u128) {
        self.0 = u64::try_from(bits >> 64).expect("64 bits");
    }

    fn write(&mut self, bytes: &[u8]) {
        // All keys are `u128`, so this method is never called. The method would be correct for
        // other keys too.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl SitePath {
    pub(in crate::crawl) fn root() -> Self {
        Self::new("/")
    }

    /// The path with this text, which must be in normal form.
    pub(super) fn new(text: &str) -> Self {
        Self { text: text.into(), fingerprint: Self::fingerprint_of(text) }
    }

    pub(in crate::crawl) fn as_str(&self) -> &str {
        &self.text
    }

    /// A shortcut for links that a quick check finds in normal form. Most links have this form, and
    /// the URL parser takes ten times as long. If `plain` returns `None`, use the URL parser.
    pub(in crate::crawl) fn plain(href: &str) -> Option<Self> {
        is_short_and_plain(href).then(|| Self::new(href))
    }

    /// Reads a path that was written with [`SitePath::as_str`]; `None` for any other text. Does not
    /// check the normal form.
    pub(in crate::crawl) fn stored(text: &str) -> Option<Self> {
        (text.starts_with('/') && text.len() <= MAX_PATH_BYTES).then(|| Self::new(text))
    }

    /// Whether a quick check shows that the path is in normal form.
    fn is_plain(&self) -> bool {
        is_short_and_plain(&self.text)
    }

    pub(in crate::crawl) const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub(in crate::crawl) fn fingerprint_of(text: &str) -> Fingerprint {
        let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        let (half, _) = digest.split_first_chunk().expect("32 bytes begin with 16");
        Fingerprint(u128::from_be_bytes(*half))
    }
}

impl Fingerprint {
    pub(in crate::crawl) const fn as_u128(self) -> u128 {
        self.0
    }

    pub(in crate::crawl) const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }
}

fn is_short_and_plain(path: &str) -> bool {
    path.len() <= MAX_PATH_BYTES && is_plain(path)
}

/// Names of parameters that identify a visit, whatever their values are.
const VISITS: [&str; 8] = ["jsessionid", "phpsessid", "asp.net_sessionid", "cfid", "cftoken", "oscsid", "zenid", "_gl"];
/// Prefixes of names of parameters that identify a visit. For example, Microsoft's servers append
/// letters to `ASPSESSIONID`.
const VISITS_BEGIN: [&str; 2] = ["aspsessionid", "utm_"];
/// Parameters that advertisers add to links to a site.
const MARKS: [&str; 5] = ["gclid", "fbclid", "msclkid", "dclid", "yclid"];
/// Names of parameters that identify a visit only if their value looks like an identifier. For
/// example, `sid=12` may be the number of a story.
const PERHAPS: [&str; 5] = ["sid", "s", "session", "sessionid", "session_id"];
/// Minimum length, in characters, of a value that looks like an identifier.
const LEAST_TOKEN: usize = 16;

pub(in crate::crawl) fn normal_form(path_and_query: &str) -> Cow<'_, str> {
    // A fast path: most paths contain none of these characters, and need no change.
    if !path_and_query.bytes().any(|byte| matches!(byte, b'%' | b';' | b'?')) {
        return Cow::Borrowed(path_and_query);
    }
    let unescaped = normal_escapes(path_and_query);
    let (path, query) = match unescaped.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (unescaped.as_str(), None),
    };
    let mut normal = without_session(path);
    let kept = |pair: &&str| !names_a_visit(pair);
    let query: Vec<&str> = query.map(|query| query.split('&').filter(kept).collect()).unwrap_or_default();
    if query.iter().any(|pair| !pair.is_empty()) {
        normal.push('?');
        normal.push_str(&query.join("&"));
    }
    Cow::Owned(normal)
}

/// Whether a quick check shows that a path is in normal form: an absolute path with only letters,
/// digits, `-`, `_`, `/` and dots inside segments.
fn is_plain(path: &str) -> bool {
    let mut before = b'/';
    for byte in path.bytes().skip(1) {
        let plain = match byte {
            // A dot after a slash may begin a dot segment. Two slashes may begin another host or an
            // empty segment.
            b'.' | b'/' => before != b'/',
            byte => byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'),
        };
        if !plain {
            return false;
        }
        before = byte;
    }
    path.starts_with('/')
}

/// Removes unnecessary escapes from a text, and writes the other escapes with capital letters.
pub(in crate::crawl) fn normal_escapes(text: &str) -> String {
    let mut normal = String::with_capacity(text.len());
    // The position of the last literal `%`, which is not part of an escape. If a hexadecimal digit
    // were decoded right after this `%`, the result could look like an escape.
    let mut stray = None;
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        let (before, escape) = rest.split_at(at);
        normal.push_str(before);
        let digits = escape.get(1..3).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) else {
            stray = Some(normal.len());
            normal.push('%');
            rest = escape.get(1..).unwrap_or_default();
            continue;
        };
        let needless = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
        let after_stray = stray.is_some_and(|stray| match normal.as_bytes().get(stray + 1..) {
            Some([]) => true,
            Some([digit]) => digit.is_ascii_hexdigit(),
            _ => false,
        });
        let harmful = byte.is_ascii_hexdigit() && after_stray;
        if needless && !harmful {
            normal.push(char::from(byte));
        } else {
            normal.push_str(&format!("%{byte:02X}"));
        }
        rest = escape.get(3..).unwrap_or_default();
    }
    normal.push_str(rest);
    normal
}

fn without_session(path: &str) -> String {
    let segments = path.split('/').map(|segment| {
        let mut parts = segment.split(';');
        let mut kept = parts.next().unwrap_or_default().to_owned();
        for part in parts.filter(|part| !names_a_visit(part)) {
            kept.push(';');
            kept.push_str(part);
        }
        kept
    });
    segments.collect::<Vec<_>>().join("/")
}

/// Whether a parameter (`name=value`) identifies the visit rather than the content.
fn names_a_visit(pair: &str) -> bool {
    let Some((name, value)) = pair.split_once('=') else { return false };
    let is = |known: &&str| name.eq_ignore_ascii_case(known);
    let begins = |known: &&str| name.get(..known.len()).is_some_and(|start| start.eq_ignore_ascii_case(known));
    VISITS.iter().chain(&MARKS).any(is) || VISITS_BEGIN.iter().any(begins) || PERHAPS.iter().any(is) && is_token(value)
}

fn is_token(value: &str) -> bool {
    value.len() >= LEAST_TOKEN
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && value.bytes().any(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
pub(in crate::crawl) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn site(origin: &str) -> Site {
        Site::new(&origin.parse().unwrap()).unwrap()
    }

    /// A path of the site `http://example.cn`.
    pub(crate) fn path_of(text: &str) -> SitePath {
        let site = site("http://example.cn");
        site.path(&site.root().join(text).unwrap()).unwrap()
    }

    fn path(href: &str) -> Option<String> {
        let site = site("http://example.cn");
        let url = site.root().join("dir/page.html").unwrap().join(href).ok()?;
        site.path(&url).map(|path| path.as_str().to_owned())
    }

    #[test]
    fn equivalent_urls_have_one_path() {
        let same =
            ["x", "./x", "/dir/x", "../dir/x", "x#there", "x?", "http://EXAMPLE.cn:80/dir/x", "//example.cn./dir/x"];
        for href in same.into_iter().chain(["/dir/./y/../x", "http://me:secret@example.cn/dir/x"]) {
            assert_eq!(path(href).as_deref(), Some("/dir/x"), "{href}");
        }
        assert_eq!(path("x?a=1&b").as_deref(), Some("/dir/x?a=1&b"));
    }

    #[test]
    fn other_origins_have_no_path() {
        for href in
            ["https://example.cn/", "http://example.cn:81/", "http://www.example.cn/", "//other.cn/", "mailto:a@b"]
        {
            assert_eq!(path(href), None, "{href}");
        }
        assert_eq!(path(&"x".repeat(MAX_PATH_BYTES)), None);
    }

    #[test]
    fn a_path_that_looks_like_a_host_stays_inside_the_site() {
        let site = site("http://example.cn");
        let inside = site.path(&Url::parse("http://example.cn//other.cn/x").unwrap()).unwrap();
        assert_eq!(site.url(&inside).unwrap().as_str(), "http://example.cn//other.cn/x");
    }

    proptest! {
        #[test]
        fn a_plain_path_equals_the_parsers_result(href in "/[a-zA-Z0-9/._\\\\~%?-]{0,12}") {
            let site = site("http://example.cn");
            let url = site.root().join("dir/page.html").unwrap().join(&href);
            if let Some(plain) = SitePath::plain(&href) {
                let url = url.unwrap();
                prop_assert_eq!(site.url(&plain), Some(url.clone()));
                prop_assert_eq!(site.path(&url), Some(plain));
            }
        }

        #[test]
        fn a_normal_form_is_stable_and_inside_the_site(href in "\\PC{0,60}", base in "(/[a-z.%?#]{0,8}){0,4}") {
            let site = site("http://example.cn:8080");
            if let Ok(url) = site.root().join(&base).and_then(|base| base.join(&href))
                && let Some(path) = site.path(&url)
                && let Some(again) = site.url(&path)
            {
                prop_assert_eq!(Origin::of(&again).unwrap(), site.origin().clone());
                prop_assert_eq!(site.path(&again), Some(path));
            }
        }
    }

    #[test]
    fn a_plain_path_is_read_without_the_parser() {
        for href in ["/", "/a", "/a/b-c_d.html", "/a.b/..c", "/robots.txt"] {
            assert_eq!(SitePath::plain(href).is_some(), !href.contains("/.."), "{href}");
        }
        let long = format!("/{}", "x".repeat(MAX_PATH_BYTES));
        for href in
            ["", "a", "//a", "/a//b", "/.", "/a/./b", "/../a", "/a?b", "/a#b", "/%41", "/a;b", "/a ", "/\u{e9}", &long]
        {
            assert_eq!(SitePath::plain(href), None, "{href}");
        }
    }

    #[test]
    fn equivalent_paths_are_spelled_the_same() {
        for (written, normal) in [
            ("/%7euser/%41%2db", "/~user/A-b"),
            ("/%e4%b8%ad?q=%2f", "/%E4%B8%AD?q=%2F"),
            ("/100%/%41/%zz", "/100%/A/%zz"),
            ("/%%34%31", "/%%341"),
            ("/%2541", "/%2541"),
            ("/a;jsessionid=1A2B/b;v=2", "/a/b;v=2"),
            ("/a;JSESSIONID=1A2B?x=1", "/a?x=1"),
            ("/a?PHPSESSID=7&x=1&utm_source=mail&gclid=z", "/a?x=1"),
            ("/a?ASPSESSIONIDQQ=1", "/a"),
            ("/a?sid=0123456789abcdef0&s=12&sid=12", "/a?s=12&sid=12"),
            ("/a?b=2&a=1&&c", "/a?b=2&a=1&&c"),
            ("/a?", "/a"),
            ("/a?&", "/a"),
            ("/;/?phpsessid", "/;/?phpsessid"),
        ] {
            assert_eq!(normal_form(written), normal, "{written}");
        }
    }

    proptest! {
        #[test]
        fn the_normal_form_is_stable(text in "/?(\\PC|%[0-9a-fA-F]{0,2}|[a-z;/&?=.]|sid=|utm_x=|phpsessid=|[0-9a-f]{16,18}|\u{e9}){0,40}") {
            let once = normal_form(&text);
            prop_assert_eq!(normal_form(&once), once.as_ref());
            prop_assert!(once.len() <= text.len() && normal_escapes(&text).len() <= text.len());
        }
    }
}
