//! Finds the links of an HTML page while the page is being received.
//!
//! This module is pure. The extractor returns the links of `a`, `area` (`href`), `iframe` and
//! `frame` (`src`) that stay inside the site, and the names of the other sites to which the page
//! links. The extractor honours `base`, `rel=nofollow`, and `nofollow` in `meta name=robots`. If a
//! page needs more memory than the limit, parsing stops; the links found so far are returned and
//! marked as incomplete.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use encoding_rs::Encoding;
use lol_html::send::{Element, ElementContentHandlers, HtmlRewriter, Settings};
use lol_html::{AsciiCompatibleEncoding, MemorySettings, OutputSink, Selector};
use url::Url;

use super::site_urls::{Fingerprints, Site, SitePath};
use crate::crawl::politeness::page_directives;

const MAX_LINKS: usize = 10_000;
/// Maximum number of other sites that are returned for one page.
const MAX_PAGE_HOSTS: usize = 1_000;
/// Initial capacity for distinct links. Most pages have no more links than this, and the capacity
/// takes only a few hundred bytes.
const FEW_LINKS: usize = 28;
/// Maximum memory of the parser for one page. The parser buffers a tag that continues in the next
/// piece, and needs 128 bytes per open element. There can be many open elements: on a page that
/// closes no paragraph, all paragraphs stay open.
const MAX_PARSER_BYTES: usize = 2 << 20;

#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::crawl) struct Links {
    /// Paths inside the site, without duplicates, in the order in which they appear on the page.
    pub(in crate::crawl) paths: Vec<SitePath>,
    /// The names of other sites, without duplicates, in the order in which they appear on the page;
    /// at most [`MAX_PAGE_HOSTS`].
    pub(in crate::crawl) hosts: Vec<String>,
    pub(in crate::crawl) cut: bool,
}

/// Receives a page in pieces and returns its links.
pub(in crate::crawl) struct LinkExtractor {
    parser: Option<HtmlRewriter<'static, Discard>>,
    page: Arc<Mutex<Page>>,
}

impl LinkExtractor {
    /// Makes an extractor for the page at `url`. `charset` comes from the page's `Content-Type`;
    /// `token` is the crawler's product token.
    pub(in crate::crawl) fn new(site: Site, url: Url, charset: Option<&str>, token: Arc<str>) -> Self {
        let encoding = charset
            .and_then(|label| Encoding::for_label_no_replacement(label.as_bytes()))
            .and_then(AsciiCompatibleEncoding::new);
        let mut page = Page {
            site,
            token,
            base: url,
            based: false,
            encoding: None,
            known: Fingerprints::with_capacity_and_hasher(FEW_LINKS, Default::default()),
            known_hosts: HashSet::new(),
            links: Links::default(),
            nofollow: false,
        };
        page.encoding = encoding.map(Into::into);
        // The parser's handlers and the extractor share the page. Handlers and extractor run in one
        // tokio task, so the lock is never contended.
        let page = Arc::new(Mutex::new(page));
        let parser = HtmlRewriter::new(settings(&page, encoding), Discard);
        Self { parser: Some(parser), page }
    }

    pub(in crate::crawl) fn write(&mut self, piece: &[u8]) {
        let Some(parser) = self.parser.as_mut() else { return };
        if parser.write(piece).is_err() {
            // After an error the parser must not be used again.
            self.parser = None;
            lock(&self.page).links.cut = true;
        }
    }

    pub(in crate::crawl) fn finish(self) -> Links {
        let ended_well = self.parser.is_none_or(|parser| parser.end().is_ok());
        let mut page = lock(&self.page);
        let mut links = std::mem::take(&mut page.links);
        links.cut |= !ended_well;
        if page.nofollow { Links::default() } else { links }
    }
}

fn lock(page: &Mutex<Page>) -> MutexGuard<'_, Page> {
    page.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The elements that can contain links or directives. The selectors are parsed only once, because
