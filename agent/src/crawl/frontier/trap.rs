//! Detects crawler traps: paths with repeated segments, and endless calendars.
//!
//! This module is pure. The rule against repetitions looks only at the path. The rule for calendars
//! counts the paths that it has allowed. Neither rule forbids pages that a person would visit on an
//! ordinary site. The outcome reports how many links the rules excluded.

use std::collections::HashMap;

/// Maximum number of segments of a path. An ordinary path has a handful. If every page of a site
/// has the same wrong relative link, the path can grow by a segment each time the link is followed,
/// without end.
const MAX_SEGMENTS: usize = 32;
/// Maximum consecutive occurrences of a group of segments. `/a/a/` exists on ordinary sites;
/// `/a/a/a/` hardly ever does.
const MAX_REPEATS: usize = 2;
/// Maximum number of segments in a repeated group, as in `/x/y/z/w/x/y/z/w/x/y/z/w`.
const LONGEST_GROUP: usize = 4;
/// Maximum occurrences of one segment in a path, whether consecutive or not.
const MAX_OCCURRENCES: usize = 4;
/// Maximum number of pages of one calendar: the days of two and a half years, or the months of 83
/// years.
const MAX_DATES: u32 = 1000;
/// Maximum number of calendars that are counted separately. All further calendars share one count.
const MAX_CALENDARS: usize = 256;

#[derive(Debug, Default)]
pub(in crate::crawl) struct Traps {
    calendars: HashMap<Box<str>, u32>,
}

impl Traps {
    /// Whether a path with its query may be requested. Call it only once per path, because it also
    /// counts the allowed pages of each calendar.
    pub(in crate::crawl) fn allow(&mut self, path: &str) -> bool {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        !repeats(path) && self.allow_date(path, query)
    }

    fn allow_date(&mut self, path: &str, query: &str) -> bool {
        let Some(calendar) = calendar(path, query) else { return true };
        let full = self.calendars.len() >= MAX_CALENDARS && !self.calendars.contains_key(calendar.as_str());
        let key = if full { "" } else { calendar.as_str() };
        let pages = self.calendars.entry(key.into()).or_default();
        *pages = pages.saturating_add(1);
        *pages <= MAX_DATES
    }
}

/// Whether a path repeats segments too often, or has too many segments.
fn repeats(path: &str) -> bool {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).take(MAX_SEGMENTS + 1).collect();
    if segments.len() > MAX_SEGMENTS {
        return true;
    }
    let often = |segment: &&str| segments.iter().filter(|other| *other == segment).count() > MAX_OCCURRENCES;
    if segments.iter().any(often) {
        return true;
    }
    (1..=LONGEST_GROUP).any(|group| in_a_row(&segments, group) > MAX_REPEATS)
}

/// Maximum number of consecutive occurrences of any group that has `group` segments.
fn in_a_row(segments: &[&str], group: usize) -> usize {
    let mut longest = 0;
    let mut run = 0;
    for at in group..segments.len() {
        run = if segments[at] == segments[at - group] { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    1 + longest / group
}

/// The calendar to which a page belongs: its path and query without the date. `None` if neither the
/// query nor the end of the path has a date. An article (`/2021/05/17/title`) belongs to no
/// calendar, because a site has a limited number of articles.
fn calendar(path: &str, query: &str) -> Option<String> {
    let in_query = query.split('&').any(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        is_date_name(name) && is_number_or_date(value)
    });
    let tail = date_tail(path);
    if !in_query && tail.is_none() {
        return None;
    }
    let mut calendar = tail.unwrap_or(path).to_owned();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        calendar.push('&');
        calendar.push_str(name);
        // A value that is neither a number nor a date, as in `room=blue`, distinguishes calendars.
        if !is_number_or_date(value) {
            calendar.push('=');
            calendar.push_str(value);
        }
    }
    Some(calendar)
}

