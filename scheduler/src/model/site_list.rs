//! Parses site lists.
//!
//! A line of a list has one of three forms: a name; a rank and a name; or a name, a latitude and a
//! longitude. Commas separate the columns. A first line with column names, among them `site`,
//! `latitude` and `longitude`, sets the order of the columns.
//!
//! The parser skips blank lines and comments (`#` at the start or after a space), and accepts a
//! byte-order mark and CRLF. The parser drops and counts duplicate sites, and reports invalid lines
//! by number.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{self, BufRead, Read as _};

use super::site_name::{InvalidName, SiteName, shown};
use crate::model::geo::Position;

/// Maximum number of sites in a list, and in a submission. The sites stay in memory until the whole
/// list was read; each takes about 100 bytes.
pub const MAX_SITES: usize = 1_000_000;
/// Maximum length of a line, in bytes. The longest name has 4,096; a comment may follow.
const MAX_LINE: u64 = 16_384;
/// Maximum length of a list, in bytes, so that an endless stream of comments ends. It leaves a
/// thousand bytes for each site.
const MAX_BYTES: usize = 1 << 30;
/// Maximum number of invalid lines that are reported one by one.
const COMPLAINTS: usize = 20;
/// Number of bytes at the start of a file that are searched for a zero byte, which shows that the
/// file is binary.
const BEGINNING: usize = 8192;
/// The byte-order mark of UTF-8, which some editors write at the start of files.
const UTF8_MARK: &[u8] = &[0xEF, 0xBB, 0xBF];
/// The two byte-order marks of UTF-16.
const UTF16_MARKS: [&[u8]; 2] = [&[0xFF, 0xFE], &[0xFE, 0xFF]];

/// A parsed site list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SiteList {
    /// The sites in the order of the list, without duplicates.
    pub sites: Vec<SiteName>,
    /// The positions of the sites for which the list has a position.
    pub positions: HashMap<SiteName, Position>,
    /// Number of lines that repeated a site.
    pub duplicates: usize,
    /// The first invalid lines, at most `COMPLAINTS` of them.
    pub rejected: Vec<Rejected>,
    /// Number of invalid lines that are not in `rejected`.
    pub unsaid: usize,
}

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The line's number, from 1.
    pub line: usize,
    /// The line, shortened, with control characters escaped.
    pub text: String,
    pub reason: String,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: '{}': {}", self.line, self.text, self.reason)
    }
}

/// Why a list cannot be read to its end. The rest of the list is not read.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("line {0} is longer than {MAX_LINE} bytes: a site list has one host or URL per line")]
    LongLine(usize),
    #[error("line {0}: the list has more than {MAX_SITES} sites: submit it in several parts")]
    TooManySites(usize),
    #[error("line {0}: the list is longer than {MAX_BYTES} bytes: submit it in several parts")]
    TooLong(usize),
    #[error("read the list")]
    Read(#[from] io::Error),
}

/// Reads a site list. The memory that this takes is bounded by [`MAX_SITES`], whatever the list
/// contains.
pub fn read(mut source: impl BufRead) -> Result<SiteList, ListError> {
    let mut list = SiteList::default();
    let whole = |reason: &str| Rejected { line: 1, text: String::new(), reason: reason.to_owned() };
    let mut seen = HashSet::new();
    let (mut columns, mut begun) = (None, false);
    let (mut line, mut offset) = (Vec::new(), 0);
    for number in 1.. {
        line.clear();
        // One byte more than permitted shows that the line is too long.
        let length = source.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line)?;
        if length == 0 {
            break;
        }
        if offset == 0 && UTF16_MARKS.iter().any(|mark| line.starts_with(mark)) {
            list.rejected.push(whole("the list is UTF-16: save it as UTF-8"));
            break;
        }
        if line.iter().take(BEGINNING.saturating_sub(offset)).any(|byte| *byte == 0) {
            list.rejected.push(whole("the file is not text: a site list has one host or URL per line"));
            break;
        }
        let content = line.strip_suffix(b"\n").unwrap_or(&line);
        if u64::try_from(content.len()).is_ok_and(|length| length > MAX_LINE) {
            return Err(ListError::LongLine(number));
        }
        let content = if offset == 0 { content.strip_prefix(UTF8_MARK).unwrap_or(content) } else { content };
        offset += length;
        if offset > MAX_BYTES {
            return Err(ListError::TooLong(number));
        }
        let text = match decode(content) {
            Ok("") => continue,
            Ok(text) if !begun => {
                begun = true;
                columns = Columns::named(text);
                if columns.is_some() {
                    continue;
                }
                Ok(text)
            }
            text => text,
        };
        match text.and_then(|text| entry(text, columns)) {
            Ok((site, position)) => list.add(site, position, &mut seen),
            Err(_) if list.rejected.len() == COMPLAINTS => list.unsaid += 1,
            Err(InvalidName { text, reason }) => list.rejected.push(Rejected { line: number, text, reason }),
        }
        if list.sites.len() > MAX_SITES {
            return Err(ListError::TooManySites(number));
        }
    }
    Ok(list)
}

