//! Prints the rows of a report as they arrive.

use std::io::IsTerminal as _;

use indicatif::ProgressBar;
use tonic::Streaming;

use super::cells;
use super::format_flags::FormatArgs;
use super::progress_bar::Bar;
use super::rows::{Format, PrintedRow, Printer};
use crate::app::exit::print;
use crate::cli::connection::Client;

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
        Format::Table => print(&cells::more(more)),
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
