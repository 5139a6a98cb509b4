//! Reads further data about the nodes of a matrix, apart from their round trips, from a file. The
//! file is comma-separated text: a header, then one line per node, in the order of the matrix.
//!
//! The columns are `name`, `latitude`, `longitude`, `country` and `address`, in any order. Every
//! column is optional. An empty value means unknown. Every error names the file and the line.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use super::file_error::FileError;
use crate::model::geo::Position;

/// Maximum length of a name in DNS, in bytes.
const LONGEST_NAME: usize = 253;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    pub name: Option<String>,
    pub position: Option<Position>,
    /// Two capital letters (ISO 3166-1 alpha-2).
    pub country: Option<[u8; 2]>,
    pub address: Option<IpAddr>,
}

const COLUMNS: [&str; 5] = ["name", "latitude", "longitude", "country", "address"];

pub fn read(file: &Path) -> Result<Vec<Node>, FileError> {
    parse(file, &fs::read(file).map_err(FileError::read(file))?)
}

pub fn parse(file: &Path, bytes: &[u8]) -> Result<Vec<Node>, FileError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut rows = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(bytes);
    let at = |line: u64, complaint: String| FileError::at(file, &format!(", line {line}"), complaint);
    let unread = |line: u64, error: csv::Error| at(line, format!("it is not comma-separated text: {error}"));
    let columns = columns(rows.headers().map_err(|error| unread(1, error))?)
        .map_err(|problem| at(1, format!("{problem}: the header may name {}", COLUMNS.join(", "))))?;
    let mut nodes = Vec::new();
    let mut last = 1;
    for record in rows.records() {
        let record = record.map_err(|error| unread(last + 1, error))?;
        let line = record.position().map_or(last + 1, |position| line_of(position, bytes));
        last = line;
        if record.len() != columns.len() {
            let (values, columns) = (record.len(), columns.len());
            return Err(at(line, format!("{values} values, but the header has {columns} columns")));
        }
        let values: Vec<(&'static str, &str)> = columns.iter().copied().zip(record.iter()).collect();
        let bad = |(column, value, complaint): BadColumn| at(line, format!("{column}: '{value}' {complaint}"));
        nodes.push(node(&values).map_err(bad)?);
    }
    Ok(nodes)
}

/// The line number of a record. If blank lines precede the record, `position` gives the number of
/// the first blank line instead.
pub(crate) fn line_of(position: &csv::Position, bytes: &[u8]) -> u64 {
    let from = usize::try_from(position.byte()).unwrap_or(usize::MAX);
    let blank = bytes.get(from..).unwrap_or_default().iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
    let lines = blank.filter(|byte| **byte == b'\n').count();
    position.line().saturating_add(u64::try_from(lines).unwrap_or(u64::MAX))
}

fn columns(header: &csv::StringRecord) -> Result<Vec<&'static str>, String> {
    if header.is_empty() {
        return Err("the file is empty".to_owned());
    }
    let mut columns: Vec<&'static str> = Vec::new();
    for name in header {
        let known = COLUMNS.into_iter().find(|known| *known == name.to_ascii_lowercase());
        let column = known.ok_or_else(|| format!("'{name}' is not a column"))?;
        if columns.contains(&column) {
            return Err(format!("the column '{column}' appears twice"));
        }
        columns.push(column);
    }
    Ok(columns)
}

/// An invalid value: the column, the value, and the problem.
type BadColumn = (&'static str, String, String);

fn node(values: &[(&'static str, &str)]) -> Result<Node, BadColumn> {
    let text = |column: &'static str| {
        values.iter().find(|(name, value)| *name == column && !value.is_empty()).map(|(_, value)| *value)
    };
    let bad = |column: &'static str, complaint: &str| {
        (column, text(column).unwrap_or_default().to_owned(), complaint.to_owned())
    };
    let degrees = |column: &'static str| {
        text(column).map(|text| text.parse::<f64>().map_err(|_| bad(column, "is not a number of degrees"))).transpose()
    };
    let (latitude, longitude) = (degrees("latitude")?, degrees("longitude")?);
    let position = Position::from_parts(latitude, longitude).map_err(|error| {
        let half = if latitude.is_none() { "latitude" } else { "longitude" };
        match latitude {
            Some(degrees) if !(-90.0..=90.0).contains(&degrees) => bad("latitude", &format!("is invalid: {error}")),
            _ => bad(half, &format!("is invalid: {error}")),
        }
    })?;
    if text("name").is_some_and(|name| name.len() > LONGEST_NAME) {
        return Err(bad("name", "is longer than a host name can be"));
    }
    let country = text("country")
        .map(|code| {
            let letters: Option<[u8; 2]> = code.to_ascii_uppercase().as_bytes().try_into().ok();
            letters
                .filter(|two| two.iter().all(u8::is_ascii_uppercase))
                .ok_or_else(|| bad("country", "is not two letters (ISO 3166-1 alpha-2)"))
        })
        .transpose()?;
    let address =
        text("address").map(|text| text.parse().map_err(|_| bad("address", "is not an IP address"))).transpose()?;
    Ok(Node { name: text("name").map(str::to_ascii_lowercase), position, country, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<Node>, String> {
        parse(Path::new("nodes.csv"), text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn columns_come_in_any_order_and_values_may_be_missing() {
        let nodes =
            of("\u{feff}Country, name,address,longitude,latitude\ncn,WWW.A.cn,192.0.2.1,126.6,45.8\n,,,,\n").unwrap();
        let position = Position::try_new(45.8, 126.6).ok();
        let first = Node {
            name: Some("www.a.cn".to_owned()),
            position,
            country: Some(*b"CN"),
            address: "192.0.2.1".parse().ok(),
        };
        assert_eq!(nodes, [first, Node::default()]);
    }

    #[test]
    fn every_bad_line_is_named() {
        let among = "the header may name name, latitude, longitude, country, address";
        for (text, complaint) in [
            ("", format!("nodes.csv, line 1: the file is empty: {among}")),
            ("name,colour\n", format!("nodes.csv, line 1: 'colour' is not a column: {among}")),
            ("name,name\n", format!("nodes.csv, line 1: the column 'name' appears twice: {among}")),
            ("name,country\na.cn,CN\nb.cn\n", "nodes.csv, line 3: 1 values, but the header has 2 columns".to_owned()),
            ("country\nCHN\n", "nodes.csv, line 2: country: 'CHN' is not two letters (ISO 3166-1 alpha-2)".to_owned()),
            ("address\n::1\n1.2.3\n", "nodes.csv, line 3: address: '1.2.3' is not an IP address".to_owned()),
            ("latitude,longitude\n1,x\n", "nodes.csv, line 2: longitude: 'x' is not a number of degrees".to_owned()),
            (
                "latitude,longitude\n91,0\n",
                "nodes.csv, line 2: latitude: '91' is invalid: a latitude is between -90 and 90 degrees".to_owned(),
            ),
            (
                "latitude,longitude\n0,nan\n",
                "nodes.csv, line 2: longitude: 'nan' is invalid: a longitude is between -180 and 180 degrees"
                    .to_owned(),
            ),
            (
                "latitude,longitude\n\n,9\n",
                "nodes.csv, line 3: latitude: '' is invalid: a position needs both a latitude and a longitude"
                    .to_owned(),
            ),
        ] {
            assert_eq!(of(text).unwrap_err(), complaint, "{text:?}");
        }
        let missing = read(Path::new("/nowhere/nodes.csv")).unwrap_err().to_string();
        assert!(missing.starts_with("read /nowhere/nodes.csv: "), "{missing}");
    }
}