impl SiteList {
    fn add(&mut self, site: SiteName, position: Option<Position>, seen: &mut HashSet<SiteName>) {
        if let Some(position) = position {
            self.positions.entry(site.clone()).or_insert(position);
        }
        if seen.insert(site.clone()) {
            self.sites.push(site);
        } else {
            self.duplicates += 1;
        }
    }
}

/// The order of the columns.
#[derive(Debug, Clone, Copy)]
struct Columns {
    site: usize,
    latitude: usize,
    longitude: usize,
}

impl Columns {
    /// The order of columns in a header; `None` if the line is not a header.
    fn named(line: &str) -> Option<Self> {
        let names: Vec<String> = line.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
        let at = |wanted: &str| names.iter().position(|name| name == wanted);
        Some(Self { site: at("site")?, latitude: at("latitude")?, longitude: at("longitude")? })
    }
}

/// The site of a non-empty line, and its position if the line has one. `columns` is `None` if the
/// list has no header.
fn entry(line: &str, columns: Option<Columns>) -> Result<(SiteName, Option<Position>), InvalidName> {
    let rejected = |reason: String| InvalidName { text: shown(line), reason };
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let columns = match columns {
        Some(columns) => columns,
        // If the first field has a path, the comma may be part of the path. Paths are dropped.
        None if fields.len() == 1 || has_path(fields[0]) => return Ok((line.parse()?, None)),
        // A number in the first field is a rank, because a number is not a valid site name.
        None if fields.len() == 2 && is_rank(fields[0]) => return Ok((fields[1].parse()?, None)),
        None if fields.len() == 3 => Columns { site: 0, latitude: 1, longitude: 2 },
        None => {
            return Err(rejected("not NAME, RANK,NAME or NAME,LATITUDE,LONGITUDE".to_owned()));
        }
    };
    let field = |place: usize| {
        fields
            .get(place)
            .copied()
            .ok_or_else(|| rejected("the line has fewer columns than the first line names".to_owned()))
    };
    let degrees = |text: &str| match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| rejected(format!("'{}' is not a number of degrees", shown(text)))),
    };
    let (latitude, longitude) = (degrees(field(columns.latitude)?)?, degrees(field(columns.longitude)?)?);
    let position = Position::from_parts(latitude, longitude).map_err(|problem| rejected(problem.to_string()))?;
    Ok((field(columns.site)?.parse()?, position))
}

