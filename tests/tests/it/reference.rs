//! Tests that the pages in `docs/reference` match the programs. With `UPDATE_PRINTED=1`, the tests
//! write the pages again, as needed after a change of an option or a setting.

use std::path::Path;

mod command_line;
mod settings;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Fails if a page of the reference differs from `text`. If `UPDATE_PRINTED` is set, the page is
/// written first.
fn compare(page: &str, text: &str) {
    let path = Path::new(ROOT).join("docs/reference").join(page);
    if std::env::var_os("UPDATE_PRINTED").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    let advice = "is stale: run this test with UPDATE_PRINTED=1";
    for (number, (line, written)) in text.lines().zip(written.lines()).enumerate() {
        assert_eq!(line, written, "line {} of {page} {advice}", number + 1);
    }
    assert_eq!(text, written, "{page} {advice}");
}

fn row(cells: &[String]) -> String {
    let escaped = cells.iter().map(|cell| cell.replace('|', "\\|").replace('<', "&lt;"));
    format!("| {} |\n", escaped.collect::<Vec<_>>().join(" | "))
}

fn code(text: impl std::fmt::Display) -> String {
    format!("`{text}`")
}
