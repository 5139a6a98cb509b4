//! Reads and formats durations as people write them: `15m`, `1h 30m`, `250ms`.

use std::fmt;
use std::time::Duration;

use humantime::parse_duration;
use serde::Deserializer;
use serde::de::{Error, Unexpected, Visitor};

/// Reads a duration from a file.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    from.deserialize_str(DurationText)
}

/// Reads a duration from a file, for a field that may be absent.
pub fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    deserialize(from).map(Some)
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
