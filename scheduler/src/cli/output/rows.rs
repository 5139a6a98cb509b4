//! Formats rows, which may arrive in pages, as a table, JSON, JSON lines, CSV or names.

use std::marker::PhantomData;

use clap::ValueEnum;
use serde::Serialize;

use super::csv::csv_text;
use super::json::escape_json;
use super::table::{Row, Table};
use super::view::View;

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
                    text += &(escape_json(serde_json::to_string(row)?) + "\n");
                }
            }
            Format::Json => {
                for row in rows {
                    text.push_str(if text.is_empty() && !self.begun { "[\n  " } else { ",\n  " });
                    text.push_str(&escape_json(serde_json::to_string_pretty(row)?).replace('\n', "\n  "));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::cells::float_cell;
    use crate::cli::output::table::{Column, table};

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
