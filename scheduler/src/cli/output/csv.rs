//! Formats rows as CSV, and makes its cells harmless for spreadsheets and terminals.
//!
//! Texts in answers may come from web sites and agents. A spreadsheet treats a cell that begins
//! with `=`, `+`, `-` or `@` as a formula, and a terminal obeys control characters. Numbers are
//! not changed.

use serde::Serialize;

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

/// Makes the cells of CSV harmless. Control characters become blanks, and a text that looks like a
/// formula gets an apostrophe, which makes spreadsheets treat it as text.
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