/// parsing them takes longer than reading most pages.
static WANTED: LazyLock<[Selector; 4]> = LazyLock::new(|| {
    ["base", "meta", "a, area", "iframe, frame"].map(|selector| selector.parse().expect("a list of names"))
});

fn settings(page: &Arc<Mutex<Page>>, encoding: Option<AsciiCompatibleEncoding>) -> Settings<'static, 'static> {
    let on = |take: fn(&mut Page, &Element<'_, '_>)| {
        let page = Arc::clone(page);
        move |element: &mut Element<'_, '_>| {
            take(&mut lock(&page), element);
            Ok(())
        }
    };
    let [bases, metas, anchors, frames] = &*WANTED;
    let on = |selector: &'static Selector, take| {
        (Cow::Borrowed(selector), ElementContentHandlers::default().element(on(take)))
    };
    let mut settings = Settings::new_send()
        .append_element_content_handler(on(bases, Page::set_base))
        .append_element_content_handler(on(metas, Page::obey_meta))
        .append_element_content_handler(on(anchors, |page, element| page.add(element, "href")))
        .append_element_content_handler(on(frames, |page, element| page.add(element, "src")))
        .with_memory_settings(MemorySettings::new().with_max_allowed_memory_usage(MAX_PARSER_BYTES))
        .with_strict(false);
    settings = match encoding {
        Some(encoding) => settings.with_encoding(encoding),
        None => settings.with_adjust_charset_on_meta_tag(true),
    };
    settings
}

/// Discards the parser's output, the rewritten page, because only the links are needed.
struct Discard;

impl OutputSink for Discard {
    fn handle_chunk(&mut self, _chunk: &[u8]) {}
}

struct Page {
    site: Site,
    /// The product token that names the crawler in `meta` elements.
    token: Arc<str>,
    base: Url,
    based: bool,
    /// The page's encoding, in which queries are percent-encoded, as in browsers.
    encoding: Option<&'static Encoding>,
    known: Fingerprints,
    known_hosts: HashSet<String>,
    links: Links,
    nofollow: bool,
}

impl Page {
    fn set_base(&mut self, element: &Element<'_, '_>) {
        // As in browsers, only the first `base` element counts.
        if self.based {
            return;
        }
        if let Some(base) = element.get_attribute("href").and_then(|href| self.resolve(&href)) {
            self.base = base;
            self.based = true;
        }
    }

    fn obey_meta(&mut self, element: &Element<'_, '_>) {
        if self.encoding.is_none()
            && let Some(label) = element.get_attribute("charset")
        {
            self.encoding = Encoding::for_label_no_replacement(label.as_bytes());
        }
        let speaks_to_us =
            element.get_attribute("name").is_some_and(|name| page_directives::is_for_us(&name, &self.token));
        if speaks_to_us && let Some(content) = element.get_attribute("content") {
            self.nofollow |= page_directives::forbids_following(&content);
        }
    }

    fn add(&mut self, element: &Element<'_, '_>, attribute: &str) {
        let rel = element.get_attribute("rel").unwrap_or_default();
        if rel.split_ascii_whitespace().any(|word| word.eq_ignore_ascii_case("nofollow")) {
            return;
        }
        let Some(href) = element.get_attribute(attribute) else { return };
        let Some(path) = self.path(&href) else { return };
        let fingerprint = path.fingerprint();
        if self.known.contains(&fingerprint) {
            return;
        }
        if self.links.paths.len() >= MAX_LINKS {
            self.links.cut = true;
            return;
        }
        self.known.insert(fingerprint);
        self.links.paths.push(path);
    }

