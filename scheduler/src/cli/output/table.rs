//! Tables for people, with columns that fit the line width.
//!
//! Without `--wide`, a table has only its main columns. With `--wide`, a table has all columns, and
//! nothing is cut.

use std::marker::PhantomData;

use clap::Args;
use console::{Alignment, Style, Term, measure_text_width, pad_str, truncate_str};

use super::texts_and_cells::{COLUMNS, View, printable};
use crate::machine::clock::now;

/// Minimum line width, because no table fits a narrower terminal.
const FEWEST_COLUMNS: usize = 60;
/// The gap between two columns of a table.
const GAP: &str = "  ";
/// In the first stage of shrinking a table, columns of texts (`~`) are cut down to this width.
const SHORTEST_TEXT: usize = 24;
/// In the later stages, other columns are cut down to this width, the first column last.
const SHORTEST_CELL: usize = 8;

pub(crate) trait Row: Sized + 'static {
    const COLUMNS: &'static [Column<Self>];
    /// The noun for the results of [`Row::name`], for the help of `--quiet`.
    const NAMES: &'static str = "names";

    /// The word that identifies the row in other commands. By default, it is the text of the first
    /// column.
    fn name(&self, view: &View) -> String {
        Self::COLUMNS.first().map_or_else(String::new, |(_, cell)| printable(&cell(self, view)))
    }

    /// The tone of the cells in the column that [`Row::COLUMNS`] marks with `!`.
    fn tone(&self) -> Tone {
        Tone::Plain
    }
}

/// The meaning of a state for an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    /// All is well.
    Good,
    /// Work pauses or is incomplete.
    Pausing,
    /// An operator must act.
    Bad,
}

impl Tone {
    const fn style(self) -> Option<Style> {
        match self {
            Self::Plain => None,
            Self::Good => Some(Style::new().green()),
            Self::Pausing => Some(Style::new().yellow()),
            Self::Bad => Some(Style::new().red()),
        }
    }
}

/// A column: its name, and the function that makes its cell in a row. Marks may precede the name,
/// in this order:
/// - `+`: only `--wide` shows the column.
/// - `?`: the column is hidden if all its cells are dashes.
/// - `>`: the cells are aligned to the right.
/// - `~`: the cells are texts, which are cut before the cells of other columns.
/// - `!`: the cells have the colour of the row's tone.
pub(crate) type Column<R> = (&'static str, fn(&R, &View) -> String);

/// The flag of everything that prints rows of `R`.
#[derive(Debug, Args)]
pub(crate) struct WideFlag<R: Row> {
    #[arg(long, help = wide_help::<R>())]
    wide: bool,
    #[arg(skip)]
    rows: PhantomData<R>,
}

impl<R: Row> WideFlag<R> {
    pub(crate) fn view(&self) -> View {
        let columns = Term::stdout().size_checked().map_or(COLUMNS, |(_, columns)| usize::from(columns));
        View {
            wide: self.wide,
            columns: columns.max(FEWEST_COLUMNS),
            now: now(),
            timeless: false,
            colors: console::colors_enabled(),
        }
    }
}

fn wide_help<R: Row>() -> String {
    let more: Vec<&str> =
        R::COLUMNS.iter().map(|(name, _)| LaidOutColumn::parse(name)).filter(|c| c.wide).map(|c| c.name).collect();
    let more = if more.is_empty() { String::new() } else { format!("; adds {}", more.join(", ")) };
    format!("Truncate nothing, and print times in full{more} [env: LANDFALL_WIDE]")
}

/// The row type of answers without a table.
#[derive(Debug)]
pub(crate) struct TextLines;

impl Row for TextLines {
    const COLUMNS: &'static [Column<Self>] = &[];
}

/// A column, parsed from its name and marks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaidOutColumn {
    pub(crate) name: &'static str,
    wide: bool,
    /// Whether the column is left out if all its cells are dashes.
    optional: bool,
    /// Whether the cells are aligned to the right.
    pub(crate) right: bool,
    text: bool,
    pub(crate) toned: bool,
}

