//! Holds the flags that choose how an answer is printed: `--format`, `--quiet` and `--wide`.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::cells;
use super::json::json_text;
use super::rows::{Format, PrintedRow, rows_text};
use super::table::{Row, TextLines, WideFlag, list};
use super::view::View;
use crate::app::exit::print;

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
            Format::Table => Ok(list(rows, view) + &cells::more(more)),
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
