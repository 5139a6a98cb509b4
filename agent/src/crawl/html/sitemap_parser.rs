//! Parses a sitemap while it is being received. A sitemap lists pages; a sitemap index lists
//! sitemaps (sitemaps.org, protocol 0.9).
//!
//! This module is pure. A sitemap is XML, or text with one URL per line; either may be gzipped. An
//! invalid sitemap has no entries. Only the entries are kept in memory, up to the protocol's limit
//! for one sitemap.

use std::io::Write as _;

use flate2::write::MultiGzDecoder;

use super::links::decode_references;

/// Maximum number of entries of one sitemap, a limit of the protocol.
const MAX_ENTRIES: usize = 50_000;
/// Maximum length of a listed URL in bytes, a limit of the protocol.
const MAX_URL_BYTES: usize = 2048;
/// Maximum bytes of a URL before surrounding blanks are removed and character references are
/// replaced.
const MAX_WRITTEN_BYTES: usize = 4 * MAX_URL_BYTES;
/// Maximum total bytes of the URLs from one sitemap: 100 bytes for each of [`MAX_ENTRIES`].
const MAX_LISTED_BYTES: usize = 5 << 20;
/// Maximum memory of the parser, which buffers one tag or line.
const MAX_PARSER_BYTES: usize = 256 << 10;
/// Maximum decoded bytes of one sitemap, a limit of the protocol.
const MAX_BYTES: u64 = 50 << 20;
/// The start of a character data section, without its `<`.
const CDATA: &[u8] = b"![CDATA[";
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The byte order mark with which some sitemaps begin.
const MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// The entries of a sitemap.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::crawl) struct Sitemap {
    pub(in crate::crawl) pages: Vec<String>,
    pub(in crate::crawl) sitemaps: Vec<String>,
    pub(in crate::crawl) cut: bool,
}

pub(in crate::crawl) struct SitemapReader {
    /// The first bytes, until the format is known.
    beginning: Vec<u8>,
    form: Option<Encoding>,
}

enum Encoding {
    Plain(Box<Parser>),
    Gzip(Box<MultiGzDecoder<Parser>>),
}

impl SitemapReader {
    pub(in crate::crawl) const fn new() -> Self {
        Self { beginning: Vec::new(), form: None }
    }

    /// Parses the next piece. Returns `false` if no further piece is needed.
    pub(in crate::crawl) fn write(&mut self, piece: &[u8]) -> bool {
        match &mut self.form {
            Some(Encoding::Plain(parser)) => parser.write_all(piece).is_ok(),
            Some(Encoding::Gzip(decoder)) => decoder.write_all(piece).is_ok(),
            None => {
                self.beginning.extend_from_slice(piece);
                self.begin()
            }
        }
    }

    pub(in crate::crawl) fn finish(mut self) -> Sitemap {
        let parser = match self.form.take() {
            None => {
                let mut parser = Parser::default();
                let whole = parser.write_all(&self.beginning).is_ok();
                parser.cut |= !whole;
                parser
            }
            Some(Encoding::Plain(parser)) => *parser,
            Some(Encoding::Gzip(mut decoder)) => {
                let whole = decoder.try_finish().is_ok();
                let mut parser = std::mem::take(decoder.get_mut());
                parser.cut |= !whole;
                parser
            }
        };
        parser.finish()
    }

    fn begin(&mut self) -> bool {
        if self.beginning.len() < GZIP.len() {
            return true;
        }
        let beginning = std::mem::take(&mut self.beginning);
        let parser = Parser::default();
        self.form = Some(if beginning.starts_with(&GZIP) {
            Encoding::Gzip(Box::new(MultiGzDecoder::new(parser)))
        } else {
            Encoding::Plain(Box::new(parser))
        });
        self.write(&beginning)
    }
}

/// Parses a decoded sitemap in pieces. Writing a piece fails once no further piece is needed.
#[derive(Default)]
struct Parser {
    listed: EntryList,
    syntax: Syntax,
    bytes: u64,
    cut: bool,
}

