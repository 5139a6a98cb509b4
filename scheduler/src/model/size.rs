//! Parses and formats numbers of bytes as people write them: `64MB`, `1.5 GiB`, `1000000`.

use serde::{Deserialize, Deserializer};

/// The units, in lower case, and their numbers of bytes. A single letter is a decimal unit.
const UNITS: [(&str, u64); 17] = [
    ("", 1),
    ("b", 1),
    ("k", 1_000),
    ("kb", 1_000),
    ("kib", 1 << 10),
    ("m", 1_000_000),
    ("mb", 1_000_000),
    ("mib", 1 << 20),
    ("g", 1_000_000_000),
    ("gb", 1_000_000_000),
    ("gib", 1 << 30),
    ("t", 1_000_000_000_000),
    ("tb", 1_000_000_000_000),
    ("tib", 1 << 40),
    ("p", 1_000_000_000_000_000),
    ("pb", 1_000_000_000_000_000),
    ("pib", 1 << 50),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a number of bytes: give one such as 64MB, 1.5GiB or 1000000")]
pub struct BadSize;

/// Parses a number of bytes. Units are powers of 1000 (kB, MB, GB, TB, PB) or 1024 (KiB, MiB, ...),
/// in upper or lower case. A fraction must result in whole bytes.
pub fn parse(text: &str) -> Result<u64, BadSize> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let (_, bytes) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(BadSize)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u64 = [whole, fraction].concat().parse().map_err(|_| BadSize)?;
    let parts = u32::try_from(fraction.len()).ok().and_then(|places| 10_u128.checked_pow(places)).ok_or(BadSize)?;
    let scaled = u128::from(digits) * u128::from(*bytes);
    if whole.is_empty() || number.ends_with('.') || scaled % parts != 0 {
        return Err(BadSize);
    }
    u64::try_from(scaled / parts).map_err(|_| BadSize)
}

/// Formats a number of bytes for people, such as `64.0 MB`.
pub fn readable(bytes: u64) -> String {
    const SUFFIXES: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut scaled = bytes as f64 / 1e3;
    let mut unit = 0;
    while scaled >= 999.95 && unit + 1 < SUFFIXES.len() {
        scaled /= 1e3;
        unit += 1;
    }
    format!("{scaled:.1} {}", SUFFIXES[unit])
}

/// Deserializes a size in bytes from a number or from a text with a unit.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "neither a number of bytes nor a size such as '64MB'")]
    enum Size {
        Number(u64),
        Text(String),
    }
    match Size::deserialize(from)? {
        Size::Number(bytes) => Ok(Some(bytes)),
        Size::Text(text) => parse(&text).map(Some).map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_read_as_people_write_it() {
        for (text, bytes) in [
            ("0", 0),
            ("1000000", 1_000_000),
            ("7 B", 7),
            ("64MB", 64_000_000),
            ("64 mb", 64_000_000),
            ("64M", 64_000_000),
            ("64MiB", 64 << 20),
            ("67.1 MB", 67_100_000),
            ("1.5GiB", 3 << 29),
            ("2TB", 2_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in
            ["", "MB", "-1", "1.5", "1.", ".5k", "1.2.3", "64 megabytes", "1e6", "18446744073709551616", "20000PB"]
        {
            assert_eq!(parse(bad), Err(BadSize), "{bad}");
        }
    }
}
