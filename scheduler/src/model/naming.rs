//! Checks agent names, batch names and one-line texts, and generates agent names.
//!
//! An accepted text contains no invisible characters, except joiners, and no characters that change
//! the reading direction, so that terminals display it as it is.

use any_ascii::any_ascii;

/// Maximum length of an agent's name in bytes. Names are ASCII only, because they are used in file
/// names.
pub const MAX_AGENT: usize = 63;
/// Maximum length of a batch's name in characters.
pub const MAX_BATCH: usize = 100;
/// Maximum length of a one-line text in characters.
pub const MAX_TEXT: usize = 100;
/// Maximum length of a generated name. This length is less than [`MAX_AGENT`], because a number may
/// be appended.
const LONGEST_FORMED: usize = 56;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("missing")]
    Missing,
    #[error("longer than {MAX_TEXT} characters")]
    TooLong,
    #[error("contains U+{0:04X}, which terminals do not show")]
    NotShown(u32),
    #[error("'{0}' is not 1 to {MAX_AGENT} letters, digits, '.', '_' and '-'")]
    Agent(String),
    #[error("'{0}' is not 1 to {MAX_BATCH} letters, digits, '.', '_' and '-'")]
    Batch(String),
    /// Neither the city nor the carrier has a letter with an ASCII spelling.
    #[error("no name can be formed from '{0}' and '{1}': give one with --name")]
    Unreadable(String, String),
}

/// Checks an agent's name: ASCII letters and digits, `.`, `_` and `-`.
pub fn agent(text: &str) -> Result<&str, BadName> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let name = !text.is_empty() && text.len() <= MAX_AGENT && text.bytes().all(allowed);
    if name { Ok(text) } else { Err(BadName::Agent(shown(text))) }
}

/// Checks a batch's name: letters and digits of any script, `.`, `_` and `-`. Rejects combining
/// accents, so that names that look equal are equal.
pub fn batch(text: &str) -> Result<&str, BadName> {
    let allowed = |character: char| character.is_alphanumeric() || matches!(character, '.' | '_' | '-');
    let name = !text.is_empty() && text.chars().count() <= MAX_BATCH && text.chars().all(allowed);
    if name { Ok(text) } else { Err(BadName::Batch(shown(text))) }
}

/// Checks a one-line text in any script, and trims it.
pub fn one_line(text: &str) -> Result<&str, BadName> {
    let text = text.trim();
    if text.is_empty() {
        return Err(BadName::Missing);
    }
    if text.chars().count() > MAX_TEXT {
        return Err(BadName::TooLong);
    }
    match text.chars().find(|character| !is_shown(*character)) {
        Some(hidden) => Err(BadName::NotShown(hidden.into())),
        None => Ok(text),
    }
}

/// Whether a terminal shows the character without changing the order of the text. Joiners (U+200C,
/// U+200D) are accepted, because some scripts need them.
pub fn is_shown(character: char) -> bool {
    let turns =
        matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let hidden = matches!(character, '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2064}' | '\u{feff}');
    !character.is_control() && !turns && !hidden
}

/// Generates the name of an agent in this city on this carrier, such as `beijing-dianxin`.
pub fn formed(city: &str, carrier: &str) -> Result<String, BadName> {
    let mut name = String::new();
    for character in any_ascii(&format!("{city} {carrier}")).chars() {
        if character.is_ascii_alphanumeric() {
            name.push(character.to_ascii_lowercase());
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    name.truncate(LONGEST_FORMED);
    let name = name.trim_end_matches('-');
    if name.is_empty() { Err(BadName::Unreadable(shown(city), shown(carrier))) } else { Ok(name.to_owned()) }
}

/// Returns `base` with the first free number from `next` on; number 1 means `base` alone. Stores
/// the following number in `next`, so that the next search for `base` continues there.
pub fn first_free(base: &str, next: &mut u64, taken: impl Fn(&str) -> bool) -> String {
    loop {
        let name = if *next == 1 { base.to_owned() } else { format!("{base}-{next}") };
        *next += 1;
        if !taken(&name) {
            return name;
        }
    }
}

fn shown(text: &str) -> String {
    text.chars().take(MAX_TEXT).flat_map(|c| if is_shown(c) { vec![c] } else { c.escape_unicode().collect() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_formed_of_city_and_carrier_in_any_script() {
        for (city, carrier, name) in [
            ("Harbin", "CERNET", "harbin-cernet"),
            ("北京", "电信", "beijing-dianxin"),
            ("哈尔滨", "教育网", "haerbin-jiaoyuwang"),
            ("São Paulo", "Vivo (Fibra)", "sao-paulo-vivo-fibra"),
            ("Αθήνα", "ΟΤΕ", "athina-ote"),
            ("Москва", "Ростелеком", "moskva-rostelekom"),
            (" İzmir ", "Türk Telekom", "izmir-turk-telekom"),
            ("東京", "IIJ", "dongjing-iij"),
            ("\u{e000}", "IIJ", "iij"),
        ] {
            assert_eq!(formed(city, carrier).as_deref(), Ok(name));
        }
        let refused = formed("\u{e000}", "…\u{202e}").unwrap_err().to_string();
        assert_eq!(refused, "no name can be formed from '\u{e000}' and '…\\u{202e}': give one with --name");
        let long = formed(&"哈".repeat(100), "y").unwrap();
        assert!(long.len() <= LONGEST_FORMED && agent(&long).is_ok());
    }

    #[test]
    fn the_first_number_that_is_free_is_taken() {
        let taken = ["a", "a-2", "a-4"];
        let mut next = 1;
        for name in ["a-3", "a-5", "a-6"] {
            assert_eq!(first_free("a", &mut next, |name| taken.contains(&name)), name);
        }
        assert_eq!(first_free("b", &mut 1, |name| taken.contains(&name)), "b");
    }

    #[test]
    fn a_text_on_a_line_is_what_it_seems() {
        assert_eq!(one_line(" 呼和浩特 "), Ok("呼和浩特"));
        assert_eq!(one_line("می\u{200c}خواهم"), Ok("می\u{200c}خواهم"), "some scripts need joiners");
        for (text, problem) in [
            ("  ", "missing"),
            ("a\nb", "contains U+000A, which terminals do not show"),
            ("Bei\u{202e}gnij", "contains U+202E, which terminals do not show"),
            ("a\u{200b}b", "contains U+200B, which terminals do not show"),
            (&"城".repeat(101), "longer than 100 characters"),
        ] {
            assert_eq!(one_line(text).unwrap_err().to_string(), problem);
        }
        assert_eq!(one_line(&"城".repeat(100)).map(str::len), Ok(300));
    }

    #[test]
    fn a_batch_is_named_in_any_script_and_one_spelling() {
        for good in ["autumn-2026.b_1", "秋季", "Осень", &"秋".repeat(100)] {
            assert_eq!(batch(good), Ok(good));
        }
        for bad in ["", "a b", "a/b", "e\u{301}te", "秋\u{202e}", &"秋".repeat(101)] {
            assert!(matches!(batch(bad), Err(BadName::Batch(_))), "{bad}");
        }
        assert!(agent("北京").is_err() && agent("a b").is_err() && agent("harbin-cernet.2_x").is_ok());
    }
}