enum Syntax {
    /// Too few bytes have been received to rule out a byte order mark.
    Unread(Vec<u8>),
    /// Only white space has been received so far.
    Unknown,
    Xml(XmlParser),
    /// One URL per line; the last line may be incomplete.
    Lines(Vec<u8>),
    Ended,
}

impl Default for Syntax {
    fn default() -> Self {
        Self::Unread(Vec::new())
    }
}

/// The kind of an entry, represented by a function that returns the list for entries of this kind.
type EntryKind = fn(&mut Sitemap) -> &mut Vec<String>;

fn pages(sitemap: &mut Sitemap) -> &mut Vec<String> {
    &mut sitemap.pages
}

fn sitemaps(sitemap: &mut Sitemap) -> &mut Vec<String> {
    &mut sitemap.sitemaps
}

#[derive(Default)]
struct EntryList {
    sitemap: Sitemap,
    bytes: usize,
}

impl EntryList {
    fn add(&mut self, kind: EntryKind, written: &[u8]) {
        if written.len() > MAX_WRITTEN_BYTES {
            return;
        }
        let url = decode_references(String::from_utf8_lossy(written).trim());
        if url.is_empty() || url.len() > MAX_URL_BYTES {
            return;
        }
        let full = self.sitemap.pages.len() + self.sitemap.sitemaps.len() >= MAX_ENTRIES;
        if full || self.bytes + url.len() > MAX_LISTED_BYTES {
            self.sitemap.cut = true;
            return;
        }
        self.bytes += url.len();
        kind(&mut self.sitemap).push(url);
    }
}

/// Parses the part of XML that sitemaps use, byte by byte. Returns the text of each `loc` that is a
/// child of a `url` or `sitemap`.
#[derive(Default)]
struct XmlParser {
    /// The beginning of the current tag, comment or section, without its first `<`.
    tag: Option<Vec<u8>>,
    /// The quotation mark that ends the current attribute's value.
    quote: Option<u8>,
    /// The kind of the current entry, and the number of open elements in it.
    entry: Option<(EntryKind, usize)>,
    url: Option<Vec<u8>>,
}

impl XmlParser {
    /// Parses a byte. If the byte ends a `loc`, returns the entry.
    fn take(&mut self, byte: u8) -> Option<(EntryKind, Vec<u8>)> {
        let Some(tag) = &mut self.tag else {
            match &mut self.url {
                _ if byte == b'<' => self.tag = Some(Vec::new()),
                Some(url) if url.len() <= MAX_WRITTEN_BYTES => url.push(byte),
                _ => {}
            }
            return None;
        };
        let before = tag.last().copied();
        tag.push(byte);
        let ends = if tag.starts_with(b"!--") {
            tag.len() >= b"!---->".len() && tag.ends_with(b"-->")
        } else if tag.starts_with(CDATA) {
            tag.ends_with(b"]]>")
        } else {
            match self.quote {
                Some(quote) if quote == byte => self.quote = None,
                None if before == Some(b'=') && matches!(byte, b'"' | b'\'') => self.quote = Some(byte),
                _ => {}
            }
            byte == b'>' && self.quote.is_none()
        };
        let tag = self.tag.take_if(|_| ends)?;
        self.end(&tag)
    }