fn is_rank(field: &str) -> bool {
    !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the name has a path other than `/`.
fn has_path(name: &str) -> bool {
    let rest = name.split_once("://").map_or(name, |(_, rest)| rest);
    rest.split_once(['/', '?', '#']).is_some_and(|(_, path)| !path.is_empty())
}

/// The line without its comment. The result may be empty.
fn decode(line: &[u8]) -> Result<&str, InvalidName> {
    let text = std::str::from_utf8(line).map_err(|error| InvalidName {
        text: shown(&String::from_utf8_lossy(line)),
        reason: format!("not UTF-8 from byte {} of the line", error.valid_up_to() + 1),
    })?;
    Ok(without_comment(text).trim())
}

/// Removes a comment, which begins with a `#` at the start of the line or after white space. A `#`
/// as in `a.cn/#top` is part of the URL.
fn without_comment(line: &str) -> &str {
    let mut before = ' ';
    for (at, character) in line.char_indices() {
        if character == '#' && before.is_whitespace() {
            return &line[..at];
        }
        before = character;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{ProptestConfig, any, prop, prop_assert, proptest};

    fn parse(bytes: &[u8]) -> SiteList {
        read(bytes).unwrap()
    }

    #[test]
    fn a_list_without_end_is_refused_by_line_and_its_rest_is_not_read() {
        let long = io::Cursor::new(b"a.cn\n").chain(io::repeat(b'x'));
        let error = read(io::BufReader::new(long)).unwrap_err();
        assert!(error.to_string().starts_with("line 2 is longer than 16384 bytes"), "{error}");
        let zero = read(io::BufReader::new(io::repeat(0))).unwrap();
        assert!(zero.sites.is_empty() && zero.rejected[0].reason.starts_with("the file is not text"), "{zero:?}");
        let many: String = (0..=MAX_SITES).map(|n| format!("s{n}.cn\n")).collect();
        let error = read(io::BufReader::new(io::Cursor::new(many).chain(io::repeat(b'x')))).unwrap_err();
        assert!(error.to_string().starts_with("line 1000001: the list has more than 1000000 sites"), "{error}");
        let comment = format!("#{}\na.cn", "x".repeat(16_383));
        assert_eq!(read(comment.as_bytes()).unwrap().sites.len(), 1, "the longest line");
    }

    #[test]
    fn a_list_is_read_with_all_that_editors_put_in_it() {
        let text =
            "\u{feff}# sites\r\nA.cn\r\n\r\n  b.cn  # near\r\nhttp://a.cn/x\r\na.cn.\r\nbad site\r\nhttp://a.cn:80";
        let list = parse(text.as_bytes());
        let sites: Vec<&str> = list.sites.iter().map(SiteName::as_str).collect();
        assert_eq!(sites, ["a.cn", "b.cn", "http://a.cn"]);
        assert_eq!(list.duplicates, 2);
        assert_eq!(list.rejected.len(), 1);
        assert_eq!(list.rejected[0].line, 7);
        assert_eq!(list.rejected[0].text, "bad site");
    }

    #[test]
    fn bytes_that_are_no_text_are_reported_by_line() {
        let list = parse(b"a.cn\nb\xFF.cn\nc.cn\n");
        assert_eq!(list.sites.len(), 2);
        assert_eq!(list.rejected[0].line, 2);
        assert_eq!(list.rejected[0].reason, "not UTF-8 from byte 2 of the line");
    }

    #[test]
    fn utf_16_is_named_as_such() {
        let list = parse(b"\xFF\xFEa\0.\0c\0n\0");
        assert!(list.sites.is_empty());
        assert!(list.rejected[0].reason.contains("UTF-16"));
    }

    #[test]
    fn a_long_line_is_shown_clipped_and_escaped() {
        let list = parse(format!("\u{1b}[31m{}", "x".repeat(500)).as_bytes());
        let shown = &list.rejected[0].text;
        assert!(shown.starts_with("\\u{1b}[31m"), "{shown}");
        assert!(shown.ends_with('…') && shown.chars().count() < 100, "{shown}");
    }

    #[test]
    fn a_list_may_say_where_its_sites_are() {
        let place = |latitude: f64, longitude: f64| Position::try_new(latitude, longitude).unwrap();
        let plain = parse(
            b"# near and far\na.cn, 39.9, 116.4\nb.cn\nhttps://c.cn/,-1,2.5\nhttp://d.cn/x,1,2\ne.cn,,\nA.cn,1,1\n",
        );
        assert_eq!(plain.rejected, []);
        let names: Vec<&str> = plain.sites.iter().map(SiteName::as_str).collect();
        assert_eq!(names, ["a.cn", "b.cn", "https://c.cn", "http://d.cn", "e.cn"]);
        let expected = [("a.cn", place(39.9, 116.4)), ("https://c.cn", place(-1.0, 2.5))];
        assert_eq!(plain.positions, expected.map(|(name, place)| (name.parse().unwrap(), place)).into());
        assert_eq!(plain.duplicates, 1);
        let columns = parse(b"\n Longitude,rank,SITE, latitude\n116.4,1,a.cn,39.9\n,2,b.cn,\n");
        assert_eq!((columns.rejected, columns.sites.len()), (Vec::new(), 2));
        assert_eq!(columns.positions, [("a.cn".parse().unwrap(), place(39.9, 116.4))].into());
    }

    #[test]
    fn a_position_that_is_none_is_rejected_by_line() {
        let list = parse(b"a.cn,x,1\nb.cn,91,1\nc.cn,1,-181\nd.cn,1\ne.cn,1,2,3\nf.cn,,2\ng.cn,NaN,1\nh cn,1,2\nsite,latitude,longitude\n");
        assert_eq!(list.sites, []);
        let reasons: Vec<(usize, &str)> = list.rejected.iter().map(|one| (one.line, one.reason.as_str())).collect();
        let neither = "not NAME, RANK,NAME or NAME,LATITUDE,LONGITUDE";
        assert_eq!(
            reasons,
            [
                (1, "'x' is not a number of degrees"),
                (2, "a latitude is between -90 and 90 degrees"),
                (3, "a longitude is between -180 and 180 degrees"),
                (4, neither),
                (5, neither),
                (6, "a position needs both a latitude and a longitude"),
                (7, "a latitude is between -90 and 90 degrees"),
                (8, "contains a space: give one site per line"),
                (9, "'latitude' is not a number of degrees"),
            ]
        );
        let short = parse(b"site,latitude,longitude\na.cn,1\n");
        assert_eq!(
            short.rejected[0].to_string(),
            "line 2: 'a.cn,1': the line has fewer columns than the first line names"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn every_line_of_any_bytes_is_accounted_for(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let list = parse(&bytes);
            let lines = bytes.split(|byte| *byte == b'\n').count();
            prop_assert!(list.sites.len() + list.duplicates + list.rejected.len() <= lines);
        }
    }
}
