//! Prints answers in the format that the flags `--format`, `--quiet` and `--wide` choose: rows,
//! which may arrive in pages, as a table, JSON, JSON lines, CSV or names.
//!
//! Texts in answers may come from web sites and agents. Cells of CSV are made harmless for
//! spreadsheets, and JSON escapes the characters that a terminal would obey.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::marker::PhantomData;

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use serde::Serialize;
use tonic::Streaming;

use super::progress_bar::Bar;
use super::table::{Row, Table, TextLines, WideFlag, list};
use super::texts_and_cells::{self, View};
use crate::app::exit::print;
use crate::cli::connection::Client;

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
            Format::Table => Ok(list(rows, view) + &texts_and_cells::more(more)),
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
struct Printer<'a, R> {
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

/// Number of rows that are formatted and printed together, as one page. The first page determines
/// the widths of a table's columns.
const PAGE: usize = 500;

/// Prints the messages of a stream as rows. `row` converts a message to a row, and also returns the
/// number of rows that the limit omits after this row. `none` is printed in place of an empty
/// table.
pub(in crate::cli) async fn print_rows<M, R: PrintedRow>(
    client: &Client,
    mut stream: Streaming<M>,
    bar: Bar,
    row: impl Fn(M) -> (R, u64),
    none: &str,
    format: &FormatArgs<R>,
) -> anyhow::Result<()> {
    let view = format.view();
    let mut printer = Printer::new(format.format(), &view);
    let (mut rows, mut more) = (Vec::new(), 0);
    while let Some(message) = stream.message().await.map_err(|status| client.refusal(&status))? {
        let (row, after) = row(message);
        more = after;
        bar.inc(1);
        rows.push(row);
        if rows.len() == PAGE {
            print(&printer.page(&rows)?)?;
            rows.clear();
        }
    }
    drop(bar);
    if !rows.is_empty() {
        print(&printer.page(&rows)?)?;
    }
    match format.format() {
        Format::Table if printer.is_empty() => print(none),
        Format::Table => print(&texts_and_cells::more(more)),
        Format::Json | Format::Jsonl | Format::Csv | Format::Names => print(&printer.end()?),
    }
}

/// Whether a progress bar is useful: rows are written to a file or a pipe, and a person is
/// watching.
pub(in crate::cli) fn is_watched() -> bool {
    std::io::stderr().is_terminal() && !std::io::stdout().is_terminal()
}

/// A progress bar for rows whose number is not known.
pub(in crate::cli) fn uncounted_bar() -> Bar {
    if is_watched() { Bar::uncounted("rows") } else { Bar::new(ProgressBar::hidden(), "") }
}

pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&json_text(value)?)
}

pub(crate) fn json_text(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(escape_json(serde_json::to_string_pretty(value)?) + "\n")
}

/// Escapes the control characters that JSON permits inside strings but that some terminals obey.
pub(in crate::cli) fn escape_json(text: String) -> String {
    if !text.contains(is_bare_control) {
        return text;
    }
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, c| {
        match c {
            c if is_bare_control(c) => write!(escaped, "\\u{:04x}", u32::from(c)).expect("a String takes every write"),
            c => escaped.push(c),
        }
        escaped
    })
}

/// Whether the character is DEL or one of the second set of control characters (C1), such as
/// CSI (U+009B).
const fn is_bare_control(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{9f}')
}

/// First characters by which spreadsheets recognise a formula. East Asian versions also recognise
/// the wide characters.
const FORMULA: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];

pub(crate) fn csv_text<R: Serialize + Default>(rows: &[R], header: bool) -> anyhow::Result<String> {
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
    escape_csv(text)
}

/// Escapes CSV cells for spreadsheets. Control characters become blanks, and a text that looks like
/// a formula gets an apostrophe, which makes spreadsheets treat it as text.
pub(in crate::cli) fn escape_csv(text: String) -> anyhow::Result<String> {
    // Most answers have no cell to change, and parsing them again would take longer than
    // producing them.
    if !is_suspicious(&text) {
        return Ok(text);
    }
    let mut rows = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for row in rows.records() {
        writer.write_record(row?.iter().map(cell))?;
    }
    Ok(String::from_utf8(writer.into_inner().map_err(csv::IntoInnerError::into_error)?)?)
}

/// Whether a cell may have to be changed.
fn is_suspicious(text: &str) -> bool {
    let (mut quoted, mut starts) = (false, true);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' | '\n' if !quoted => starts = true,
            c if c.is_control() || starts && (c == ' ' || FORMULA.contains(&c)) => return true,
            _ => starts = false,
        }
    }
    false
}

fn cell(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let is_number =
        text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte)) && text.parse::<f64>().is_ok();
    if text.trim_start().starts_with(FORMULA) && !is_number { format!("'{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::table::{Column, table};
    use crate::cli::output::texts_and_cells::float_cell;

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

    #[test]
    fn json_stays_the_same_value_without_bare_control_characters() {
        let value = serde_json::json!({ "note": "a\u{9b}31m\u{7f}\u{1b}[0m 城" });
        let text = escape_json(value.to_string());
        assert!(!text.contains(char::is_control), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn a_formula_becomes_a_text_and_a_number_stays_a_number() {
        for (dangerous, harmless) in [
            ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
            ("+1+1", "'+1+1"),
            ("-2+3", "'-2+3"),
            ("-inf", "'-inf"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "' =1"),
            (" =1", "' =1"),
            ("＝1", "'＝1"),
            ("a\u{1b}]0;gone\u{7}\r\nb\u{9b}31m", "a ]0;gone   b 31m"),
        ] {
            assert_eq!(cell(dangerous), harmless);
            assert!(is_suspicious(&format!("site,note\na,{dangerous}\n")), "{dangerous:?}");
            assert!(is_suspicious(&format!("site,note\na,\"{dangerous}\"\n")), "{dangerous:?}");
        }
        for plain in ["-16", "+3", "-4.25", "-1e-3", "", "a=b", "a-b", "2026-11-24T08:00:00.000Z"] {
            assert_eq!(cell(plain), plain);
        }
    }

    #[test]
    fn csv_without_such_cells_is_not_touched_and_other_csv_keeps_its_cells() {
        let plain = "site,note\na.cn,\"b, c \"\"d\"\"\"\n,\n".to_owned();
        assert!(!is_suspicious(&plain));
        assert_eq!(escape_csv(plain.clone()).unwrap(), plain);
        let text = escape_csv("site,note,level\n\"a,b\",\"=1\ny\",-16\n,,\n".to_owned()).unwrap();
        assert_eq!(text, "site,note,level\n\"a,b\",'=1 y,-16\n,,\n");
    }
}