    /// The path of a link inside the site. If the link leads to another site, records its name.
    fn path(&mut self, href: &str) -> Option<SitePath> {
        // With a `base` element, links may be relative to any URL, so the shortcut for plain paths
        // does not apply.
        if !self.based
            && let Some(plain) = SitePath::plain(href)
        {
            return Some(plain);
        }
        let url = self.resolve(href)?;
        let path = self.site.path(&url);
        if path.is_none()
            && self.links.hosts.len() < MAX_PAGE_HOSTS
            && let Some(other) = self.site.other_site(&url)
            && self.known_hosts.insert(other.clone())
        {
            self.links.hosts.push(other);
        }
        path
    }

    fn resolve(&self, href: &str) -> Option<Url> {
        let href = decode_references(href.trim());
        let encode = encoder(self.encoding);
        Url::options().base_url(Some(&self.base)).encoding_override(Some(&encode)).parse(&href).ok()
    }
}

/// Encodes the characters of a query as browsers do.
fn encoder(encoding: Option<&'static Encoding>) -> impl Fn(&str) -> Cow<'_, [u8]> {
    move |text| match encoding {
        Some(encoding) => encoding.encode(text).0,
        None => Cow::Borrowed(text.as_bytes()),
    }
}

/// Replaces the character references (such as `&amp;`) that occur in links, because the parser does
/// not replace them in attributes.
pub(in crate::crawl) fn decode_references(text: &str) -> String {
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        let (before, reference) = rest.split_at(at);
        decoded.push_str(before);
        let (character, length) = reference_at(reference).unwrap_or(('&', 1));
        decoded.push(character);
        rest = reference.get(length..).unwrap_or_default();
    }
    decoded.push_str(rest);
    decoded
}

/// The character that the reference at the start of a text stands for, and the reference's length
/// in bytes.
fn reference_at(text: &str) -> Option<(char, usize)> {
    // The longest reference is `&#x10ffff;`.
    let end = text.bytes().take(10).position(|byte| byte == b';')?;
    let name = text.get(1..end)?;
    let character = match name {
        "amp" | "AMP" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let digits = name.strip_prefix('#')?;
            let code = match digits.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => digits.parse(),
            };
            char::from_u32(code.ok()?)?
        }
    };
    Some((character, end + 1))
}

