//! Describes the progress of a batch: how many sites are in each state, and how much time remains.

use std::time::Duration;

use landfall_proto::v1::{BatchProgress, Estimate};

use crate::cli::output::{counted, fetched, number};

pub(in crate::cli) fn ended(progress: &BatchProgress) -> u64 {
    progress.complete + progress.truncated + progress.failed + progress.cancelled
}

pub(in crate::cli) fn total(progress: &BatchProgress) -> u64 {
    let BatchProgress { submitted, measuring, located, assigned, leased, .. } = progress;
    submitted + measuring + located + assigned + leased + ended(progress)
}

/// Describes the number of tasks in each state, and the estimated remaining time.
pub(super) fn line(progress: &BatchProgress) -> String {
    let left = progress.estimate.as_ref().map(left).filter(|left| !left.is_empty());
    left.map_or(states(progress), |left| format!("{}; {left}", states(progress)))
}

/// Describes the estimated remaining time of a batch, or why there is no estimate.
pub(in crate::cli) fn left(estimate: &Estimate) -> String {
    let time = estimate.left.and_then(|left| Duration::try_from(left).ok());
    let about = time.map(|time| format!("about {} left for {}", rough(time), counted(estimate.sites, "site")));
    let parts: Vec<String> =
        about.into_iter().chain((!estimate.note.is_empty()).then(|| estimate.note.clone())).collect();
    parts.join("; ")
}

/// The estimated remaining time as a cell of a table, or why there is no estimate.
pub(crate) fn left_cell(estimate: &Estimate) -> String {
    let time = estimate.left.and_then(|left| Duration::try_from(left).ok());
    time.map_or_else(|| estimate.note.clone(), |time| format!("about {}", rough(time)))
}

/// Rounds a duration up: to seconds, above an hour to minutes, above a day to hours.
fn rough(time: Duration) -> String {
    let unit = match time.as_secs() {
        0..3_600 => 1,
        3_600..86_400 => 60,
        _ => 3_600,
    };
    let units = time.as_secs().div_ceil(unit).max(1);
    humantime::format_duration(Duration::from_secs(units.saturating_mul(unit))).to_string()
}

/// Lists the states that have tasks, with the number of tasks in each state.
pub(in crate::cli) fn states(progress: &BatchProgress) -> String {
    let named = [
        ("submitted", progress.submitted),
        ("measuring", progress.measuring),
        ("located", progress.located),
        ("assigned", progress.assigned),
        ("leased", progress.leased),
        ("complete", progress.complete),
        ("truncated", progress.truncated),
        ("failed", progress.failed),
        ("cancelled", progress.cancelled),
    ];
    let mut parts: Vec<String> = named
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{} {name}", number(*count)))
        .collect();
    if parts.is_empty() {
        parts.push("no site".to_owned());
    }
    let states = parts.join(", ") + &fetched(progress.pages, progress.bytes);
    if progress.waiting_for.is_empty() { states } else { format!("{states}; {}", progress.waiting_for) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_holds_anything_and_what_is_waited_for() {
        let progress = BatchProgress {
            measuring: 3,
            complete: 1,
            truncated: 1,
            pages: 12,
            bytes: 3_400,
            waiting_for: "no agent is connected".to_owned(),
            ..BatchProgress::default()
        };
        assert_eq!((ended(&progress), total(&progress)), (2, 5));
        assert_eq!(states(&progress), "3 measuring, 1 complete, 1 truncated, 12 pages, 3.4 kB; no agent is connected");
    }

    #[test]
    fn what_is_left_is_said_roughly_and_with_what_is_not_in_it() {
        let estimate = |seconds, note: &str| Estimate {
            left: Some(prost_types::Duration { seconds, nanos: 1 }),
            sites: 20,
            note: note.to_owned(),
            ..Estimate::default()
        };
        assert_eq!(left(&estimate(0, "")), "about 1s left for 20 sites");
        assert_eq!(left(&estimate(130, "so; and so")), "about 2m 10s left for 20 sites; so; and so");
        assert_eq!(left(&estimate(2 * 86_400 + 61, "")), "about 2days 1h left for 20 sites");
        let none = Estimate { note: "no estimate yet: no site has ended".to_owned(), ..Estimate::default() };
        let progress = BatchProgress { leased: 1, estimate: Some(none), ..BatchProgress::default() };
        assert_eq!(line(&progress), "1 leased; no estimate yet: no site has ended");
    }
}