    fn end(&mut self, tag: &[u8]) -> Option<(EntryKind, Vec<u8>)> {
        if let Some(section) = tag.strip_prefix(CDATA).and_then(|rest| rest.strip_suffix(b"]]>")) {
            // A URL that is too long is dropped when its element ends. Do not let the URL grow
            // further before that.
            if let Some(url) = self.url.as_mut().filter(|url| url.len() <= MAX_WRITTEN_BYTES) {
                url.extend_from_slice(section);
            }
            return None;
        }
        let (name, closes) = tag.strip_prefix(b"/").map_or((tag, false), |name| (name, true));
        let name = name.split(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>')).next()?;
        let kind: Option<EntryKind> = match name.to_ascii_lowercase().as_slice() {
            b"url" => Some(pages),
            b"sitemap" => Some(sitemaps),
            _ => None,
        };
        let is_loc = name.eq_ignore_ascii_case(b"loc");
        match &mut self.entry {
            // A comment, a declaration or an empty element changes nothing.
            _ if name.starts_with(b"!") || name.starts_with(b"?") || tag.ends_with(b"/>") => {}
            entry if kind.is_some() => {
                *entry = kind.filter(|_| !closes).map(|kind| (kind, 0));
                self.url = None;
            }
            Some((kind, depth)) if closes => {
                *depth = depth.saturating_sub(1);
                return self.url.take_if(|_| is_loc).map(|url| (*kind, url));
            }
            Some((_, depth)) => {
                if is_loc && *depth == 0 {
                    self.url = Some(Vec::new());
                }
                *depth += 1;
            }
            None => {}
        }
        None
    }

    /// Whether the current tag exceeds the limit.
    fn is_too_long(&self) -> bool {
        self.tag.as_ref().is_some_and(|tag| tag.len() > MAX_PARSER_BYTES)
    }
}

impl Parser {
    fn finish(mut self) -> Sitemap {
        if let Syntax::Lines(rest) = &self.syntax {
            self.listed.add(pages, rest);
        }
        Sitemap { cut: self.cut || self.listed.sitemap.cut, ..self.listed.sitemap }
    }