#[cfg(test)]
pub(in crate::crawl) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::crawl::html::site_urls::tests::site;

    pub(crate) fn extract(html: &[u8], charset: Option<&str>, piece: usize) -> Links {
        let site = site("http://example.cn");
        let url = site.root().join("dir/page").unwrap();
        let mut extractor = LinkExtractor::new(site, url, charset, "StudyBot".into());
        html.chunks(piece.max(1)).for_each(|piece| extractor.write(piece));
        extractor.finish()
    }

    fn paths(html: &str) -> Vec<String> {
        extract(html.as_bytes(), None, 7).paths.iter().map(|path| path.as_str().to_owned()).collect()
    }

    #[test]
    fn links_come_in_order_each_once() {
        let html = r#"<a href=b>b</a><AREA HREF="/a#x"><iframe src='../c'></iframe><frame src=d><a href="b#again">
            <a name=none><link rel=next href=/style><img src=/picture><script>"<a href=/script>"</script>
            <!-- <a href=/comment> --><a href="https://other.cn/"><a href="javascript:x()"><a href=" /e ">"#;
        assert_eq!(paths(html), ["/dir/b", "/a", "/c", "/dir/d", "/e"]);
    }

    #[test]
    fn other_sites_are_returned_by_name_each_once() {
        let html = r#"<a href="https://www.other.cn/a"><a href="HTTP://WWW.OTHER.CN:80/b"><a href="//third.cn:8080/">
            <a href="https://example.cn/"><a href="/inside"><a rel=nofollow href="https://unwanted.cn/">
            <a href="mailto:a@b.cn"><a href="ftp://files.cn/"><img src="https://pictures.cn/"><a href="http://[2001:db8::1]/">"#;
        let links = extract(html.as_bytes(), None, 7);
        assert_eq!(links.hosts, ["www.other.cn", "http://third.cn:8080", "[2001:db8::1]"]);
        assert!(extract(b"<meta name=robots content=nofollow><a href=//other.cn>", None, 9).hosts.is_empty());
        let many: String = (0..=MAX_PAGE_HOSTS).map(|number| format!("<a href=//h{number}.cn/></a>")).collect();
        let links = extract(many.as_bytes(), None, 4096);
        assert_eq!((links.hosts.len(), links.cut), (MAX_PAGE_HOSTS, false));
    }

    #[test]
    fn base_moves_the_links_after_it() {
        assert_eq!(paths("<base href='/other/'><base href='/third/'><a href=x>"), ["/other/x"]);
        assert_eq!(paths("<base href='http://other.cn/'><a href=x><a href='http://example.cn/y'>"), ["/y"]);
    }

    #[test]
    fn nofollow_is_obeyed() {
        assert_eq!(paths("<a rel='noopener NoFollow' href=x><a rel=next href=y>"), ["/dir/y"]);
        assert!(paths("<meta name=Robots content='noindex, nofollow'><a href=x>").is_empty());
        assert_eq!(paths("<meta name=robots content=noindex><a href=x>"), ["/dir/x"]);
    }

    #[test]
    fn character_references_are_decoded() {
        assert_eq!(
            paths("<a href='?a=1&amp;b=2&#38;c&#x2f;&copy=3&unknown;&'>"),
            ["/dir/page?a=1&b=2&c/&copy=3&unknown;&"]
        );
    }

    #[test]
    fn an_old_encoding_is_taken_from_the_header_or_the_page() {
        // 中 is D6 D0 in GBK. Paths are percent-encoded as UTF-8, but queries in the page's
        // encoding.
        let html = [b"<a href='/\xd6\xd0?\xd6\xd0'>".as_slice()].concat();
        let expected = ["/%E4%B8%AD?%D6%D0"];
        let links = extract(&html, Some("gbk"), 5);
        assert_eq!(links.paths.iter().map(SitePath::as_str).collect::<Vec<_>>(), expected);
        let html = [b"<meta charset=gb2312>".as_slice(), &html].concat();
        let links = extract(&html, None, html.len());
        assert_eq!(links.paths.iter().map(SitePath::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn too_many_links_are_cut() {
        let html: String = (0..=MAX_LINKS).map(|number| format!("<a href=/{number}></a>")).collect();
        let links = extract(html.as_bytes(), None, 4096);
        assert!(links.cut);
        assert_eq!(links.paths.len(), MAX_LINKS);
    }

    #[test]
    fn a_page_that_needs_too_much_memory_is_cut() {
        let html = format!("<a href=/first><a href='{}'><a href=/last>", "x".repeat(2 * MAX_PARSER_BYTES));
        let links = extract(html.as_bytes(), None, 4096);
        assert!(links.cut);
        assert_eq!(links.paths.iter().map(SitePath::as_str).collect::<Vec<_>>(), ["/first"]);
    }

    proptest! {
        #[test]
        fn any_markup_gives_only_paths_of_the_site(
            parts in prop::collection::vec("<?/?(a|area|base|iframe|meta|script|title)? (href|src|rel)?=?['\"]?[/a-z:.&#;?\u{e9}]{0,12}['\"]?>?", 0..30),
            piece in 1_usize..40,
        ) {
            let html = parts.concat();
            let whole = extract(html.as_bytes(), None, html.len());
            for path in &whole.paths {
                prop_assert!(path.as_str().starts_with('/'));
                prop_assert!(site("http://example.cn").url(path).is_some());
            }
            // The result does not depend on how the page is split into pieces.
            prop_assert_eq!(extract(html.as_bytes(), None, piece), whole);
        }

        #[test]
        fn references_never_panic(text in "\\PC{0,40}", number in any::<u32>()) {
            decode_references(&format!("{text}&#{number};&#x{number:x};&{text}"));
        }
    }
}
