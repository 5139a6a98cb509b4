//! How answers are printed: tables for people, JSON and CSV with stable names for programs.
//!
//! A row type is serialised as it stands: its field names are the names in JSON and the header in CSV. Times end in
//! `_ms` (milliseconds, a number) or `_at` (RFC 3339).

use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::exit::print;

/// How to print rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people
    #[value(alias = "text")]
    Table,
    /// All of it: an array of objects, or one object
    Json,
    /// One table with a header
    Csv,
}

/// How to print one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ShowFormat {
    /// For people
    #[value(alias = "text")]
    Table,
    /// One object; of a log an object a line
    Json,
}

/// The flag of commands that print rows.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct FormatArgs {
    /// How to print
    #[arg(short = 'o', long, value_enum, env = "LANDFALL_FORMAT", default_value_t = Format::Table)]
    pub(super) format: Format,
}

/// The flag of commands that print one thing, or a log.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct ShowFormatArgs {
    /// How to print
    #[arg(short = 'o', long, value_enum, env = "LANDFALL_FORMAT", default_value_t = ShowFormat::Table)]
    pub(super) format: ShowFormat,
}

/// One row of an answer.
pub(super) trait Row: Serialize + Default {
    /// The table's columns; one that starts with '>' is aligned to the right.
    const COLUMNS: &'static [&'static str];

    /// The table's cells.
    fn cells(&self) -> Vec<String>;
}

/// Prints rows.
pub(super) fn print_rows<R: Row>(rows: &[R], format: Format) -> anyhow::Result<()> {
    let text = match format {
        Format::Table => table(rows),
        Format::Json => serde_json::to_string_pretty(rows)? + "\n",
        Format::Csv => csv_text(rows)?,
    };
    print(&text)
}

/// Prints one object as JSON.
pub(super) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// A table, with its line end.
pub(super) fn table<R: Row>(rows: &[R]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(R::COLUMNS.iter().map(|name| name.trim_start_matches('>')));
    for row in rows {
        table.add_row(row.cells());
    }
    for (index, column) in R::COLUMNS.iter().enumerate() {
        if column.starts_with('>')
            && let Some(column) = table.column_mut(index)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.to_string();
    lines.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn csv_text<R: Row>(rows: &[R]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row)?;
    }
    if rows.is_empty() {
        // The header is taken from a row; without one, from a default row that is cut off again.
        writer.serialize(R::default())?;
    }
    let mut text = String::from_utf8(writer.into_inner().map_err(csv::IntoInnerError::into_error)?)?;
    if rows.is_empty() {
        text.truncate(text.find('\n').map_or(0, |end| end + 1));
    }
    Ok(text)
}

/// Milliseconds, to the microsecond.
pub(super) fn millis(duration: Option<&prost_types::Duration>) -> Option<f64> {
    let duration = std::time::Duration::try_from(*duration?).ok()?;
    Some((duration.as_secs_f64() * 1e6).round() / 1e3)
}

/// RFC 3339 in UTC, to the millisecond.
pub(super) fn time(timestamp: Option<&prost_types::Timestamp>) -> Option<String> {
    let timestamp = timestamp?;
    let nanos = u32::try_from(timestamp.nanos).ok()?;
    let time = DateTime::<Utc>::from_timestamp(timestamp.seconds, nanos)?;
    Some(time.to_rfc3339_opts(SecondsFormat::Millis, true))
}

/// Milliseconds in a table; a dash where there are none.
pub(super) fn millis_cell(millis: Option<f64>) -> String {
    millis.map_or_else(dash, |millis| format!("{millis:.1}"))
}

/// A text in a table; a dash where it is empty.
pub(super) fn text_cell(text: &str) -> String {
    if text.is_empty() { dash() } else { text.to_owned() }
}

/// A truth in a table.
pub(super) fn yes_cell(yes: bool) -> String {
    if yes { "yes".to_owned() } else { dash() }
}

/// So many of something that takes a plural s.
pub(super) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Bytes for people.
pub(super) fn bytes_cell(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut scaled = bytes as f64 / 1e3;
    let mut unit = 0;
    while scaled >= 999.95 && unit + 1 < UNITS.len() {
        scaled /= 1e3;
        unit += 1;
    }
    format!("{scaled:.1} {}", UNITS[unit])
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, Serialize)]
    struct Sample {
        site: String,
        rtt_ms: Option<f64>,
    }

    impl Row for Sample {
        const COLUMNS: &'static [&'static str] = &["site", ">rtt ms"];

        fn cells(&self) -> Vec<String> {
            vec![self.site.clone(), millis_cell(self.rtt_ms)]
        }
    }

    #[test]
    fn csv_has_its_header_even_without_rows() {
        assert_eq!(csv_text::<Sample>(&[]).unwrap(), "site,rtt_ms\n");
        let rows = [Sample { site: "a,b".to_owned(), rtt_ms: Some(1.25) }, Sample::default()];
        assert_eq!(csv_text(&rows).unwrap(), "site,rtt_ms\n\"a,b\",1.25\n,\n");
    }

    #[test]
    fn tables_align_numbers_to_the_right() {
        let rows = [Sample { site: "long.example".to_owned(), rtt_ms: Some(1.0) }, Sample::default()];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].ends_with("1.0") && lines[2].ends_with("  -"), "{text}");
    }

    #[test]
    fn durations_and_sizes_read_well() {
        let duration = prost_types::Duration { seconds: 1, nanos: 234_567_890 };
        assert_eq!(millis(Some(&duration)), Some(1234.568));
        assert_eq!(millis(None), None);
        assert_eq!(bytes_cell(999), "999 B");
        assert_eq!(bytes_cell(999_999), "1.0 MB");
        assert_eq!(bytes_cell(64 << 20), "67.1 MB");
    }
}
