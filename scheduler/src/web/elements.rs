//! Elements that several pages use: sections, tables, charts, bars and paths.

use maud::{Markup, html};

use crate::cli::output::table::main_columns;
use crate::cli::output::{Row, Tone, View};
use crate::machine::clock::now;

/// Maximum number of characters shown in a cell of a table. The tooltip contains the rest.
const LONGEST_CELL: usize = 160;

/// How rows are shown: only the main columns, with times relative to now.
pub(super) fn view() -> View {
    View { wide: false, columns: usize::MAX, now: now(), timeless: false, colors: false }
}

/// Converts a number for a chart, exactly up to 2^53.
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

pub(super) fn section(title: &str, content: &Markup) -> Markup {
    html! { section.card { h2 { (title) } (content) } }
}

/// A chart. If it is wider than the screen, it can be scrolled with the keyboard.
pub(super) fn chart(label: &str, drawing: &Markup) -> Markup {
    html! { figure tabindex="0" role="region" aria-label=(label) { (drawing) } }
}

/// A table of rows. The first column links to the address that `href` returns for a row.
pub(super) fn table<R: Row>(caption: &str, rows: &[R], href: impl Fn(&R) -> Option<String>) -> Markup {
    let columns = main_columns(rows, &view());
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table {
                thead { tr { @for (column, _) in &columns {
                    th scope="col" class=[column.right.then_some("n")] { (column.name) }
                } } }
                tbody { @for (index, row) in rows.iter().enumerate() { tr {
                    @for (place, (column, cells)) in columns.iter().enumerate() {
                        @let text = cells.get(index).map_or("", String::as_str);
                        @let tone = if column.toned { tone_class(row.tone()) } else { "" };
                        td class={ @if column.right { "n " } (tone) } title=[long(text)] {
                            @match href(row).filter(|_| place == 0) {
                                Some(href) => a href=(href) { (shortened(text)) },
                                None => (shortened(text)),
                            }
                        }
                    }
                } } }
            }
        }
    }
}

fn long(text: &str) -> Option<&str> {
    (text.chars().nth(LONGEST_CELL).is_some()).then_some(text)
}

fn shortened(text: &str) -> String {
    if long(text).is_none() {
        return text.to_owned();
    }
    text.chars().take(LONGEST_CELL).chain(['…']).collect()
}

const fn tone_class(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Good => "good",
        Tone::Pausing => "pausing",
        Tone::Bad => "bad",
    }
}

pub(super) fn tile(label: &str, figure: &str, detail: &str) -> Markup {
    html! { div.tile { span.label { (label) } b { (figure) } span { (detail) } } }
}

/// A bar that shows a share from 0 to 1, with a text for screen readers.
pub(super) fn share_bar(share: f64, text: &str) -> Markup {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    html! { progress max="1" value=(format!("{share:.4}")) aria-label=(text) { (text) } }
}

/// A path that ends with a name, which may contain any character.
pub(super) fn path(head: &str, name: &str) -> String {
    // Characters outside this set must be escaped in a path.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escaped =
        name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") });
    format!("{head}{}", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_fits_into_a_path() {
        assert_eq!(path("/agents/", "tokyo-iij"), "/agents/tokyo-iij");
        assert_eq!(path("/site?name=", "https://a.cn:8080/?x&y"), "/site?name=https%3A%2F%2Fa.cn%3A8080%2F%3Fx%26y");
        assert_eq!(path("/agents/", "秋\"<"), "/agents/%E7%A7%8B%22%3C");
    }
}
