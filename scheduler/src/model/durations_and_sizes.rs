//! Round trips, and durations and numbers of bytes as people write them: `15m`, `1h 30m`, `250ms`,
//! `64MB`, `1.5 GiB`, `1000000`.

use std::fmt;
use std::time::Duration;

use humantime::parse_duration;
use serde::de::{Error, Unexpected, Visitor};
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

/// A round trip, greater than 0 and at most [`Rtt::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rtt(Duration);

/// A round trip that is zero, negative, not finite, or above [`Rtt::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("a round trip must be above 0 and at most 10 minutes")]
pub struct RttOutOfRange;

impl Rtt {
    pub const MAX: Duration = Duration::from_secs(600);

    pub fn try_new(value: Duration) -> Result<Self, RttOutOfRange> {
        if value.is_zero() || value > Self::MAX {
            return Err(RttOutOfRange);
        }
        Ok(Self(value))
    }

    /// Converts microseconds, the unit in the store.
    pub fn try_from_micros(micros: i64) -> Result<Self, RttOutOfRange> {
        let micros = u64::try_from(micros).map_err(|_| RttOutOfRange)?;
        Self::try_new(Duration::from_micros(micros))
    }

    /// Converts milliseconds, the unit in `gnp`. Values below a microsecond become a microsecond,
    /// so that no positive value becomes zero.
    pub fn try_from_millis_f64(millis: f64) -> Result<Self, RttOutOfRange> {
        if !(millis.is_finite() && millis > 0.0) {
            return Err(RttOutOfRange);
        }
        let value = Duration::try_from_secs_f64(millis / 1e3).map_err(|_| RttOutOfRange)?;
        Self::try_new(value.max(Duration::from_micros(1)))
    }

    pub const fn as_duration(self) -> Duration {
        self.0
    }

    /// The round trip in microseconds, at least 1.
    pub fn as_micros(self) -> i64 {
        i64::try_from(self.0.as_micros().max(1)).unwrap_or(i64::MAX)
    }

    pub fn as_millis_f64(self) -> f64 {
        self.0.as_secs_f64() * 1e3
    }
}

impl fmt::Display for Rtt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.as_millis_f64())
    }
}

/// Reads a duration from a file.
pub fn deserialize_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    from.deserialize_str(DurationText)
}

/// Reads a duration from a file, for a field that may be absent.
pub fn optional_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    deserialize_duration(from).map(Some)
}

struct DurationText;

impl Visitor<'_> for DurationText {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as 10s or 1h 30m")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        parse_duration(text).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// Formats a duration as a whole number of the largest possible unit, such as `365d`. `humantime`
/// would write 365 days as months, days, hours and minutes.
pub fn in_largest_unit(duration: Duration) -> String {
    const UNITS: [(u128, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let millis = duration.as_millis();
    let unit = UNITS.into_iter().find(|(length, _)| millis >= *length && millis.is_multiple_of(*length));
    unit.map_or_else(|| format!("{millis}ms"), |(length, name)| format!("{}{name}", millis / length))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a number of bytes: give one such as 64MB, 1.5GiB or 1000000")]
pub struct BadSize;

/// Parses a number of bytes. Units are powers of 1000 (kB, MB, GB, TB, PB) or 1024 (KiB, MiB, ...),
/// in upper or lower case. A fraction must result in whole bytes.
pub fn parse_size(text: &str) -> Result<u64, BadSize> {
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
pub fn readable_size(bytes: u64) -> String {
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
pub(super) fn optional_size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "neither a number of bytes nor a size such as '64MB'")]
    enum Size {
        Number(u64),
        Text(String),
    }
    match Size::deserialize(from)? {
        Size::Number(bytes) => Ok(Some(bytes)),
        Size::Text(text) => parse_size(&text).map(Some).map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_out_of_range_are_refused() {
        for millis in [0.0, -1.0, f64::NAN, f64::INFINITY, 600_001.0] {
            assert_eq!(Rtt::try_from_millis_f64(millis), Err(RttOutOfRange), "{millis}");
        }
        assert_eq!(Rtt::try_from_micros(0), Err(RttOutOfRange));
        assert_eq!(Rtt::try_from_millis_f64(12.5).map(Rtt::as_micros), Ok(12_500));
        assert_eq!(Rtt::try_from_millis_f64(1e-9).map(Rtt::as_micros), Ok(1));
    }

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
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in
            ["", "MB", "-1", "1.5", "1.", ".5k", "1.2.3", "64 megabytes", "1e6", "18446744073709551616", "20000PB"]
        {
            assert_eq!(parse_size(bad), Err(BadSize), "{bad}");
        }
    }
}
