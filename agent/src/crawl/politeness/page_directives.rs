//! Parses the directives that a page sets for itself, in the `X-Robots-Tag` header and in
//! `meta name=robots` elements.
//!
//! This module is pure. Commas separate directives. In the header, a list may start with a
//! crawler's product token, and then applies only to that crawler. Lists for other crawlers are
//! ignored. Directives for the default name, landfall-agent, always count, even if the crawler has
//! another name. Only `nofollow`, which `none` includes, matters to this crawler.

use crate::net::user_agent::UserAgent;

/// Directives that have a value after a colon. The check for product tokens must not mistake the
/// names of these directives for product tokens.
const WITH_VALUE: [&str; 4] = ["unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"];

/// Whether a list of directives forbids following a page's links.
pub(in crate::crawl) fn forbids_following(list: &str) -> bool {
    list.split(',').any(|directive| {
        let directive = directive.trim();
        ["nofollow", "none"].iter().any(|no| directive.eq_ignore_ascii_case(no))
    })
}

/// Whether a value of `X-Robots-Tag` forbids the crawler with the product token `ours` to follow a
/// page's links.
pub(in crate::crawl) fn header_forbids_following<'a>(values: impl IntoIterator<Item = &'a str>, ours: &str) -> bool {
    values.into_iter().any(|value| match value.split_once(':') {
        Some((token, list)) if !token.contains(',') && !is_any(token, &WITH_VALUE) => {
            is_any(token, &[ours, UserAgent::PRODUCT, "*"]) && forbids_following(list)
        }
        _ => forbids_following(value),
    })
}

/// Whether a `meta` element with this name applies to the crawler with the product token `ours`.
pub(in crate::crawl) fn is_for_us(name: &str, ours: &str) -> bool {
    is_any(name, &["robots", ours, UserAgent::PRODUCT])
}

fn is_any(text: &str, known: &[&str]) -> bool {
    known.iter().any(|known| text.trim().eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nofollow_and_none_count_for_all_crawlers_and_for_this_one() {
        for values in [
            &["nofollow"][..],
            &["noindex, NoFollow"],
            &["noindex", "none"],
            &["landfall-agent: nofollow"],
            &["Landfall-Agent : noindex, none"],
            &["unavailable_after: 25 Jun 2030 15:00:00 PST, nofollow"],
            &["max-snippet: 5, nofollow"],
            &["*: nofollow"],
            &["studybot: nofollow"],
        ] {
            assert!(header_forbids_following(values.iter().copied(), "StudyBot"), "{values:?}");
        }
        for values in
            [&[][..], &["noindex"], &["googlebot: nofollow"], &["otherbot: noindex, none"], &["nofollows"], &[":"]]
        {
            assert!(!header_forbids_following(values.iter().copied(), "StudyBot"), "{values:?}");
        }
        for (name, ours) in [("robots", true), ("StudyBot", true), ("landfall-agent", true), ("study", false)] {
            assert_eq!(is_for_us(name, "studybot"), ours, "{name}");
        }
    }
}