/// The main columns, each with its cells for these rows. The dashboard shows them as HTML.
pub(crate) fn main_columns<R: Row>(rows: &[R], view: &View) -> Vec<(LaidOutColumn, Vec<String>)> {
    let columns = R::COLUMNS.iter().map(|(name, cell)| (LaidOutColumn::parse(name), cell));
    let shown = columns.filter(|(column, _)| !column.wide);
    let filled = shown.map(|(column, cell)| {
        let cells: Vec<String> = rows.iter().map(|row| printable(&cell(row, view))).collect();
        (column, cells)
    });
    filled.filter(|(column, cells)| !column.optional || cells.iter().any(|cell| cell != "-")).collect()
}

impl LaidOutColumn {
    fn parse(name: &'static str) -> Self {
        let (wide, name) = name.strip_prefix('+').map_or((false, name), |name| (true, name));
        let (optional, name) = name.strip_prefix('?').map_or((false, name), |name| (true, name));
        let (right, name) = name.strip_prefix('>').map_or((false, name), |name| (true, name));
        let (text, name) = name.strip_prefix('~').map_or((false, name), |name| (true, name));
        let (toned, name) = name.strip_prefix('!').map_or((false, name), |name| (true, name));
        Self { name, wide, optional, right, text, toned }
    }
}

/// The layout of a table, with fixed column widths.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    view: View,
    /// The columns that are shown, each with its index in [`Row::COLUMNS`] and its width.
    columns: Vec<(usize, LaidOutColumn, usize)>,
}

impl Table {
    /// Computes the widths from these rows. Cells of later rows are cut to these widths.
    pub(crate) fn fit<R: Row>(rows: &[R], view: &View) -> Self {
        let cells: Vec<Vec<String>> = rows.iter().map(|row| printable_cells(row, view)).collect();
        let named = R::COLUMNS.iter().map(|(name, _)| LaidOutColumn::parse(name)).enumerate();
        let width = |index: usize, name| {
            let cells = cells.iter().filter_map(|row| row.get(index)).map(|cell| measure_text_width(cell));
            cells.chain([measure_text_width(name)]).max().unwrap_or(0)
        };
        let is_used = |index: usize| cells.iter().filter_map(|row| row.get(index)).any(|cell| cell != "-");
        let shown =
            named.filter(|(index, column)| (view.wide || !column.wide) && (!column.optional || is_used(*index)));
        let mut columns: Vec<_> = shown.map(|(index, column)| (index, column, width(index, column.name))).collect();
        if !view.wide {
            shrink(&mut columns, view.columns);
        }
        Self { view: *view, columns }
    }

    pub(crate) fn head(&self) -> String {
        self.line(|column, _| column.name.to_owned(), |_| Some(Style::new().bold()))
    }

    pub(crate) fn row(&self, row: &impl Row) -> String {
        let cells = printable_cells(row, &self.view);
        let cell = |_: &LaidOutColumn, index| cells.get(index).cloned().unwrap_or_default();
        self.line(cell, |column| row.tone().style().filter(|_| column.toned))
    }

    fn line(
        &self,
        cell: impl Fn(&LaidOutColumn, usize) -> String,
        style: impl Fn(&LaidOutColumn) -> Option<Style>,
    ) -> String {
        let mut line = String::new();
        for (index, column, width) in &self.columns {
            let cell = cell(column, *index);
            let style = style(column).filter(|_| self.view.colors);
            let cell = if self.view.wide { cell.into() } else { truncate_str(&cell, *width, "…") };
            let cell =
                style.map_or_else(|| cell.to_string(), |style| style.force_styling(true).apply_to(&cell).to_string());
            let side = if column.right { Alignment::Right } else { Alignment::Left };
            line.push_str(&pad_str(&cell, *width, side, None));
            line.push_str(GAP);
        }
        line.trim_end().to_owned() + "\n"
    }
}

fn printable_cells<R: Row>(row: &R, view: &View) -> Vec<String> {
    R::COLUMNS.iter().map(|(_, cell)| printable(&cell(row, view))).collect()
}

/// One stage of shrinking a table: a width, and the columns that may be cut down to it.
type Stage<'a> = (usize, &'a dyn Fn(usize, &LaidOutColumn) -> bool);

