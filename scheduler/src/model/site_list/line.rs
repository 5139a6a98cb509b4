//! Parses one line of a site list: its comment, columns and position.

use crate::gnp::Position;

use super::{InvalidName, SiteName, shown};

#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    site: usize,
    latitude: usize,
    longitude: usize,
}

impl Columns {
    /// The order of columns in a header; `None` if the line is not a header.
    pub(super) fn named(line: &str) -> Option<Self> {
        let names: Vec<String> = line.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
        let at = |wanted: &str| names.iter().position(|name| name == wanted);
        Some(Self { site: at("site")?, latitude: at("latitude")?, longitude: at("longitude")? })
    }
}

/// The site of a non-empty line, and its position if the line has one. `columns` is `None` if the
/// list has no header.
pub(super) fn entry(line: &str, columns: Option<Columns>) -> Result<(SiteName, Option<Position>), InvalidName> {
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
pub(super) fn read(line: &[u8]) -> Result<&str, InvalidName> {
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
