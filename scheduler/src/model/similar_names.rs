//! Finds the known names that a mistyped name may mean.

use std::collections::BTreeSet;

/// Maximum number of suggested names.
const SUGGESTED: usize = 3;
/// Maximum length of a name that is compared, in characters: the longest host name in DNS.
const LONGEST: usize = 253;
/// Maximum length, in characters, of a name for which [`respelled`] returns all names that are one
/// edit away. For a name of this length, the function returns about 3,200 names.
const LONGEST_EDITED: usize = 40;
/// A name is near if it differs by at most one edit per this many characters.
const CHARACTERS_PER_EDIT: usize = 3;
/// The characters that an edit may insert: the characters of lower-case host names and agent names.
const INSERTED: &str = "abcdefghijklmnopqrstuvwxyz0123456789-._";

/// Returns the three known names nearest to `asked`, or fewer. Names that begin with `asked` come
/// first, then names with the fewest edits. ASCII case and a leading `www.` do not count as edits.
pub fn nearest(asked: &str, known: impl IntoIterator<Item = String>) -> Vec<String> {
    let length = asked.chars().count();
    if length == 0 || length > LONGEST {
        return Vec::new();
    }
    let lower = asked.to_ascii_lowercase();
    let most = (length / CHARACTERS_PER_EDIT).max(1);
    let rank = |name: String| {
        let other = name.to_ascii_lowercase();
        let edits = if other.starts_with(&lower) { 0 } else { strsim::osa_distance(bare(&lower), bare(&other)) };
        (edits <= most).then_some((edits, name))
    };
    let ranked: BTreeSet<(usize, String)> = known.into_iter().filter_map(rank).collect();
    ranked.into_iter().take(SUGGESTED).map(|(_, name)| name).collect()
}

/// Returns the question that ends the message about an unknown name; empty if no name is near.
pub fn question(mut near: Vec<String>) -> String {
    let Some(last) = near.pop() else { return String::new() };
    let meant = if near.is_empty() { last } else { format!("{} or {last}", near.join(", ")) };
    format!("; did you mean {meant}?")
}

/// Likely spellings of a mistyped name, to look up in the store: in other ASCII case, with and
/// without `www.`, and every name that is one edit away. If `asked` has more than `LONGEST_EDITED`
/// characters, the names that are one edit away are left out.
pub fn respelled(asked: &str) -> Vec<String> {
    let mut spelled = vec![asked.to_ascii_lowercase(), asked.to_ascii_uppercase(), capitalised(asked)];
    spelled.push(asked.strip_prefix("www.").map_or_else(|| format!("www.{asked}"), str::to_owned));
    let characters: Vec<char> = asked.chars().take(LONGEST_EDITED + 1).collect();
    if characters.len() > LONGEST_EDITED {
        return spelled;
    }
    let joined = |parts: [&[char]; 3]| parts.concat().into_iter().collect::<String>();
    for at in 0..=characters.len() {
        let (head, tail) = characters.split_at(at);
        spelled.extend(INSERTED.chars().map(|inserted| joined([head, &[inserted], tail])));
        let Some((first, rest)) = tail.split_first() else { continue };
        spelled.push(joined([head, &[], rest]));
        spelled.extend(INSERTED.chars().map(|other| joined([head, &[other], rest])));
        if let Some((second, rest)) = rest.split_first() {
            spelled.push(joined([head, &[*second, *first], rest]));
        }
    }
    spelled
}

/// The name without a leading `www.`.
fn bare(name: &str) -> &str {
    name.strip_prefix("www.").unwrap_or(name)
}

fn capitalised(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut characters = lower.chars();
    characters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suggested(asked: &str, known: &[&str]) -> Vec<String> {
        nearest(asked, known.iter().map(|&name| name.to_owned()))
    }

    #[test]
    fn the_nearest_names_come_first_and_far_ones_not_at_all() {
        let known = ["autumn", "autumn-2026", "winter", "Winter", "spring"];
        assert_eq!(suggested("atumn", &known), ["autumn"]);
        assert_eq!(suggested("WINTER", &known), ["Winter", "winter"], "case is no edit");
        assert_eq!(suggested("autu", &known), ["autumn", "autumn-2026"], "its beginning");
        assert_eq!(suggested("wintre", &known), ["Winter", "winter"], "two swapped letters are one edit");
        assert_eq!(suggested("nobody", &known), Vec::<String>::new());
        assert_eq!(suggested("a1", &["a2", "a3", "a4", "a5", "b1"]), ["a2", "a3", "a4"], "at most three");
        assert_eq!(
            suggested("a.example.cn", &["b.example.cn", "www.a.example.cn"]),
            ["www.a.example.cn", "b.example.cn"]
        );
        assert_eq!(suggested("秋李", &["秋季", "冬季"]), ["秋季"]);
        assert_eq!(suggested("", &known), Vec::<String>::new());
        assert_eq!(suggested(&"a".repeat(LONGEST + 1), &known), Vec::<String>::new());
    }

    #[test]
    fn near_names_are_asked_for_in_a_question() {
        let asked = |near: &[&str]| question(near.iter().map(|&name| name.to_owned()).collect());
        assert_eq!((asked(&[]), asked(&["a"])), (String::new(), "; did you mean a?".to_owned()));
        assert_eq!(asked(&["a", "b", "c"]), "; did you mean a, b or c?");
    }

    #[test]
    fn every_name_that_is_one_edit_away_is_among_the_spellings() {
        for (asked, meant) in [
            ("exmaple.cn", "example.cn"),
            ("exaple.cn", "example.cn"),
            ("exxample.cn", "example.cn"),
            ("example.ca", "example.cn"),
            ("xample.cn", "example.cn"),
            ("example.c", "example.cn"),
            ("example.cn", "www.example.cn"),
            ("www.example.cn", "example.cn"),
            ("AUTUMN", "autumn"),
            ("autumn", "Autumn"),
            ("秋x季", "秋季"),
        ] {
            assert!(respelled(asked).contains(&meant.to_owned()), "{asked}");
        }
        assert!(respelled(&"a".repeat(LONGEST_EDITED)).len() < 3_300);
        assert_eq!(respelled(&"a".repeat(LONGEST_EDITED + 1)).len(), 4, "a long name has too many");
    }
}
