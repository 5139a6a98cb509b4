//! Makes CSV and JSON harmless for the programs in which people open them.
//!
//! Texts in answers may come from web sites and agents. A spreadsheet treats a cell that begins
//! with `=`, `+`, `-` or `@` as a formula, and a terminal obeys control characters. Numbers are
//! not changed.

use std::fmt::Write as _;

/// First characters by which spreadsheets recognise a formula. East Asian versions also recognise
/// the wide characters.
const FORMULA: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];

/// Makes the cells of CSV harmless. Control characters become blanks, and a text that looks like a
/// formula gets an apostrophe, which makes spreadsheets treat it as text.
pub(in crate::cli) fn csv(text: String) -> anyhow::Result<String> {
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

/// Escapes the control characters that JSON permits inside strings but that some terminals obey.
pub(in crate::cli) fn json(text: String) -> String {
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
        assert_eq!(csv(plain.clone()).unwrap(), plain);
        let text = csv("site,note,level\n\"a,b\",\"=1\ny\",-16\n,,\n".to_owned()).unwrap();
        assert_eq!(text, "site,note,level\n\"a,b\",'=1 y,-16\n,,\n");
    }

    #[test]
    fn json_stays_the_same_value_without_bare_control_characters() {
        let value = serde_json::json!({ "note": "a\u{9b}31m\u{7f}\u{1b}[0m 城" });
        let text = json(value.to_string());
        assert!(!text.contains(char::is_control), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
