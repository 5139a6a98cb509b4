//! Formats answers as JSON, and escapes the characters that a terminal would obey.

use std::fmt::Write as _;

use serde::Serialize;

use crate::app::exit::print;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_the_same_value_without_bare_control_characters() {
        let value = serde_json::json!({ "note": "a\u{9b}31m\u{7f}\u{1b}[0m 城" });
        let text = escape_json(value.to_string());
        assert!(!text.contains(char::is_control), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
