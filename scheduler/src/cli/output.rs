//! Prints answers: as tables for people, and as JSON and CSV with stable names for programs.
//!
//! Most rows are messages of the protocol, serialised by the rules in `proto/src/json.rs`. Their
//! field names are the names in JSON and in the header of CSV. Names of durations end in `_ms` (a
//! number of milliseconds), and names of times end in `_at` (RFC 3339).

mod cells;
pub(super) mod escape;
#[cfg(test)]
mod printed;
pub(super) mod progress;
#[cfg(test)]
mod schemas;
pub(super) mod streamed;
pub(crate) mod table;
pub(crate) mod view;

use std::marker::PhantomData;

use clap::{Args, ValueEnum};
use serde::Serialize;

pub(crate) use self::cells::{
    bytes_cell, count_cell, counted, fetched, float_cell, level_cell, millis_cell, more, number, relative, share_cell,
    size_cell, span, span_cell, text_cell, yes_cell,
};
use self::table::Table;
pub(crate) use self::table::{Column, Row, TextLines, Tone, WideFlag};
pub(crate) use self::view::View;
use crate::app::exit::print;

/// How to print rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
// The values have no doc comments, because help texts of values would triple the length of
// the help pages.
pub(crate) enum Format {
    #[value(alias = "text")]
    Table,
    Json,
    Jsonl,
    Csv,
    /// Only what identifies each row, one per line: `--quiet`.
    #[value(skip)]
    Names,
}

/// How to print one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ShowFormat {
    #[value(alias = "text")]
    Table,
    Json,
}

/// The flags of commands that print rows.
#[derive(Debug, Args)]
pub(crate) struct FormatArgs<R: Row> {
    /// Output format: a table for people, or all fields for programs [env: LANDFALL_FORMAT]
    #[arg(short = 'o', long, value_enum, default_value_t = Format::Table)]
    format: Format,
    #[arg(short, long, conflicts_with = "format", help = format!("Print only {}, one per line, for other commands", R::NAMES))]
    quiet: bool,
    #[command(flatten)]
    wide: WideFlag<R>,
}

/// The flags of commands that print one thing, or a log. If the output contains tables, `R` is the
/// row type of the main table. The help of `--wide` names the additional columns of this table.
#[derive(Debug, Args)]
pub(crate) struct ShowFormatArgs<R: Row = TextLines> {
    /// Output format: text for people, or JSON (one object; for a log, one per line) [env:
    /// LANDFALL_FORMAT]
    #[arg(short = 'o', long, value_enum, default_value_t = ShowFormat::Table)]
    format: ShowFormat,
    #[command(flatten)]
    wide: WideFlag<R>,
}

impl<R: Row> FormatArgs<R> {
    pub(crate) const fn format(&self) -> Format {
        if self.quiet { Format::Names } else { self.format }
    }

    pub(crate) fn view(&self) -> View {
        self.wide.view()
    }
}

impl<R: PrintedRow> FormatArgs<R> {
    /// Prints rows as [`FormatArgs::text`] formats them.
    pub(crate) fn print(&self, rows: &[R], none: &str, more: u64) -> anyhow::Result<()> {
        print(&self.text(rows, none, more, &self.view())?)
    }

    /// Formats rows. If there are no rows, the text `none` replaces the table, unless `none` is
    /// empty. `more` is the number of rows that a limit omitted; a line below the table states
    /// this number.
    pub(crate) fn text(&self, rows: &[R], none: &str, more: u64, view: &View) -> anyhow::Result<String> {
        match self.format() {
            Format::Table if rows.is_empty() && !none.is_empty() => Ok(none.to_owned()),
            Format::Table => Ok(list(rows, view) + &self::more(more)),
            format => rows_text(rows, format, view),
        }
    }
}

impl<R: Row> ShowFormatArgs<R> {
    pub(crate) const fn is_json(&self) -> bool {
        matches!(self.format, ShowFormat::Json)
    }

    pub(crate) fn view(&self) -> View {
        self.wide.view()
    }

    pub(crate) fn print<T: Serialize>(
        &self,
        shown: &T,
        text: impl FnOnce(&T, &View) -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        print(&self.text(shown, text, &self.view())?)
    }

    /// Formats one object, as JSON or as the text that `text` returns.
    pub(crate) fn text<T: Serialize>(
        &self,
        shown: &T,
        text: impl FnOnce(&T, &View) -> anyhow::Result<String>,
        view: &View,
    ) -> anyhow::Result<String> {
        match self.format {
            ShowFormat::Table => text(shown, view),
            ShowFormat::Json => json_text(shown),
        }
    }
}

/// A row that can also be printed as JSON and CSV.
pub(crate) trait PrintedRow: Row + Serialize + Default {}

impl<R: Row + Serialize + Default> PrintedRow for R {}

pub(crate) fn rows_text<R: PrintedRow>(rows: &[R], format: Format, view: &View) -> anyhow::Result<String> {
    let mut printer = Printer::new(format, view);
    Ok(printer.page(rows)? + &printer.end()?)
}

/// Formats rows that arrive in pages.
pub(crate) struct Printer<'a, R> {
    format: Format,
    view: &'a View,
    /// The table's layout. The first page determines the widths of the columns.
    table: Option<Table>,
    begun: bool,
    rows: PhantomData<R>,
}

impl<'a, R: PrintedRow> Printer<'a, R> {
    pub(crate) const fn new(format: Format, view: &'a View) -> Self {
        Self { format, view, table: None, begun: false, rows: PhantomData }
    }

