//! Classifies the result of a request by how it affects the timing of later requests.

use std::time::{Duration, SystemTime};

use super::refusal_pause::{retry_after, turns_away};

/// The result of a request, classified by how it affects the timing of later requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::crawl) enum ResponseKind {
    /// Any response that is not listed below.
    Good,
    /// 403, a status of 500 and above, no response in time, or a broken connection.
    Bad,
    /// 429 or 503, with the pause that the response requires.
    TurnedAway(Option<Duration>),
}

impl ResponseKind {
    /// Classifies a response by how it affects the timing of later requests. `asked` is the
    /// `Retry-After` header.
    pub(in crate::crawl) fn of(status: u16, asked: Option<&str>, now: SystemTime) -> Self {
        match status {
            _ if turns_away(status) => Self::TurnedAway(asked.and_then(|value| retry_after(value, now))),
            403 | 500.. => Self::Bad,
            _ => Self::Good,
        }
    }
}
