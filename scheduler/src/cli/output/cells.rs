//! The texts of cells: numbers, times, durations, sizes and counts, as tables show them.

use chrono::{DateTime, TimeDelta, Utc};
use landfall_proto::json::milliseconds;
use prost_types::Duration;

/// Times up to this far in the future are shown as past, because the scheduler's clock may be ahead
/// of this machine's.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::seconds(5);

/// A line below a table that states how many rows a limit omitted; empty if none.
pub(crate) fn more(more: u64) -> String {
    match more {
        0 => String::new(),
        more => format!("and {} more: --limit 0 lists all\n", number(more)),
    }
}

pub(crate) use crate::model::durations_and_sizes::readable_size as bytes_cell;

pub(crate) fn millis_cell(duration: Option<Duration>) -> String {
    float_cell(milliseconds(duration), 1)
}

/// Formats a number for a table, with `digits` decimals; a dash for `None`.
pub(crate) fn float_cell(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(dash, |figure| format!("{figure:.digits$}"))
}

/// Formats a duration for a table, in a suitable unit; a dash for `None`.
pub(crate) fn span_cell(duration: Option<Duration>) -> String {
    milliseconds(duration).map_or_else(dash, |millis| span(millis / 1e3))
}

/// Formats a duration, given in seconds, in a suitable unit.
pub(crate) fn span(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.1} s"),
        ..7_200.0 => format!("{:.1} min", seconds / 60.0),
        ..360_000.0 => format!("{:.1} h", seconds / 3_600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

/// Formats a time relative to now, such as "3 s ago" or "in 23 h", in a unit that keeps the
/// number small.
pub(crate) fn relative(time: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let passed = now - time;
    if passed > -CLOCKS_DIFFER && passed < TimeDelta::seconds(1) {
        return "now".to_owned();
    }
    // Future times are rounded, not truncated, so that a new token that is valid for a day
    // ends "in 24 h".
    let (seconds, half) = match passed.num_seconds() {
        seconds @ 0.. => (seconds, 0),
        seconds => (seconds.saturating_neg(), 1),
    };
    let length = match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", (seconds + 30 * half) / 60),
        7_200..172_800 => format!("{} h", (seconds + 1_800 * half) / 3_600),
        _ => format!("{} d", (seconds + 43_200 * half) / 86_400),
    };
    if half == 0 { format!("{length} ago") } else { format!("in {length}") }
}

/// Formats a share from 0 to 1 for a table, in per cent.
pub(crate) fn share_cell(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

pub(crate) fn text_cell(text: &str) -> String {
    if text.is_empty() { dash() } else { text.to_owned() }
}

pub(crate) fn yes_cell(yes: bool) -> String {
    if yes { "yes".to_owned() } else { dash() }
}

/// Formats a load level for a table, with its sign; a dash for `None`.
pub(crate) fn level_cell(level: Option<i64>) -> String {
    level.map_or_else(dash, |level| format!("{level:+}"))
}

/// Formats a count with its noun, which gets an s unless the count is 1.
pub(crate) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{} {what}s", number(count)) }
}

/// Formats a number for people. Five or more digits are grouped by three.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let first = (digits.len() - 1) % 3 + 1;
    let groups = (first..digits.len()).step_by(3).map(|at| &digits[at..at + 3]);
    std::iter::once(&digits[..first]).chain(groups).collect::<Vec<_>>().join(",")
}

pub(crate) fn count_cell(count: impl Into<u64>) -> String {
    match count.into() {
        0 => dash(),
        count => number(count),
    }
}

/// Formats the fetched pages and bytes, after a comma; empty if nothing was fetched.
pub(crate) fn fetched(pages: u64, bytes: u64) -> String {
    match (pages, bytes) {
        (0, 0) => String::new(),
        _ => format!(", {}, {}", counted(pages, "page"), bytes_cell(bytes)),
    }
}

pub(crate) fn size_cell(bytes: u64) -> String {
    if bytes == 0 { dash() } else { bytes_cell(bytes) }
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_a_person_says_them() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(30);
        let said = |seconds| relative(now - TimeDelta::seconds(seconds), now);
        for (seconds, expected) in [
            (0, "now"),
            (3, "3 s ago"),
            (119, "119 s ago"),
            (121, "2 min ago"),
            (7_199, "119 min ago"),
            (7_200, "2 h ago"),
            (2 * 86_400, "2 d ago"),
            (-4, "now"),
            (-23 * 3_600, "in 23 h"),
            (1 - 86_400, "in 24 h"),
        ] {
            assert_eq!(said(seconds), expected);
        }
    }

    #[test]
    fn durations_and_sizes_read_well() {
        let duration = Duration { seconds: 1, nanos: 234_567_890 };
        assert_eq!((millis_cell(Some(duration)), millis_cell(None)), ("1234.6".to_owned(), "-".to_owned()));
        for (count, expected) in [
            (0, "0"),
            (9_999, "9999"),
            (27_736, "27,736"),
            (100_000, "100,000"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(number(count), expected);
        }
        let spans = [59.96, 119.0, 300.0, 7_300.0, 1e6].map(span);
        assert_eq!(spans, ["60.0 s", "119.0 s", "5.0 min", "2.0 h", "11.6 days"]);
        assert_eq!((count_cell(0u64), count_cell(12_345u32)), ("-".to_owned(), "12,345".to_owned()));
        assert_eq!(bytes_cell(999), "999 B");
        assert_eq!(bytes_cell(999_999), "1.0 MB");
        assert_eq!(bytes_cell(64 << 20), "67.1 MB");
    }
}
