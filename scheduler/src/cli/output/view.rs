//! How an answer is formatted for people: texts that fit the line width.
//!
//! No line is wider than the terminal, or than 100 characters without a terminal. With `--wide`,
//! nothing is cut, and times are printed in full.

use chrono::{DateTime, Local, Utc};
use console::measure_text_width;
use landfall_proto::json::{moment, rfc3339};
use prost_types::Timestamp;

use super::cells::relative;

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
}
