//! The normal form of a path and query: equivalent URLs get the same spelling.
//!
//! This module is pure. Unnecessary escapes are decoded, and the other escapes are written with
//! capital letters (RFC 3986, 6.2.2). Session identifiers and advertising parameters are removed,
//! because they give the same page a new URL on every visit. The parameters of a query keep their
//! order, which may matter to the site.

use std::borrow::Cow;

/// Names of parameters that identify a visit, whatever their values are.
const VISITS: [&str; 8] = ["jsessionid", "phpsessid", "asp.net_sessionid", "cfid", "cftoken", "oscsid", "zenid", "_gl"];
/// Prefixes of names of parameters that identify a visit. For example, Microsoft's servers append
/// letters to `ASPSESSIONID`.
const VISITS_BEGIN: [&str; 2] = ["aspsessionid", "utm_"];
/// Parameters that advertisers add to links to a site.
const MARKS: [&str; 5] = ["gclid", "fbclid", "msclkid", "dclid", "yclid"];
/// Names of parameters that identify a visit only if their value looks like an identifier. For
/// example, `sid=12` may be the number of a story.
const PERHAPS: [&str; 5] = ["sid", "s", "session", "sessionid", "session_id"];
/// Minimum length, in characters, of a value that looks like an identifier.
const LEAST_TOKEN: usize = 16;

pub(in crate::crawl) fn normal_form(path_and_query: &str) -> Cow<'_, str> {
    // A fast path: most paths contain none of these characters, and need no change.
    if !path_and_query.bytes().any(|byte| matches!(byte, b'%' | b';' | b'?')) {
        return Cow::Borrowed(path_and_query);
    }
    let unescaped = normal_escapes(path_and_query);
    let (path, query) = match unescaped.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (unescaped.as_str(), None),
    };
    let mut normal = without_session(path);
    let kept = |pair: &&str| !names_a_visit(pair);
    let query: Vec<&str> = query.map(|query| query.split('&').filter(kept).collect()).unwrap_or_default();
    if query.iter().any(|pair| !pair.is_empty()) {
        normal.push('?');
        normal.push_str(&query.join("&"));
    }
    Cow::Owned(normal)
}

/// Whether a quick check shows that a path is in normal form: an absolute path with only letters,
/// digits, `-`, `_`, `/` and dots inside segments.
pub(super) fn is_plain(path: &str) -> bool {
    let mut before = b'/';
    for byte in path.bytes().skip(1) {
        let plain = match byte {
            // A dot after a slash may begin a dot segment. Two slashes may begin another host or an
            // empty segment.
            b'.' | b'/' => before != b'/',
            byte => byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'),
        };
        if !plain {
            return false;
        }
        before = byte;
    }
    path.starts_with('/')
}

/// Removes unnecessary escapes from a text, and writes the other escapes with capital letters.
pub(in crate::crawl) fn normal_escapes(text: &str) -> String {
    let mut normal = String::with_capacity(text.len());
    // The position of the last literal `%`, which is not part of an escape. If a hexadecimal digit
    // were decoded right after this `%`, the result could look like an escape.
    let mut stray = None;
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        let (before, escape) = rest.split_at(at);
        normal.push_str(before);
        let digits = escape.get(1..3).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) else {
            stray = Some(normal.len());
            normal.push('%');
            rest = escape.get(1..).unwrap_or_default();
            continue;
        };
        let needless = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
        let harmful = byte.is_ascii_hexdigit() && stray.is_some_and(|stray| normal.len() - stray <= 2);
        if needless && !harmful {
            normal.push(char::from(byte));
        } else {
            normal.push_str(&format!("%{byte:02X}"));
        }
        rest = escape.get(3..).unwrap_or_default();
    }
    normal.push_str(rest);
    normal
}

fn without_session(path: &str) -> String {
    let segments = path.split('/').map(|segment| {
        let mut parts = segment.split(';');
        let mut kept = parts.next().unwrap_or_default().to_owned();
        for part in parts.filter(|part| !names_a_visit(part)) {
            kept.push(';');
            kept.push_str(part);
        }
        kept
    });
    segments.collect::<Vec<_>>().join("/")
}

/// Whether a parameter (`name=value`) identifies the visit rather than the content.
fn names_a_visit(pair: &str) -> bool {
    let Some((name, value)) = pair.split_once('=') else { return false };
    let is = |known: &&str| name.eq_ignore_ascii_case(known);
    let begins = |known: &&str| name.get(..known.len()).is_some_and(|start| start.eq_ignore_ascii_case(known));
    VISITS.iter().chain(&MARKS).any(is) || VISITS_BEGIN.iter().any(begins) || PERHAPS.iter().any(is) && is_token(value)
}

fn is_token(value: &str) -> bool {
    value.len() >= LEAST_TOKEN
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && value.bytes().any(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equivalent_paths_are_spelled_the_same() {
        for (written, normal) in [
            ("/%7euser/%41%2db", "/~user/A-b"),
            ("/%e4%b8%ad?q=%2f", "/%E4%B8%AD?q=%2F"),
            ("/100%/%41/%zz", "/100%/%41/%zz"),
            ("/%%34%31", "/%%341"),
            ("/%2541", "/%2541"),
            ("/a;jsessionid=1A2B/b;v=2", "/a/b;v=2"),
            ("/a;JSESSIONID=1A2B?x=1", "/a?x=1"),
            ("/a?PHPSESSID=7&x=1&utm_source=mail&gclid=z", "/a?x=1"),
            ("/a?ASPSESSIONIDQQ=1", "/a"),
            ("/a?sid=0123456789abcdef0&s=12&sid=12", "/a?s=12&sid=12"),
            ("/a?b=2&a=1&&c", "/a?b=2&a=1&&c"),
            ("/a?", "/a"),
            ("/a?&", "/a"),
            ("/;/?phpsessid", "/;/?phpsessid"),
        ] {
            assert_eq!(normal_form(written), normal, "{written}");
        }
    }

    proptest! {
        #[test]
        fn the_normal_form_is_stable(text in "/(%[0-9a-fA-F]{0,2}|[a-z;/&?=.]|sid=|utm_x=|phpsessid=|[0-9a-f]{16,18}|\u{e9}){0,20}") {
            let once = normal_form(&text);
            prop_assert_eq!(normal_form(&once), once.as_ref());
            prop_assert!(once.len() <= text.len() && normal_escapes(&text).len() <= text.len());
        }
    }
}