/// Shrinks a table to `most` characters in three stages. The first stage cuts only texts (`~`). The
/// second stage cuts all columns except numbers (`>`) and the first column. The third stage cuts
/// all columns except numbers. In each stage, the widest column shrinks first.
fn shrink(columns: &mut [(usize, LaidOutColumn, usize)], most: usize) {
    let first = columns.iter().find(|(_, column, _)| !column.right).map(|(index, _, _)| *index);
    let gaps = GAP.len() * columns.len().saturating_sub(1);
    let stages: [Stage<'_>; 3] = [
        (SHORTEST_TEXT, &|_, column| column.text),
        (SHORTEST_CELL, &|index, column| !column.right && Some(index) != first),
        (SHORTEST_CELL, &|_, column| !column.right),
    ];
    for (shortest, gives) in stages {
        loop {
            let total = gaps + columns.iter().map(|(_, _, width)| width).sum::<usize>();
            let widest = columns
                .iter_mut()
                .filter(|(index, column, width)| gives(*index, column) && *width > shortest)
                .max_by_key(|(_, _, width)| *width);
            match widest {
                Some((_, _, width)) if total > most => *width -= 1,
                _ => break,
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::texts_and_cells::text_cell;

    #[derive(Debug, Default)]
    struct Sample {
        site: String,
        city: String,
        pages: u64,
        reason: String,
    }

    impl Row for Sample {
        const COLUMNS: &'static [Column<Self>] = &[
            ("site", |row, _| text_cell(&row.site)),
            ("city", |row, _| text_cell(&row.city)),
            (">pages", |row, _| row.pages.to_string()),
            ("~reason", |row, _| text_cell(&row.reason)),
            ("+id", |_, _| "7".to_owned()),
        ];
    }

    fn view(wide: bool, columns: usize) -> View {
        View { wide, columns, ..View::plain() }
    }

    fn lines(rows: &[Sample], view: &View) -> Vec<String> {
        let table = Table::fit(rows, view);
        std::iter::once(table.head())
            .chain(rows.iter().map(|row| table.row(row)))
            .map(|l| l.trim_end().to_owned())
            .collect()
    }

    #[test]
    fn a_table_fits_its_line_in_any_script_and_cuts_the_text_first() {
        let row = |site: &str| Sample {
            site: site.to_owned(),
            city: "呼和浩特市".to_owned(),
            pages: 12,
            reason: "连接被拒绝".repeat(30),
        };
        let rows = [row("a.cn"), row("a-site-of-some-length.example.cn")];
        for columns in [80, 100, 140] {
            let told = lines(&rows, &view(false, columns));
            assert!(told.iter().all(|line| measure_text_width(line) <= columns), "{told:#?}");
            assert!(told[1].ends_with('…') && told[2].starts_with("a-site-of-some-length.example.cn"), "{told:#?}");
            assert!(told[1].contains("呼和浩特市") && !told[0].contains("id"), "{told:#?}");
        }
        let wide = lines(&rows, &view(true, 60));
        assert!(wide[0].ends_with("id") && wide[1].contains(&rows[0].reason), "{wide:#?}");
    }

    #[test]
    fn a_row_stays_on_its_line_whatever_is_in_it() {
        let rows = [Sample { reason: "a\nb\tc\u{1b}[31m".to_owned(), ..Sample::default() }];
        let told = lines(&rows, &view(false, 100));
        assert!(told.len() == 2 && !told[1].contains(char::is_control), "{told:#?}");
    }

    #[test]
    fn colours_change_no_width_and_stand_only_at_names_of_columns_and_states() {
        struct Task(Tone);
        impl Row for Task {
            const COLUMNS: &'static [Column<Self>] =
                &[("!state", |_, _| "a state".to_owned()), ("site", |_, _| "ready".to_owned())];

            fn tone(&self) -> Tone {
                self.0
            }
        }
        let rows = [Tone::Good, Tone::Pausing, Tone::Bad, Tone::Plain].map(Task);
        let told = |view| {
            let table = Table::fit(&rows, &view);
            std::iter::once(table.head()).chain(rows.iter().map(|row| table.row(row))).collect::<String>()
        };
        let (plain, coloured) = (told(View::plain()), told(View { colors: true, ..View::plain() }));
        assert_eq!(console::strip_ansi_codes(&coloured), plain);
        assert!(!plain.contains('\u{1b}'));
        let first: Vec<&str> = coloured.lines().map(|line| line.split_at(5).0).collect();
        assert_eq!(first, ["\u{1b}[1ms", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[31m", "a sta"]);
        assert!(coloured.ends_with("  ready\n"), "{coloured}");
    }
}
