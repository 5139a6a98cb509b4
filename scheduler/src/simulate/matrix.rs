//! Reads measured round trips from a file, and determines the true round trip of each pair. The
//! file is a comma-separated square matrix in milliseconds, plain or gzipped, without a header.
//!
//! Rows are sources, columns are destinations, `nan` means not measured, and the diagonal is 0.
//! Every error names the file and, if possible, the row and the column, counted from 1.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::file_error::FileError;

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn parse(text: &str) -> Result<Matrix, String> {
        Matrix::parse(Path::new("rtt.csv"), text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_square_matrix_is_read_with_its_gaps() {
        let matrix = parse("\u{feff}0, 1.5,nan\r\n2,0,3\r\n4,NaN,nan\r\n").unwrap();
        assert_eq!(matrix.nodes(), 3);
        assert_eq!(matrix.millis(0, 1), Some(1.5));
        assert_eq!(matrix.millis(0, 2), None);
        assert_eq!(matrix.millis(2, 0), Some(4.0));
        assert_eq!(matrix.millis(9, 0), None);
    }

    #[test]
    fn the_truth_of_a_pair_is_the_mean_of_its_directions_or_the_only_one_known() {
        let matrix = parse("0,4,nan,7\n9,0,3,8\n5,nan,0,6\n1,2,3,0\n").unwrap();
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
            assert_eq!(parse(text).unwrap_err(), complaint);
        }
        let long = parse("0,700000\n1,0").unwrap_err();
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
}