/// The part of a path before the date at its end: `/events` for `/events/2031/07/`,
/// `/events/2031-07-04` or `/events/20310704`.
fn date_tail(path: &str) -> Option<&str> {
    let trimmed = path.trim_end_matches('/');
    let cut = |segments: usize| {
        let mut rest = trimmed;
        for _ in 0..segments {
            rest = rest.rsplit_once('/').map(|(before, _)| before)?;
        }
        Some(rest)
    };
    let last: Vec<&str> = trimmed.rsplit('/').take(3).collect();
    match last.as_slice() {
        [day, month, year] if is_year(year) && is_part(month) && is_part(day) => cut(3),
        [month, year, ..] if is_year(year) && is_part(month) => cut(2),
        [date, ..] if is_date(date) => cut(1),
        _ => None,
    }
}

fn is_date_name(name: &str) -> bool {
    const NAMES: [&str; 9] = ["year", "month", "day", "week", "date", "ym", "ymd", "cal", "calendar"];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

fn is_number_or_date(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

fn is_year(text: &str) -> bool {
    text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_part(text: &str) -> bool {
    matches!(text.len(), 1 | 2) && text.parse::<u8>().is_ok_and(|number| (1..=31).contains(&number))
}

/// Whether a text is a date such as `2031-07`, `2031-07-04` or `20310704`.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    match parts.as_slice() {
        [year, month] => is_year(year) && is_part(month),
        [year, month, day] => is_year(year) && is_part(month) && is_part(day),
        [whole] => {
            whole.len() == 8
                && whole.is_ascii()
                && is_year(&whole[..4])
                && is_part(&whole[4..6])
                && is_part(&whole[6..])
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_that_repeat_themselves_are_left_out() {
        for path in [
            "/a/a/a",
            "/x/a/b/a/b/a/b/y",
            "/shop/x/y/z/x/y/z/x/y/z",
            "/a/1/a/2/a/3/a/4/a/5",
            &"/deeper".repeat(3),
            &(0..33).map(|number| format!("/{number}")).collect::<String>(),
        ] {
            assert!(!Traps::default().allow(path), "{path}");
        }
        for path in ["/", "/a/a", "/a/b/a/b", "/2024/2024/05", "/news/2024/05/news/2025/05", "/en/a/b/c/d/e/f/g"] {
            assert!(Traps::default().allow(path), "{path}");
        }
    }

    #[test]
    fn a_calendar_is_limited_and_the_rest_of_the_site_is_not() {
        let mut traps = Traps::default();
        let day =
            |number: u32| format!("/events/{}/{:02}/{:02}", 1990 + number / 336, number / 28 % 12 + 1, number % 28 + 1);
        let allowed = (0..5000).filter(|number| traps.allow(&day(*number))).count();
        assert_eq!(allowed, usize::try_from(MAX_DATES).unwrap());
        // These paths belong to another calendar, or to articles below a date.
        assert!(traps.allow("/rooms/2024/05/06"));
        assert!((0..5000).all(|number| traps.allow(&format!("{}/title-{number}", day(number)))));
        assert!((0..5000).all(|number| traps.allow(&format!("/item?id={number}"))));
    }

    #[test]
    fn a_calendar_is_identified_by_its_query_or_its_last_segments() {
        for (page, of) in [
            ("/cal?year=2031&month=7", Some("/cal&year&month")),
            ("/cal?month=2031-07&room=blue", Some("/cal&month&room=blue")),
            ("/events/2031/07/", Some("/events")),
            ("/events/2031-07-04", Some("/events")),
            ("/events/20310704", Some("/events")),
            ("/events/20319904", None),
            ("/events/2031", None),
            ("/a/12345678", None),
            ("/list?page=4", None),
            ("/report?date=latest", None),
        ] {
            let (path, query) = page.split_once('?').unwrap_or((page, ""));
            assert_eq!(calendar(path, query).as_deref(), of, "{page}");
        }
    }

    #[test]
    fn countless_calendars_take_bounded_memory() {
        let mut traps = Traps::default();
        (0..10_000).for_each(|number| {
            traps.allow(&format!("/{number}/2024-05-06"));
        });
        assert!(traps.calendars.len() <= MAX_CALENDARS + 1);
    }

    proptest! {
        #[test]
        fn any_path_is_accepted_or_left_out(path in "/[0-9a-z/?&=\\-\u{e9}]{0,60}") {
            Traps::default().allow(&path);
        }
    }
}
