//! Limits the messages of reports, because sites influence them.

/// Maximum length of a message in a report, in bytes. The length is limited because sites influence
/// messages: for example, a redirect target may be 64 KiB long.
const MAX_SENTENCE: usize = 500;

/// Makes a message safe to store and print, because a site may have influenced it.
pub(super) fn sentence(text: &str) -> String {
    let mut kept = String::new();
    for character in text.chars().filter(|character| !character.is_control()) {
        if kept.len() + character.len_utf8() > MAX_SENTENCE {
            kept.push('…');
            break;
        }
        kept.push(character);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_from_a_site_is_bounded() {
        assert_eq!(sentence("no answer\0\n"), "no answer");
        let long = sentence(&"é".repeat(40_000));
        assert!(long.len() <= MAX_SENTENCE + '…'.len_utf8() && long.ends_with("é…"), "{}", long.len());
    }
}
