//! The crawled site. Decides which URLs are inside the site, and names the other sites to which
//! URLs lead.
//!
//! This module is pure. A [`SitePath`] is made only from a URL of the site's origin, and its URL
//! always has this origin. So a path never leaves the site.

use url::{Position, Url};

use super::normal_form::normal_form;
use super::site_path::{MAX_PATH_BYTES, SitePath};
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
}