    fn take(&mut self, piece: &[u8]) -> bool {
        match &mut self.syntax {
            Syntax::Unread(beginning) => {
                beginning.extend_from_slice(piece);
                // The byte order mark may arrive in several pieces.
                if beginning.len() < MARK.len() && MARK.starts_with(beginning) {
                    return true;
                }
                let beginning = std::mem::take(beginning);
                self.syntax = Syntax::Unknown;
                self.take(beginning.strip_prefix(&MARK).unwrap_or(&beginning))
            }
            Syntax::Unknown => {
                let piece = piece.trim_ascii_start();
                match piece.first() {
                    None => return true,
                    Some(b'<') => self.syntax = Syntax::Xml(XmlParser::default()),
                    Some(_) => self.syntax = Syntax::Lines(Vec::new()),
                }
                self.take(piece)
            }
            Syntax::Xml(markup) => {
                let entries = piece.iter().filter_map(|byte| markup.take(*byte));
                entries.for_each(|(kind, url)| self.listed.add(kind, &url));
                !markup.is_too_long()
            }
            Syntax::Lines(rest) => {
                let mut lines = piece.split(|byte| matches!(byte, b'\n' | b'\r'));
                let unended = lines.next_back().unwrap_or_default();
                for line in lines {
                    rest.extend_from_slice(line);
                    self.listed.add(pages, rest);
                    rest.clear();
                }
                rest.extend_from_slice(unended);
                rest.len() <= MAX_PARSER_BYTES
            }
            Syntax::Ended => false,
        }
    }
}

impl std::io::Write for Parser {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        self.bytes += u64::try_from(piece.len()).unwrap_or(u64::MAX);
        if self.listed.sitemap.cut || self.bytes > MAX_BYTES || !self.take(piece) {
            self.syntax = Syntax::Ended;
            self.cut = true;
            return Err(std::io::Error::other("no more is wanted"));
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(in crate::crawl) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::gzip;

    pub(crate) fn read(text: &[u8], piece: usize) -> Sitemap {
        let mut reader = SitemapReader::new();
        for piece in text.chunks(piece.max(1)) {
            if !reader.write(piece) {
                return Sitemap { cut: true, ..reader.finish() };
            }
        }
        reader.finish()
    }

    const URLSET: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
        <urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:image="http://www.google.com/schemas/sitemap-image/1.1">
        <url><loc>http://a.cn/1?x=1&amp;y=2</loc><image:image><image:loc>http://a.cn/picture</image:loc></image:image></url>
        <!-- <url><loc>http://a.cn/hidden</loc></url> -->
        <url><lastmod>2024-01-01</lastmod><loc>
            http://a.cn/2
        </loc></url><url><loc><![CDATA[http://a.cn/3]]></loc></url><url><loc></loc></url></urlset>"#;

    #[test]
    fn the_pages_of_a_sitemap_come_in_order_in_pieces_of_any_size() {
        let expected = ["http://a.cn/1?x=1&y=2", "http://a.cn/2", "http://a.cn/3"];
        for piece in [1, 7, 10_000] {
            for text in [URLSET.as_bytes().to_vec(), gzip(URLSET.as_bytes())] {
                let sitemap = read(&text, piece);
                assert_eq!(sitemap.pages, expected, "{piece}");
                assert!(sitemap.sitemaps.is_empty() && !sitemap.cut);
            }
        }
    }

    #[test]
    fn an_index_lists_sitemaps() {
        let index = "<sitemapindex><sitemap><loc>http://a.cn/s1.xml.gz</loc></sitemap></sitemapindex>";
        assert_eq!(read(index.as_bytes(), 9).sitemaps, ["http://a.cn/s1.xml.gz"]);
    }

    #[test]
    fn a_text_sitemap_lists_one_page_per_line() {
        let sitemap = read(b"\xef\xbb\xbfhttp://a.cn/1\r\n\r\nhttp://a.cn/2\nhttp://a.cn/3", 5);
        assert_eq!(sitemap.pages, ["http://a.cn/1", "http://a.cn/2", "http://a.cn/3"]);
    }

    #[test]
    fn a_byte_order_mark_is_skipped_in_pieces_of_any_size() {
        for piece in 1..6 {
            let text = format!("\u{feff}{URLSET}");
            assert_eq!(read(text.as_bytes(), piece).pages.len(), 3, "{piece}");
            assert_eq!(read(&gzip(text.as_bytes()), piece).pages.len(), 3, "{piece}");
            assert_eq!(read("\u{feff}http://a.cn/1".as_bytes(), piece).pages, ["http://a.cn/1"]);
        }
    }

    #[test]
    fn a_sitemap_that_is_too_long_is_cut() {
        let url = "<url><loc>http://a.cn/x</loc></url>";
        let sitemap = read(format!("<urlset>{}</urlset>", url.repeat(MAX_ENTRIES + 5)).as_bytes(), 65_536);
        assert_eq!((sitemap.pages.len(), sitemap.cut), (MAX_ENTRIES, true));
        assert!(!read(format!("<urlset>{}</urlset>", url.repeat(100)).as_bytes(), 100).cut);
        let long = format!("<url><loc>http://a.cn/{}</loc></url>", "x".repeat(1900));
        let sitemap = read(long.repeat(5000).as_bytes(), 65_536);
        let held: usize = sitemap.pages.iter().map(String::len).sum();
        assert!(sitemap.cut && held <= MAX_LISTED_BYTES && held > MAX_LISTED_BYTES - 2000, "{held}");
        let bomb = gzip(&vec![b' '; usize::try_from(MAX_BYTES).unwrap() + 2]);
        assert!(read(&bomb, 4096).cut);
        let half = gzip(URLSET.as_bytes());
        assert!(read(&half[..half.len() / 2], 4096).cut);
        assert!(read(&[b'x'; MAX_PARSER_BYTES + 2], 4096).cut);
    }

    #[test]
    fn a_location_of_many_sections_takes_little_memory() {
        let mut markup = XmlParser::default();
        let section = format!("<![CDATA[{}]]>", "x".repeat(1000));
        for byte in format!("<url><loc>{}", section.repeat(100)).bytes() {
            assert!(markup.take(byte).is_none());
        }
        assert!(markup.url.unwrap().len() <= MAX_WRITTEN_BYTES + 1000);
    }

    proptest! {
        #[test]
        fn any_markup_lists_the_same_in_any_pieces(
            parts in prop::collection::vec("</?(url|loc|sitemap|urlset|x:loc)>|http://a.cn/[a-z&;]{0,5}|<!\\[CDATA\\[|\\]\\]>|<!--|-->", 0..40),
            piece in 1_usize..20,
        ) {
            let text = parts.concat();
            prop_assert_eq!(read(text.as_bytes(), piece), read(text.as_bytes(), text.len()));
        }
    }
}
