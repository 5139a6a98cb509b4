//! Reads the matrix of measured round trips from a file, determines the true round trip of each
//! pair, and reads further data about the nodes from another file.
//!
//! The matrix is a comma-separated square matrix in milliseconds, plain or gzipped, without a
//! header.
//!
//! Rows are sources, columns are destinations, `nan` means not measured, and the diagonal is 0.
//! Every error names the file and, if possible, the row and the column, counted from 1.
//!
//! The nodes' file is comma-separated text: a header, then one line per node, in the order of the
//! matrix. The columns are `name`, `latitude`, `longitude`, `country` and `address`, in any order.
//! Every column is optional. An empty value means unknown. Every error names the file and the line.

use std::fs;
use std::fs::File;
use std::io::{BufReader, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::model::geo::Position;

/// The first two bytes of any gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

#[derive(Debug, Clone)]
pub struct Matrix {
    nodes: usize,
    /// Round trips row by row, in milliseconds; NaN for unmeasured pairs.
    millis: Vec<f64>,
}

impl Matrix {
    /// Reads a plain or gzipped file.
    pub fn read(file: &Path) -> Result<Self, FileError> {
        let unreadable = FileError::read(file);
        let mut bytes = Vec::new();
        File::open(file).and_then(|opened| BufReader::new(opened).read_to_end(&mut bytes)).map_err(&unreadable)?;
        if bytes.starts_with(&GZIP_MAGIC) {
            let mut plain = Vec::new();
            MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut plain).map_err(unreadable)?;
            bytes = plain;
        }
        Self::parse(file, &bytes)
    }

    /// Parses uncompressed text. `file` is the name to use in errors.
    pub fn parse(file: &Path, bytes: &[u8]) -> Result<Self, FileError> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let mut rows =
            csv::ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(bytes);
        let mut nodes = 0;
        let mut millis = Vec::new();
        let mut count = 0;
        for (index, record) in rows.records().enumerate() {
            let row = index + 1;
            let record = record.map_err(|error| {
                FileError::at(file, &format!(": row {row}"), format!("not comma-separated text: {error}"))
            })?;
            if count == 0 {
                nodes = record.len();
            }
            if record.len() != nodes {
                let columns = record.len();
                let complaint = format!("{columns} columns, but {nodes} are expected: the matrix must be square");
                return Err(FileError::Nonsense(format!("{}: row {row} has {complaint}", file.display())));
            }
            count += 1;
            for (index, text) in record.iter().enumerate() {
                let value = value(text, row == index + 1).map_err(|complaint| {
                    FileError::at(file, &format!(": row {row}, column {}", index + 1), format!("'{text}' {complaint}"))
                })?;
                millis.push(value);
            }
        }
        match count {
            0 => Err(FileError::at(file, "", "the matrix is empty")),
            rows if rows != nodes => {
                Err(FileError::at(file, "", format!("{rows} rows but {nodes} columns: the matrix must be square")))
            }
            _ => Ok(Self { nodes, millis }),
        }
    }

    /// Builds a matrix from `millis`, which returns the round trip of a pair in milliseconds, or
    /// `None` for an unmeasured pair. The diagonal is 0.
    pub fn of(nodes: usize, millis: impl Fn(usize, usize) -> Option<f64>) -> Self {
        let cell = |cell: usize| match (cell / nodes, cell % nodes) {
            (from, to) if from == to => 0.0,
            (from, to) => millis(from, to).unwrap_or(f64::NAN),
        };
        Self { nodes, millis: (0..nodes * nodes).map(cell).collect() }
    }

    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The round trip from one node to another, in milliseconds; `None` if it was not measured.
    pub fn millis(&self, from: usize, to: usize) -> Option<f64> {
        let value = *self.millis.get(from * self.nodes + to)?;
        value.is_finite().then_some(value)
    }

    /// The true round trip of a pair, in milliseconds: the geometric mean of its round trips in
    /// both directions, or the round trip in the only known direction.
    pub(super) fn truth(&self, a: usize, b: usize) -> Option<f64> {
        match (self.millis(a, b), self.millis(b, a)) {
            (Some(there), Some(back)) => Some((there * back).sqrt()),
            (one, other) => one.or(other),
        }
    }
}

