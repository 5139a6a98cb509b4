//! Prints answers: as tables for people, and as JSON and CSV with stable names for programs.
//!
//! Most rows are messages of the protocol, serialised by the rules in `proto/src/json.rs`. Their
//! field names are the names in JSON and in the header of CSV. Names of durations end in `_ms` (a
//! number of milliseconds), and names of times end in `_at` (RFC 3339).

pub(super) mod formats;
#[cfg(test)]
mod printed;
pub(super) mod progress_bar;
#[cfg(test)]
mod schemas;
pub(crate) mod table;
pub(crate) mod texts_and_cells;

pub(crate) use self::formats::{Format, FormatArgs, PrintedRow, ShowFormatArgs, print_json, rows_text};
pub(crate) use self::table::{Column, Row, Tone, list, table};
pub(crate) use self::texts_and_cells::{
    View, bytes_cell, count_cell, counted, fetched, float_cell, level_cell, millis_cell, more, number, relative,
    share_cell, size_cell, span, span_cell, text_cell, yes_cell,
};
