//! Quotes words for the commands that Landfall prints.

/// Quotes a word for a shell if needed.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=@%+,[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("/var/lib/landfall"), "/var/lib/landfall");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
        assert_eq!(quoted(""), "''");
    }
}
