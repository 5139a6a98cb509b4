//! Formats texts that fit the line width, and the cells of tables: numbers, times, durations, sizes
//! and counts, as people read them.
//!
//! No line is wider than the terminal, or than 100 characters without a terminal. With `--wide`,
//! nothing is cut.

use chrono::{DateTime, Local, TimeDelta, Utc};
use console::measure_text_width;
use landfall_proto::json::{milliseconds, moment, rfc3339};
use prost_types::{Duration, Timestamp};

pub(crate) use crate::model::durations_and_sizes::readable_size as bytes_cell;

/// Line width if there is no terminal.
pub(super) const COLUMNS: usize = 100;
/// Maximum width of the label at the start of a line, including the blanks after it.
const LONGEST_LABEL: usize = 24;

/// How an answer is formatted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    /// Whether all columns are shown and nothing is cut.
    pub(crate) wide: bool,
    /// Maximum line width, if `wide` is false.
    pub(crate) columns: usize,
    pub(crate) now: DateTime<Utc>,
    /// Whether a dash replaces every relative time, so that two answers can be compared.
    pub(crate) timeless: bool,
    /// Whether colours are used in lists.
    pub(crate) colors: bool,
}

impl View {
    /// The view for a pipe, in which the present time is the Unix epoch.
    #[cfg(test)]
    pub(crate) const fn plain() -> Self {
        Self { wide: false, columns: COLUMNS, now: DateTime::UNIX_EPOCH, timeless: false, colors: false }
    }

    /// Formats a time relative to now, or in full with --wide; a dash if it is unknown.
    pub(crate) fn when(&self, time: Option<Timestamp>) -> String {
        match moment(time) {
            None => "-".to_owned(),
            Some(_) if self.timeless => "-".to_owned(),
            Some(time) if self.wide => rfc3339(time),
            Some(time) => relative(time, self.now),
        }
    }

    /// Formats the time of a log line in this machine's time zone, like the logs of other services.
    /// The width is constant, so that lines align.
    pub(crate) fn clock(&self, time: Option<Timestamp>) -> String {
        match moment(time) {
            None => "-".to_owned(),
            Some(time) if self.wide => rfc3339(time),
            Some(time) => time.with_timezone(&Local).format("%m-%d %H:%M:%S%.3f").to_string(),
        }
    }

    /// Breaks lines that are too long. If a line has a label and a value, its continuation lines
    /// are aligned with the value.
    pub(crate) fn fold(&self, text: &str) -> String {
        let lines = text.lines().map(printable);
        if self.wide {
            return lines.map(|line| line + "\n").collect();
        }
        lines.map(|line| fold_line(&line, self.columns, hanging(&line))).collect()
    }

    /// Formats a line that begins with a label. If the line is broken, its continuation lines are
    /// aligned with the text after the label.
    pub(crate) fn labelled(&self, label: &str, text: &str) -> String {
        let line = format!("{label}{}", printable(text));
        if self.wide { line + "\n" } else { fold_line(&line, self.columns, measure_text_width(label)) }
    }
}

/// Replaces control characters, so that text from other machines cannot control the terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Breaks a line between words, and indents the continuation lines.
fn fold_line(line: &str, most: usize, indent: usize) -> String {
    if measure_text_width(line) <= most {
        return line.to_owned() + "\n";
    }
    let (mut folded, mut used, mut begun) = (String::new(), 0, false);
    for word in line.split_inclusive(' ') {
        let mut rest = word;
        loop {
            let width = measure_text_width(rest.trim_end());
            if used + width <= most {
                folded.push_str(rest);
                used += measure_text_width(rest);
                begun |= !rest.trim().is_empty();
                break;
            }
            if begun && used > indent {
                folded.truncate(folded.trim_end().len());
                folded.push('\n');
                folded.push_str(&" ".repeat(indent));
                (used, begun) = (indent, false);
                continue;
            }
            // A word that is longer than a line is cut at the line's end.
            let (head, tail) = rest.split_at(prefix(rest, most.saturating_sub(used)));
            folded.push_str(head);
            (rest, used, begun) = (tail, most, true);
        }
    }
    folded.truncate(folded.trim_end().len());
    folded + "\n"
}

/// The number of bytes of a text that fit into `most` columns, but at least those of its first
/// character.
fn prefix(text: &str, most: usize) -> usize {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += measure_text_width(c.encode_utf8(&mut [0; 4]));
        if used > most && at > 0 {
            return at;
        }
    }
    text.len()
}

/// The indentation of the continuation lines of `text`. If `text` is an indented line with a label
/// and a value, separated by two or more blanks, the result is the column of the value. For other
/// lines, the result is two more than the line's own indentation.
fn hanging(text: &str) -> usize {
    let start = text.len() - text.trim_start().len();
    let label = text.get(start..).and_then(|rest| rest.find("  ")).map_or(text.len(), |end| start + end);
    let value = label + text.get(label..).map_or(0, |rest| rest.len() - rest.trim_start().len());
    if start > 0 && value <= LONGEST_LABEL { value } else { start + 2 }
}

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

    fn view(wide: bool, columns: usize) -> View {
        View { wide, columns, ..View::plain() }
    }

    #[test]
    fn times_are_full_if_wide_and_dashes_if_timeless() {
        let time = Timestamp { seconds: 30 * 86_400, nanos: 0 };
        assert_eq!(view(true, 100).when(Some(time)), "1970-01-31T00:00:00.000Z");
        assert_eq!(View { timeless: true, ..view(true, 100) }.when(Some(time)), "-");
    }

    #[test]
    fn a_long_line_goes_on_under_its_value() {
        let view = view(false, 30);
        let text = "batch autumn\n  because    1 failed: http://a.example/ answered 500\n";
        assert_eq!(
            view.fold(text),
            "batch autumn\n  because    1 failed:\n             http://a.example/\n             answered 500\n"
        );
        let word = format!("x {}", "城".repeat(40));
        let folded = view.fold(&word);
        assert!(folded.lines().all(|line| measure_text_width(line) <= 30), "{folded}");
        assert_eq!(folded.matches('城').count(), 40);
    }

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
