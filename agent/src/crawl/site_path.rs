//! The normal form of a URL inside one site: its path and query.
//!
//! Pure. Two URLs that fetch the same thing have one [`SitePath`]: the fragment, the default port, credentials, dot segments, an empty
//! query, needless escapes and session identifiers are gone. A `SitePath` is only made from a URL of the site's
//! origin, and a URL is only made back by putting that origin before it, so nothing that went through here can leave
//! the site.

use sha2::{Digest, Sha256};
use url::{Position, Url};

use super::normal_form::normal_form;
use crate::origin::Origin;

/// The longest path and query followed, in bytes; longer ones are traps, not pages.
pub(super) const MAX_PATH_BYTES: usize = 2048;

/// A path and query inside the site, in normal form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SitePath(Box<str>);

/// Stands for a [`SitePath`] in sets, so that a large site's known pages stay small in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint(u128);

impl SitePath {
    /// The start page.
    pub(super) fn root() -> Self {
        Self("/".into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// A path that was written down by [`SitePath::as_str`]; `None` for anything else. That it is in normal form is not looked at.
    pub(super) fn stored(text: &str) -> Option<Self> {
        (text.starts_with('/') && text.len() <= MAX_PATH_BYTES).then(|| Self(text.into()))
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        Self::fingerprint_of(&self.0)
    }

    /// The fingerprint of the path of that text.
    pub(super) fn fingerprint_of(text: &str) -> Fingerprint {
        let digest = Sha256::digest(text.as_bytes());
        let half = digest.iter().take(16).fold(0_u128, |sum, byte| (sum << 8) | u128::from(*byte));
        Fingerprint(half)
    }
}

impl Fingerprint {
    pub(super) const fn as_u128(self) -> u128 {
        self.0
    }

    pub(super) const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }
}

/// The site that is crawled.
#[derive(Debug, Clone)]
pub(super) struct Site {
    origin: Origin,
    root: Url,
}

impl Site {
    /// The site at an origin; `None` when the origin does not make a URL.
    pub(super) fn new(origin: &Origin) -> Option<Self> {
        let root = Url::parse(&format!("{origin}/")).ok()?;
        // Read back, because an origin's parts are public and may have been put together in another spelling.
        let origin = Origin::of(&root).ok()?;
        Some(Self { origin, root })
    }

    pub(super) const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The URL of the start page.
    pub(super) const fn root(&self) -> &Url {
        &self.root
    }

    /// The normal form of a URL; `None` when it lies outside the site or is too long.
    pub(super) fn path(&self, url: &Url) -> Option<SitePath> {
        if Origin::of(url).ok()? != self.origin {
            return None;
        }
        let path = normal_form(&url[Position::BeforePath..Position::AfterQuery]);
        (path.len() <= MAX_PATH_BYTES).then(|| SitePath(path.into()))
    }

    /// The URL of a path; `None` only when the path cannot be read back as it was written.
    pub(super) fn url(&self, path: &SitePath) -> Option<Url> {
        // Not `join`: the path `//host/` is a path here, and another host there.
        let url = Url::parse(&format!("{}{}", self.origin, path.0)).ok()?;
        (self.path(&url)? == *path).then_some(url)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn site(origin: &str) -> Site {
        Site::new(&origin.parse().unwrap()).unwrap()
    }

    fn path(href: &str) -> Option<String> {
        let site = site("http://example.cn");
        let url = site.root().join("dir/page.html").unwrap().join(href).ok()?;
        site.path(&url).map(|path| path.as_str().to_owned())
    }

    #[test]
    fn urls_that_fetch_the_same_have_one_path() {
        let same =
            ["x", "./x", "/dir/x", "../dir/x", "x#there", "x?", "http://EXAMPLE.cn:80/dir/x", "//example.cn./dir/x"];
        for href in same.into_iter().chain(["/dir/./y/../x", "http://me:secret@example.cn/dir/x"]) {
            assert_eq!(path(href).as_deref(), Some("/dir/x"), "{href}");
        }
        assert_eq!(path("x?a=1&b").as_deref(), Some("/dir/x?a=1&b"));
    }

    #[test]
    fn other_origins_have_none() {
        for href in
            ["https://example.cn/", "http://example.cn:81/", "http://www.example.cn/", "//other.cn/", "mailto:a@b"]
        {
            assert_eq!(path(href), None, "{href}");
        }
        assert_eq!(path(&"x".repeat(MAX_PATH_BYTES)), None);
    }

    #[test]
    fn a_path_that_looks_like_a_host_stays_inside() {
        let site = site("http://example.cn");
        let inside = site.path(&Url::parse("http://example.cn//other.cn/x").unwrap()).unwrap();
        assert_eq!(site.url(&inside).unwrap().as_str(), "http://example.cn//other.cn/x");
    }

    proptest! {
        #[test]
        fn normal_form_is_stable_and_inside(href in "\\PC{0,60}", base in "(/[a-z.%?#]{0,8}){0,4}") {
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
}