    /// Formats the next rows. In a table and in CSV, the first page begins with the header.
    pub(crate) fn page(&mut self, rows: &[R]) -> anyhow::Result<String> {
        let mut text = String::new();
        match self.format {
            Format::Table => {
                let table = self.table.get_or_insert_with(|| {
                    let table = Table::fit(rows, self.view);
                    text = table.head();
                    table
                });
                rows.iter().for_each(|row| text.push_str(&table.row(row)));
            }
            Format::Names => rows.iter().for_each(|row| text += &(row.name(self.view) + "\n")),
            Format::Csv => text = csv_text(rows, !self.begun)?,
            Format::Jsonl => {
                for row in rows {
                    text += &(escape::json(serde_json::to_string(row)?) + "\n");
                }
            }
            Format::Json => {
                for row in rows {
                    text.push_str(if text.is_empty() && !self.begun { "[\n  " } else { ",\n  " });
                    text.push_str(&escape::json(serde_json::to_string_pretty(row)?).replace('\n', "\n  "));
                }
            }
        }
        self.begun |= !text.is_empty();
        Ok(text)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        !self.begun
    }

    /// Returns the text after the last row. If there were no rows, this text is the whole output.
    pub(crate) fn end(&mut self) -> anyhow::Result<String> {
        match (self.format, self.begun) {
            (Format::Json, true) => Ok("\n]\n".to_owned()),
            (Format::Json, false) => Ok("[]\n".to_owned()),
            (_, true) => Ok(String::new()),
            (_, false) => self.page(&[]),
        }
    }
}

pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&json_text(value)?)
}

pub(crate) fn json_text(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(escape::json(serde_json::to_string_pretty(value)?) + "\n")
}

/// Formats rows as a table inside a text. The table has no colours, because [`View::fold`] would
/// remove them.
pub(crate) fn table<R: Row>(rows: &[R], view: &View) -> String {
    list(rows, &View { colors: false, ..*view })
}

/// Formats rows as a table, with colours if the terminal shows them.
pub(crate) fn list<R: Row>(rows: &[R], view: &View) -> String {
    let table = Table::fit(rows, view);
    rows.iter().fold(table.head(), |text, row| text + &table.row(row))
}

pub(crate) fn csv_text<R: PrintedRow>(rows: &[R], header: bool) -> anyhow::Result<String> {
    let mut writer = csv::WriterBuilder::new().has_headers(header).from_writer(Vec::new());
    for row in rows {
        writer.serialize(row)?;
    }
    if rows.is_empty() {
        // The CSV writer derives the header from a row. If there are no rows, a default row is
        // written and then cut off.
        writer.serialize(R::default())?;
    }
    let mut text = String::from_utf8(writer.into_inner().map_err(csv::IntoInnerError::into_error)?)?;
    if rows.is_empty() {
        text.truncate(text.find('\n').map_or(0, |end| end + 1));
    }
    escape::csv(text)
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
        const COLUMNS: &'static [Column<Self>] =
            &[("site", |row, _| row.site.clone()), (">rtt ms", |row, _| float_cell(row.rtt_ms, 1))];
    }

    #[test]
    fn csv_has_its_header_even_without_rows() {
        assert_eq!(csv_text::<Sample>(&[], true).unwrap(), "site,rtt_ms\n");
        let rows = [Sample { site: "a,b".to_owned(), rtt_ms: Some(1.25) }, Sample::default()];
        assert_eq!(csv_text(&rows, true).unwrap(), "site,rtt_ms\n\"a,b\",1.25\n,\n");
    }

    #[test]
    fn rows_that_come_in_pages_print_as_those_that_come_at_once() {
        let row = |site: &str, rtt_ms| Sample { site: site.to_owned(), rtt_ms };
        let rows = [row("a\nb", Some(1.25)), row("b", None), row("c", Some(3.0))];
        let view = View::plain();
        for format in [Format::Table, Format::Csv, Format::Json, Format::Jsonl] {
            let mut printer = Printer::new(format, &view);
            let (first, rest) = rows.split_at(1);
            let pages = printer.page(first).unwrap() + &printer.page(rest).unwrap() + &printer.end().unwrap();
            let mut printer = Printer::new(format, &view);
            assert_eq!(pages, printer.page(&rows).unwrap() + &printer.end().unwrap(), "{format:?}");
        }
        let mut printer = Printer::new(Format::Json, &view);
        let text = printer.page(&rows).unwrap() + &printer.end().unwrap();
        assert_eq!(text, serde_json::to_string_pretty(&rows).unwrap() + "\n");
        assert_eq!(Printer::<Sample>::new(Format::Json, &view).end().unwrap(), "[]\n");
        let text = rows_text(&rows, Format::Jsonl, &view).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(serde_json::Value::Array(lines), serde_json::to_value(&rows).unwrap());
        assert_eq!(rows_text::<Sample>(&[], Format::Jsonl, &view).unwrap(), "");
        assert_eq!(Printer::<Sample>::new(Format::Csv, &view).end().unwrap(), "site,rtt_ms\n");
        assert!(Printer::<Sample>::new(Format::Table, &view).end().unwrap().starts_with("site"));
    }

    #[test]
    fn names_are_one_to_a_line_and_nothing_else() {
        let rows = ["a.cn", "b\n.cn"].map(|site| Sample { site: site.to_owned(), rtt_ms: None });
        assert_eq!(rows_text(&rows, Format::Names, &View::plain()).unwrap(), "a.cn\nb .cn\n");
        assert_eq!(rows_text::<Sample>(&[], Format::Names, &View::plain()).unwrap(), "");
    }

    #[test]
    fn tables_align_numbers_to_the_right() {
        let rows = [Sample { site: "long.example".to_owned(), rtt_ms: Some(1.0) }, Sample::default()];
        let text = table(&rows, &View::plain());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].ends_with("1.0") && lines[2].ends_with("  -"), "{text}");
    }
}