/// Parses one value. The error is a text that a message puts after the value, such as "is not a
/// number".
fn value(text: &str, diagonal: bool) -> Result<f64, &'static str> {
    if text.is_empty() {
        return Err("is empty: write nan for what was not measured");
    }
    let value: f64 = text.parse().map_err(|_| "is not a number")?;
    if value.is_infinite() {
        return Err("is infinite: write nan for what was not measured");
    }
    if value < 0.0 {
        return Err("is negative");
    }
    if diagonal && value != 0.0 && !value.is_nan() {
        return Err("is on the diagonal, which must be 0");
    }
    if !diagonal && value == 0.0 {
        return Err("is off the diagonal, where a round trip must be above 0");
    }
    if value > 600_000.0 {
        return Err("is beyond ten minutes: the unit is milliseconds");
    }
    Ok(value)
}

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

pub fn read_nodes(file: &Path) -> Result<Vec<Node>, FileError> {
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

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("read {}: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    /// The content of the file is invalid.
    #[error("{0}")]
    Nonsense(String),
}

impl FileError {
    pub(super) fn read(file: &Path) -> impl Fn(std::io::Error) -> Self {
        |source| Self::Read { file: file.to_owned(), source }
    }

    /// `place` is a text that follows the file's name directly, such as ", line 3".
    pub(super) fn at(file: &Path, place: &str, complaint: impl std::fmt::Display) -> Self {
        Self::Nonsense(format!("{}{place}: {complaint}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn matrix_of(text: &str) -> Result<Matrix, String> {
        Matrix::parse(Path::new("rtt.csv"), text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_square_matrix_is_read_with_its_gaps() {
        let matrix = matrix_of("\u{feff}0, 1.5,nan\r\n2,0,3\r\n4,NaN,nan\r\n").unwrap();
        assert_eq!(matrix.nodes(), 3);
        assert_eq!(matrix.millis(0, 1), Some(1.5));
        assert_eq!(matrix.millis(0, 2), None);
        assert_eq!(matrix.millis(2, 0), Some(4.0));
        assert_eq!(matrix.millis(9, 0), None);
    }

    #[test]
    fn the_truth_of_a_pair_is_the_mean_of_its_directions_or_the_only_one_known() {
        let matrix = matrix_of("0,4,nan,7\n9,0,3,8\n5,nan,0,6\n1,2,3,0\n").unwrap();
        assert_eq!(matrix.truth(0, 1), Some(6.0));
        assert_eq!(matrix.truth(0, 2), Some(5.0));
    }

    #[test]
    fn every_bad_matrix_is_refused_with_its_place() {
        let cases = [
            ("", "rtt.csv: the matrix is empty"),
            ("0,1\n1", "rtt.csv: row 2 has 1 columns, but 2 are expected: the matrix must be square"),
            ("0,1\n1,0\n1,1", "rtt.csv: 3 rows but 2 columns: the matrix must be square"),
            ("0,x\n1,0", "rtt.csv: row 1, column 2: 'x' is not a number"),
            ("0,1\n-4,0", "rtt.csv: row 2, column 1: '-4' is negative"),
            ("0,inf\n1,0", "rtt.csv: row 1, column 2: 'inf' is infinite: write nan for what was not measured"),
            ("0,0\n1,0", "rtt.csv: row 1, column 2: '0' is off the diagonal, where a round trip must be above 0"),
            ("0,1\n1,7", "rtt.csv: row 2, column 2: '7' is on the diagonal, which must be 0"),
            ("0,\n1,0", "rtt.csv: row 1, column 2: '' is empty: write nan for what was not measured"),
        ];
        for (text, complaint) in cases {
            assert_eq!(matrix_of(text).unwrap_err(), complaint);
        }
        let long = matrix_of("0,700000\n1,0").unwrap_err();
        assert!(long.contains("beyond ten minutes"), "{long}");
    }

    #[test]
    fn gzip_is_recognised_by_its_bytes_and_a_missing_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("any.name");
        let mut gzip = flate2::write::GzEncoder::new(File::create(&file).unwrap(), flate2::Compression::fast());
        gzip.write_all(b"0,2\n2,0\n").unwrap();
        gzip.finish().unwrap();
        assert_eq!(Matrix::read(&file).unwrap().millis(1, 0), Some(2.0));
        let missing = Matrix::read(Path::new("/nowhere/m.csv")).unwrap_err().to_string();
        assert!(missing.starts_with("read /nowhere/m.csv: "), "{missing}");
    }

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
        let missing = read_nodes(Path::new("/nowhere/nodes.csv")).unwrap_err().to_string();
        assert!(missing.starts_with("read /nowhere/nodes.csv: "), "{missing}");
    }
}
